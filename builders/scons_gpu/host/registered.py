"""What an object registers with CUDA's runtime when its program starts: read from the object, whatever compiled it.

Each registration is a call of `__cudaRegisterFunction`, `__cudaRegisterVar` and so on, which is given the device's name as a string. Of a
relocatable object the calls and the strings are relocations, in the order of the code, so a call's name is the last string before it.
Where flags make the compiler keep a function's address (`-fno-plt`), later calls of it are not seen; stubs tell of all kernels.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from scons_gpu.errors import DamagedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Registered", "kernel_of", "read"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_RELOCATION = struct.Struct("<QQq")  # Elf64_Rela
_RELA = 4  # SHT_RELA
_PROGBITS, _READ_ONLY, _WRITE_ALLOC_EXEC = 1, 2, 7  # SHT_PROGBITS; SHF_ALLOC, and that with SHF_WRITE and SHF_EXECINSTR
_STRINGS = 0x20  # SHF_STRINGS
_LITTLE_64 = b"\x7fELF\x02\x01"
_BEFORE = {(62, 2): 4, (62, 4): 4}
"""(machine, type) → what x86-64's relocations count from the end of the instruction: R_X86_64_PC32, R_X86_64_PLT32."""
_STUB = "__device_stub__"
_NAME = re.compile(rb"[A-Za-z_$][\w$.]*\0")
_LENGTH = re.compile(r"L?(\d+)")
_KERNEL = "__cudaRegisterFunction"
_VARIABLES = ("__cudaRegisterVar", "__cudaRegisterManagedVar", "__cudaRegisterTexture", "__cudaRegisterSurface")


@dataclass(frozen=True)
class Registered:
    """The device's names, in the order of registration, as often as they are registered."""

    kernels: tuple[str, ...]
    variables: tuple[str, ...]
    stubs: tuple[str, ...] = ()
    """Kernels for which the object holds the function that `<<<>>>` calls: all of its kernels, without a fatbin too."""


class _Section(NamedTuple):
    kind: int
    flags: int
    offset: int
    size: int
    link: int

    @property
    def is_read_only(self) -> bool:
        """Whether it holds constants, strings among them."""
        return self.kind == _PROGBITS and self.flags & _WRITE_ALLOC_EXEC == _READ_ONLY


class _Symbol(NamedTuple):
    name: int
    section: int
    value: int


class _Table(NamedTuple):
    symbols: list[_Symbol]
    registers: dict[int, str]
    """Number of a symbol → which of the functions that register it is."""
    stubs: list[str]


def read(data: bytes, *, path: str) -> Registered:
    """Of a relocatable ELF object of a 64-bit little-endian machine. Raises DamagedError for anything else."""
    try:
        return _read(data)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        msg = f"{path} is no object that can be read: {error}"
        raise DamagedError(msg) from None


def _read(data: bytes) -> Registered:
    if not data.startswith(_LITTLE_64):
        msg = "not an ELF file of 64 bits"
        raise ValueError(msg)
    header = _HEADER.unpack_from(data)
    machine, at, count = header[2], header[6], header[12]
    raw = [_SECTION.unpack_from(data, at + number * _SECTION.size) for number in range(count)]
    sections = [_Section(kind=one[1], flags=one[2], offset=one[4], size=one[5], link=one[6]) for one in raw]
    code = [section for section in sections if section.kind == _RELA]
    tables = {section.link: _symbols(data, sections[section.link], sections) for section in code}
    found: dict[str, list[str]] = {name: [] for name in (_KERNEL, *_VARIABLES)}
    for section in code:
        for function, name in _calls(data, section, sections, tables[section.link], machine):
            found[function].append(name)
    return Registered(
        kernels=tuple(found[_KERNEL]),
        variables=tuple(name for function in _VARIABLES for name in found[function]),
        stubs=tuple(sorted({name for each in tables.values() for name in each.stubs})),
    )


def _symbols(data: bytes, table: _Section, sections: Sequence[_Section]) -> _Table:
    raw = _SYMBOL.iter_unpack(data[table.offset : table.offset + table.size])
    symbols = [_Symbol(name=one[0], section=one[3], value=one[4]) for one in raw]
    at = sections[table.link].offset
    names = [_text(data, at + symbol.name) for symbol in symbols]
    named = list(zip(symbols, names, strict=True))
    return _Table(
        symbols=symbols,
        registers={number: name for number, (symbol, name) in enumerate(named) if not symbol.section and name in (_KERNEL, *_VARIABLES)},
        stubs=[kernel for symbol, name in named if symbol.section and _STUB in name and (kernel := kernel_of(name))],
    )


def _calls(data: bytes, code: _Section, sections: Sequence[_Section], table: _Table, machine: int) -> Iterator[tuple[str, str]]:
    """(function, name) of each registration in one section's code."""
    last = constant = 0
    entries = _RELOCATION.iter_unpack(data[code.offset : code.offset + code.size])
    for _, info, addend in sorted(entries) if table.registers else ():
        number, kind = info >> 32, info & 0xFFFFFFFF
        symbol = table.symbols[number]
        if number in table.registers:
            yield table.registers[number], _text(data, last or constant)
        elif 0 < symbol.section < len(sections) and (held := sections[symbol.section]).is_read_only:
            place = held.offset + symbol.value + addend + _BEFORE.get((machine, kind), 0)
            # A variable's own place on the host may be among the constants too, and come behind its name.
            if held.flags & _STRINGS:
                last = place
            elif _NAME.match(data, place):  # without optimisation strings have no section of their own
                constant = place


def kernel_of(stub: str) -> str:
    """`_Z3addILi3EEvPf` of `_Z18__device_stub__addILi3EEvPf`: kernels stand in namespaces alone, whose names are stepped over."""
    if stub.startswith(_STUB):
        return stub.removeprefix(_STUB)
    begins = re.match(r"_ZN?", stub)
    at = begins.end() if begins else len(stub)
    while match := _LENGTH.match(stub, at):
        at = match.end() + int(match[1])
        name = stub[match.end() : at]
        if name.startswith(_STUB):
            kernel = name.removeprefix(_STUB)
            return f"{stub[: match.start(1)]}{len(kernel)}{kernel}{stub[at:]}"
    return ""


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode(errors="surrogateescape")
