"""Reading a cubin: its symbols, and what each kernel takes of the machine.

The format is ELF64 with NVIDIA's own sections and attributes, which no public document defines. Each number below says where it comes
from; the tests compare all of them with cuobjdump, for the older files of 12.9 (ABI version 7) and for those of 13.x (8).

It is read with struct, not with pyelftools: an image of 300 kernels (1,514 sections, 1,512 symbols) takes pyelftools 0.25 s for sections
and symbols alone and this reader 0.03 s for everything; one unit's object takes 5 ms and 0.3 ms. A link reads all of its objects and the
image, within a budget of 0.35 s after one edit. The tests read the same files with both.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple

from scons_gpu.assemble import cubin
from scons_gpu.errors import DamagedError
from scons_gpu.link.texts import Texts

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Cubin", "KernelResources", "Symbol", "read"]

Kind = Literal["kernel", "function", "variable"]
Space = Literal["", "global", "constant", "shared", "local"]
Binding = Literal["local", "global", "weak"]

_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_BINDINGS: dict[int, Binding] = {0: "local", 1: "global", 2: "weak"}
_OBJECT, _FUNCTION, _CUDA_OBJECT = 1, 2, 13  # STT_OBJECT, STT_FUNC; 13 is what ptxas writes into relocatable objects
_REFERENCES = (10, 11, 12)  # STT_CUDA_TEXTURE, _SAMPLER, _SURFACE: never in a section, whoever declares them
_NAMED = frozenset({_OBJECT, _FUNCTION, _CUDA_OBJECT, *_REFERENCES})
_ENTRY = 0x10  # st_other: a kernel
_SPACES: dict[int, Space] = {0x20: "global", 0x40: "shared", 0x60: "local", 0x80: "constant"}  # st_other of CUDA objects
_INTERNAL = 1  # STV_INTERNAL: parameters, as `_param`
_UNDEFINED = 0
_NOBITS = (8, 0x70000007, 0x70000009, 0x7000000A)  # SHT_NOBITS; relocatable: global, local and shared memory that nothing initialises
_RESERVED_SHARED = 1024  # bytes per block, where `.nv.reservedSmem.cap` does not say otherwise
_UNKNOWN_STACK = 0xFFFFFFFF
# Attributes of .nv.info, by the numbers behind cuobjdump's EIATTR_ names.
_MAX_THREADS, _REQNTID, _FRAME_SIZE, _MIN_STACK, _REGISTERS, _BARRIERS = 0x05, 0x10, 0x11, 0x12, 0x2F, 0x4C


@dataclass(frozen=True)
class Symbol:
    """One name of the symbol table; sections' own and the tools' (`.nv.…`, `__UFT_…`) are left out."""

    name: str
    kind: Kind
    space: Space
    """Of a variable; "" where the file does not say."""
    bytes: int
    binding: Binding
    defined: bool


@dataclass(frozen=True)
class KernelResources:
    """What one kernel takes. None: the file does not say."""

    symbol: str
    registers: int | None
    """Per thread: EIATTR_REGCOUNT (what a link decides stands there too)."""
    stack_bytes: int | None
    """Per thread, with what it calls: EIATTR_MIN_STACK_SIZE; the kernel's EIATTR_FRAME_SIZE in a relocatable object. None: recursion."""
    shared_bytes: int
    """Static, per block: size of .nv.shared.K, without what the system reserves from sm_90 on (1,024)."""
    constants: tuple[tuple[int, int], ...]
    """(bank, bytes) of .nv.constantN.K: 0 holds the parameters behind the driver's own part, 2 what the assembler put there."""
    max_threads: int | None
    """Per block: EIATTR_REQNTID or EIATTR_MAX_THREADS, multiplied out."""
    barriers: int | None
    """EIATTR_NUM_BARRIERS; 13.x only."""
    code_bytes: int | None = None
    """Of machine code: size of .text.K."""

    @property
    def constant_bytes(self) -> int:
        """Over the kernel's own banks."""
        return sum(size for _, size in self.constants)


@dataclass(frozen=True)
class Cubin:
    """What was read."""

    arch: str
    """`sm_90a` where the assembler's note says so, else from the header, without a suffix."""
    relocatable: bool
    symbols: tuple[Symbol, ...]
    """In the file's order."""
    kernels: tuple[KernelResources, ...]
    """Sorted by symbol."""
    constants: tuple[tuple[int, int], ...]
    """(bank, bytes) of what all kernels share: bank 3 holds `__constant__` and constant tables, bank 4 addresses."""

    @property
    def variables(self) -> tuple[Symbol, ...]:
        """Defined variables."""
        return tuple(symbol for symbol in self.symbols if symbol.kind == "variable" and symbol.defined)

    @property
    def undefined(self) -> tuple[str, ...]:
        """What others have to define, sorted: functions (`vprintf` stays so in an image) and variables, but dynamic shared memory."""
        return tuple(sorted(symbol.name for symbol in self.symbols if not symbol.defined and symbol.space != "shared"))


class _Section(NamedTuple):
    name: str
    kind: int
    offset: int
    size: int
    link: int


@dataclass
class _Facts:
    """What .nv.info and .nv.info.K say of one kernel."""

    registers: int | None = None
    frame: int | None = None
    stack: int | None = None
    threads: int | None = None
    barriers: int | None = None


@dataclass
class _File:
    data: bytes
    head: cubin.Head
    sections: list[_Section]
    facts: dict[str, _Facts] = field(default_factory=dict)

    def of(self, symbol: str) -> _Facts:
        return self.facts.setdefault(symbol, _Facts())


def read(data: bytes, *, path: str = "cubin", resources: bool = True) -> Cubin:
    """Reads a cubin: its symbols, and with `resources` what its kernels take, which is as much work again.

    Raises DamagedError, naming `path`, for anything that is not one or is cut short.
    """
    head = cubin.head(data)
    if isinstance(head, str):
        msg = f"{path}: {head}"
        raise DamagedError(msg)
    try:
        return _read(_File(data=data, head=head, sections=_sections(data, head.sections)), resources=resources)
    except (struct.error, IndexError, ValueError) as error:
        msg = f"{path}: not a cubin that reads: {error}"
        raise DamagedError(msg) from None


def _read(file: _File, *, resources: bool) -> Cubin:
    names: list[str] = []
    symbols: list[Symbol] = []
    reserved = 0
    for name, entry in _symbol_entries(file):
        names.append(name)
        if name.startswith(".nv.reservedSmem.") and not file.head.relocatable:
            reserved = entry[4] if name.endswith(".cap") else reserved or _RESERVED_SHARED
        elif symbol := _symbol(name, entry, file.sections):
            symbols.append(symbol)
    for section in file.sections if resources else ():
        if section.name.startswith(".nv.info"):
            _gather(file, section, names)
    banks = _banks(file.sections)
    kernels = [symbol.name for symbol in symbols if symbol.kind == "kernel" and symbol.defined]
    return Cubin(
        arch=file.head.arch or f"sm_{file.head.number}",
        relocatable=file.head.relocatable,
        symbols=tuple(symbols),
        kernels=_kernels(file, kernels, banks=banks, reserved=reserved) if resources else (),
        constants=tuple(sorted(banks.get("", []))),
    )


def _sections(data: bytes, table: cubin.Table) -> list[_Section]:
    raw = list(_SECTION.iter_unpack(data[table.offset : table.offset + table.count * _SECTION.size]))
    names = Texts(data, *raw[table.names][4:6])
    sections = [_Section(names.at(each[0]), each[1], each[4], each[5], each[6]) for each in raw]
    for section in sections:
        if section.kind not in _NOBITS and section.offset + section.size > len(data):
            msg = f"section {section.name} ends behind the file"
            raise ValueError(msg)
    return sections


def _symbol_entries(file: _File) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, Elf64_Sym) of every symbol, the unnamed ones too: .nv.info counts them."""
    table = next((section for section in file.sections if section.name == ".symtab"), None)
    if table is None:
        return
    strings = file.sections[table.link]
    names = Texts(file.data, strings.offset, strings.size)
    for entry in _SYMBOL.iter_unpack(file.data[table.offset : table.offset + table.size]):
        yield names.at(entry[0]), entry


def _symbol(name: str, entry: tuple[int, ...], sections: list[_Section]) -> Symbol | None:
    _, info, other, index, _, size = entry
    kind, binding = info & 0xF, _BINDINGS.get(info >> 4)
    if kind not in _NAMED or not name or binding is None or other & 3 == _INTERNAL or name.startswith(_TOOLS):
        return None
    defined = index != _UNDEFINED
    if kind == _FUNCTION:
        return Symbol(name, kind="kernel" if other & _ENTRY else "function", space="", bytes=size, binding=binding, defined=defined)
    if kind in _REFERENCES:  # the driver finds them by name; nvlink takes all of one name for one
        return Symbol(name, kind="variable", space="global", bytes=size, binding=binding, defined=True)
    place = sections[index].name if defined and index < len(sections) else ""
    return Symbol(name, kind="variable", space=_space(other, place), bytes=size, binding=binding, defined=defined)


_TOOLS = (".nv.", "__UFT", "__UDT", "__nv_reservedSMEM")  # weak and undefined in every relocatable object from sm_90 on


def _space(other: int, section: str) -> Space:
    """A relocatable object says it in st_other; an image only by the section."""
    if said := _SPACES.get(other & 0xE0):
        return said
    for start, space in _SECTION_SPACES:
        if section.startswith(start):
            return space
    return ""


_SECTION_SPACES: tuple[tuple[str, Space], ...] = (
    (".nv.global", "global"),
    (".nv.constant", "constant"),
    (".nv.shared", "shared"),
    (".nv.local", "local"),
)


def _gather(file: _File, section: _Section, names: list[str]) -> None:
    """`.nv.info` holds (symbol index, value) pairs of all functions, `.nv.info.K` the attributes of K."""
    kernel = section.name.removeprefix(".nv.info").removeprefix(".")
    for attribute, value in _attributes(file.data, section):
        if kernel and attribute in (_MAX_THREADS, _REQNTID):
            file.of(kernel).threads = prod(struct.unpack_from("<3I", value))
        elif kernel and attribute == _BARRIERS:
            file.of(kernel).barriers = value[0]
        elif not kernel and attribute in (_REGISTERS, _FRAME_SIZE, _MIN_STACK):
            number, amount = struct.unpack_from("<2I", value)
            facts = file.of(names[number])
            if attribute == _REGISTERS:
                facts.registers = amount
            elif attribute == _FRAME_SIZE:
                facts.frame = amount
            else:
                facts.stack = amount


def _attributes(data: bytes, section: _Section) -> Iterator[tuple[int, bytes]]:
    """(attribute, value): a format byte, the attribute, two bytes of value, or of length where the format is 4 (EIFMT_SVAL)."""
    place, end = section.offset, section.offset + section.size
    while place + 4 <= end:
        form, attribute, amount = struct.unpack_from("<BBH", data, place)
        length = amount if form == 4 else 0
        yield attribute, data[place + 4 : place + 4 + length] if length else data[place + 2 : place + 4]
        place += 4 + length


def _kernels(file: _File, symbols: list[str], *, banks: dict[str, list[tuple[int, int]]], reserved: int) -> tuple[KernelResources, ...]:
    shared = {section.name.removeprefix(".nv.shared."): section.size for section in file.sections if section.name.startswith(".nv.shared.")}
    code = {section.name.removeprefix(".text."): section.size for section in file.sections if section.name.startswith(".text.")}
    found = []
    for symbol in sorted(symbols):
        facts = file.of(symbol)
        stack = facts.stack if facts.stack is not None else facts.frame
        found.append(
            KernelResources(
                symbol=symbol,
                registers=facts.registers,
                stack_bytes=None if stack == _UNKNOWN_STACK else stack,
                shared_bytes=max(shared.get(symbol, 0) - reserved, 0),
                constants=tuple(sorted(banks.get(symbol, []))),
                max_threads=facts.threads,
                barriers=facts.barriers,
                code_bytes=code.get(symbol),
            )
        )
    return tuple(found)


def _banks(sections: list[_Section]) -> dict[str, list[tuple[int, int]]]:
    """(bank, bytes) by kernel; under "" what all share. `.nv.constant0.K` is one kernel's, `.nv.constant3` the module's."""
    banks: dict[str, list[tuple[int, int]]] = {}
    for section in sections:
        number, _, kernel = section.name.removeprefix(".nv.constant").partition(".")
        if section.name.startswith(".nv.constant") and number.isdigit():
            banks.setdefault(kernel, []).append((int(number), section.size))
    return banks
