"""What a fatbin holds: machine code as it is, PTX unpacked.

The container is NVIDIA's and undocumented; link/fatbin_ptx.py writes the same fields. Tests hold both against what fatbinary makes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from scons_gpu.errors import DamagedError
from scons_gpu.link import zstd

__all__ = ["FatbinEntry", "filled", "read_fatbin"]

_HEADER = struct.Struct("<IHHQ")  # magic, version, size of this header, bytes that follow
_ENTRY = struct.Struct("<HHIQIIHHIQQQQ")
_MAGIC, _VERSION = 0xBA55ED50, 1
_KINDS = {1: "ptx", 2: "elf"}
_ZSTD, _COMPRESSED = 0x8000, 0xA000
"""Flags: packed with Zstandard; or, before 13, with LZ4."""


@dataclass(frozen=True)
class FatbinEntry:
    """One image."""

    kind: str
    """`elf`, or `ptx`."""
    number: int
    """Its architecture, without a suffix: 90."""
    data: bytes | None
    """As `filled` has it; None: packed in a way that is not read here."""


def filled(code: bytes) -> bytes:
    """Machine code as it stands in a fatbin: an entry has a multiple of eight bytes."""
    return code + bytes(-len(code) % 8)


def read_fatbin(data: bytes, *, path: str, most: int) -> list[FatbinEntry]:
    """Its entries, in order. `most`: how many bytes PTX may unpack to. Raises DamagedError, naming `path`, for what is no whole fatbin."""
    try:
        return _entries(data, _head(data), most)
    except (struct.error, ValueError) as error:
        msg = f"{path}: not a fatbin: {error}"
        raise DamagedError(msg) from None


def _head(data: bytes) -> int:
    """Where entries begin."""
    magic, version, size, length = _HEADER.unpack_from(data)
    if (magic, version) != (_MAGIC, _VERSION) or size < _HEADER.size:
        msg = "its head is another"
        raise ValueError(msg)
    if size + length != len(data):
        msg = f"it says that it has {size + length} bytes, and has {len(data)}"
        raise ValueError(msg)
    return int(size)


def _entries(data: bytes, place: int, most: int) -> list[FatbinEntry]:
    found: list[FatbinEntry] = []
    while place < len(data):
        kind, _, head, size, packed, _, _, _, number, _, flags, _, plain = _ENTRY.unpack_from(data, place)
        start = place + head
        place = start + size
        if kind not in _KINDS or head < _ENTRY.size or place > len(data) or packed > size:
            msg = f"entry {len(found)} does not read"
            raise ValueError(msg)
        content: bytes | None = data[start:place]
        if flags & _COMPRESSED:
            content = zstd.decompress(data[start : start + packed], most=min(most, plain)) if flags & _ZSTD else None
        found.append(FatbinEntry(kind=_KINDS[kind], number=number, data=content))
    return found
