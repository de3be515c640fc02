"""Names made of content: XXH3-128, with every field framed so that no two lists of fields read alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scons_gpu.store.names import content, name

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["content", "fields"]


def fields(values: Mapping[str, str]) -> str:
    """32 hex digits over named fields, whatever their order: each key and value goes in behind its length."""
    plain = "".join([f"{len(key)}:{key}{len(value)}:{value}" for key, value in sorted(values.items())])
    if plain.isascii():  # as nearly always: then the lengths are those in bytes
        return name(plain.encode())
    parts = []
    for key in sorted(values):
        for text in (key, values[key]):
            data = text.encode("utf-8", "surrogatepass")  # a flag that is no UTF-8 reaches Python with lone surrogates
            parts.append(b"%d:" % len(data) + data)
    return name(b"".join(parts))
