"""The head of a cubin: just enough to know what a linker would do with it. link/elf.py reads the rest."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

__all__ = ["Head", "Table", "head"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr, System V ABI
_MACHINE = 190  # EM_CUDA
# The assembler's options stand as text in .note.nv.tkinfo (12.9 has no such note). e_flags cannot tell sm_90 from sm_90a in 13.x.
_ARCH = re.compile(rb"\x00ptxas\x00[^\x00]+\x00[^\x00]+\x00[^\x00]*-arch (sm_\w+) ")


@dataclass(frozen=True)
class Table:
    """Where the section headers lie."""

    offset: int
    count: int
    names: int
    """Index of the section that holds their names."""


@dataclass(frozen=True)
class Head:
    """What the link has to know of an input before it takes it."""

    relocatable: bool
    """ET_REL, as `ptxas -c` makes it; a whole program is ET_EXEC."""
    number: int
    """The architecture without its suffix (90), from e_flags: bits 8-23 from ABI version 8 on, the low byte before."""
    arch: str
    """As the assembler was told (`sm_90a`); empty where the object does not say."""
    sections: Table


def head(data: bytes) -> Head | str:
    """The head of `data`, or what is wrong with it: nvlink links a cubin cut to its first 300 bytes as if it were empty, and returns 0."""
    if not data:
        return "empty"
    if len(data) < _HEADER.size or data[:6] != b"\x7fELF\x02\x01":
        return "not an object: no ELF header"
    ident, kind, machine, _, _, *rest = _HEADER.unpack_from(data)
    programs, offset, flags, _, program_size, program_count, section_size, section_count, names = rest
    if machine != _MACHINE:
        return f"not a GPU object (ELF machine {machine})"
    if max(offset + section_size * section_count, programs + program_size * program_count) > len(data):
        return f"cut short at {len(data)} bytes"
    arch = _ARCH.search(data)
    return Head(
        relocatable=kind == 1,
        number=flags >> 8 & 0xFFFF if ident[8] >= 8 else flags & 0xFF,
        arch=arch.group(1).decode() if arch else "",
        sections=Table(offset=offset, count=section_count, names=names),
    )
