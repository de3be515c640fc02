"""JSON files that prove themselves: the first field is a hash over the text of the others. What is not whole is not believed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from scons_gpu.store.names import content

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["from_text", "to_text"]

_START, _DIGITS, _BEHIND = b'{"seal": "', 16, b'", '
_BODY = len(_START) + _DIGITS + len(_BEHIND)


def to_text(data: Mapping[str, Any]) -> str:
    """`data`, which is not empty, on one line."""
    body = json.dumps(data, sort_keys=True)[1:]  # with an indent json is ten times slower
    return f'{{"seal": "{_seal(body.encode())}", {body}\n'


def from_text(text: str | bytes) -> dict[str, Any]:
    """What `to_text` was given. Raises ValueError for anything else; the hash is over the text, so that nothing is encoded to check it."""
    whole = text.encode() if isinstance(text, str) else text
    body = whole[_BODY:].rstrip(b"\n")
    if whole[:_BODY] != _START + _seal(body).encode() + _BEHIND:
        msg = "not sealed, or not whole"
        raise ValueError(msg)
    data: dict[str, Any] = json.loads(b"{" + body)
    return data


def _seal(body: bytes) -> str:
    return content(body)[:_DIGITS]
