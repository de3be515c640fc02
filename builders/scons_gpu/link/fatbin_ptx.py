"""A fatbin of PTX alone, for machines without NVIDIA's packer: nothing there makes machine code either.

The container is NVIDIA's and undocumented. These fields were read from what fatbinary 13.5 writes without compression, and a test holds
our bytes against its.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

from scons_gpu.errors import LinkError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["pack_ptx"]

_HEADER = struct.Struct("<IHHQ")  # magic, version, size of this header, bytes that follow
_ENTRY = struct.Struct("<HHIQIIHHIQQQQQQ")
_MAGIC, _PTX, _VERSION = 0xBA55ED50, 1, 0x0101
_64_BIT_LINUX = 0x11
_ONLY = {"": 0, "a": 1 << 20, "f": 1 << 21}
"""Flags of an architecture's suffix: for this very GPU, for its family."""
_PTX_VERSION = re.compile(r"^\s*\.version\s+(\d+)\.(\d+)", re.MULTILINE)


def pack_ptx(entries: Iterable[tuple[str, str]]) -> bytes:
    """The fatbin of (architecture, PTX) pairs, the architecture as `90` or `90a`. Raises LinkError for PTX without a version."""
    body = b"".join(_entry(arch, text) for arch, text in entries)
    return _HEADER.pack(_MAGIC, 1, _HEADER.size, len(body)) + body


def _entry(arch: str, text: str) -> bytes:
    version = _PTX_VERSION.search(text)
    if version is None:
        msg = f"the PTX for compute_{arch} tells no version"
        raise LinkError(msg)
    data = text.encode() + b"\0"
    data += bytes(-len(data) % 8)
    flags = _64_BIT_LINUX | _ONLY[arch.lstrip("0123456789")]
    major, minor = int(version[1]), int(version[2])
    number = int(arch.rstrip("af"))
    return _ENTRY.pack(_PTX, _VERSION, _ENTRY.size, len(data), 0, 0x40, minor, major, number, 0, flags, 0, 0, _ENTRY.size - 8, 0) + data
