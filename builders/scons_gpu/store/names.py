"""The name that a content has: XXH3-128, which is quick; whatever must be sure compares the contents themselves."""

from __future__ import annotations

import os

import xxhash

__all__ = ["content"]


def _bits() -> int:
    """How many bits of a hash count. Tests cut them to provoke collisions; nothing else sets this."""
    return int(os.environ.get("SCONS_GPU_TEST_HASH_BITS", "128"))


def content(data: bytes) -> str:
    """32 hex digits over `data`."""
    value = xxhash.xxh3_128_intdigest(data)
    bits = _bits()
    return f"{value if bits >= 128 else value & ((1 << bits) - 1):032x}"
