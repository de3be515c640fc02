"""The hash of a content, XXH3-128, and the name made of it; where names are looked up, the contents themselves are compared."""

from __future__ import annotations

import os

import xxhash

__all__ = ["content", "name"]


def _bits() -> int:
    """How many bits of a name count. Tests cut them to provoke collisions; nothing else sets this."""
    return int(os.environ.get("SCONS_GPU_TEST_HASH_BITS", "128"))


def content(data: bytes) -> str:
    """32 hex digits over `data`, for what is believed on its hash alone."""
    return xxhash.xxh3_128_hexdigest(data)


def name(data: bytes) -> str:
    """32 hex digits that name `data` where two of one name are told apart by more than the name."""
    bits = _bits()
    return content(data) if bits >= 128 else f"{xxhash.xxh3_128_intdigest(data) & ((1 << bits) - 1):032x}"
