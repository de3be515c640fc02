"""Names made of content: XXH3-128, with every field framed so that no two lists of fields read alike."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["content", "fields"]


def _bits() -> int:
    """How many bits of a hash count. Tests cut them to provoke collisions; nothing else sets this."""
    return int(os.environ.get("SCONS_GPU_TEST_HASH_BITS", "128"))


def content(data: bytes) -> str:
    """32 hex digits over `data`."""
    value = xxhash.xxh3_128_intdigest(data)
    bits = _bits()
    return f"{value if bits >= 128 else value & ((1 << bits) - 1):032x}"


def fields(values: Mapping[str, str]) -> str:
    """32 hex digits over named fields, whatever their order: each name and value goes in behind its length."""
    parts = []
    for name in sorted(values):
        for text in (name, values[name]):
            data = text.encode()
            parts.append(b"%d:" % len(data) + data)
    return content(b"".join(parts))
