"""What `compare` reads from a cubin: kernels with what the loader is told of them, machine code, and what addresses in it stand for.

Section and attribute names are those that `cuobjdump -elf` prints; attribute numbers were read off the same output beside the raw bytes.
A second reader on purpose: `compare` is to find what link/elf.py reads wrongly, so it does not ask that. assemble/cubin.py, under it,
reads the head alone.
"""

from __future__ import annotations

import hashlib
import io
import re
import struct
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from scons_gpu.errors import DamagedError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Contract", "Cubin", "Place", "Resources", "stem"]

_CONSTANT3, _CONSTANT4 = ".nv.constant3", ".nv.constant4"
_OBJECT, _FUNC = 1, 2
_ENTRY = 0x10  # st_other: STO_CUDA_ENTRY
_SUFFIX = re.compile(r"(?:\.|_\$_|\$)[0-9a-f]{16}(?:(?:\.|_\$_)\d+)?$")

# EIATTR numbers of `.nv.info` (one of the whole file, one a kernel)
_MAX_THREADS, _REQNTID, _FRAME_SIZE, _MIN_STACK_SIZE, _KPARAM_INFO = 0x05, 0x10, 0x11, 0x12, 0x17
_CBANK_PARAM_SIZE, _MAXREG_COUNT, _REGCOUNT = 0x19, 0x1B, 0x2F
_NUM_BARRIERS, _CTA_PER_CLUSTER, _EXPLICIT_CLUSTER, _MAX_CLUSTER_RANK = 0x4C, 0x3D, 0x3E, 0x3F
_UNKNOWN = 0xFFFFFFFF
_CONTRACT = {
    _MAX_THREADS: "max threads",
    _REQNTID: "required threads",
    _KPARAM_INFO: "parameters",
    _CBANK_PARAM_SIZE: "parameter bytes",
    _MAXREG_COUNT: "register limit",
    _CTA_PER_CLUSTER: "cluster",
    _EXPLICIT_CLUSTER: "explicit cluster",
    _MAX_CLUSTER_RANK: "max cluster rank",
}


def stem(name: str) -> str:
    """A variable's name in its source: private state carries 16 hex digits of its definition in an image."""
    return _SUFFIX.sub("", name)


@dataclass(frozen=True)
class Contract:
    """What was promised of a kernel, and what a loader holds a launch against: parameters, launch bounds, clusters. Never differs."""

    fields: tuple[tuple[str, tuple[bytes, ...]], ...]

    def differs(self, other: Contract) -> tuple[str, ...]:
        """Names of the fields that are not equal."""
        mine, theirs = dict(self.fields), dict(other.fields)
        return tuple(sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)))


@dataclass(frozen=True)
class Resources:
    """What a kernel takes of the machine."""

    registers: int
    stack: int | None
    """Bytes per thread; None where the assembler could not tell, as with recursion."""
    shared: int
    """Static, in bytes, without what the system reserves."""
    barriers: int


@dataclass(frozen=True)
class Place:
    """What an address stands for: `bytes` behind the start of something that is told by content (`what`), and by name where it has one."""

    what: str
    name: str
    bytes: int
    function: bool = False
    functions: tuple[str, ...] = ()
    """Functions whose addresses lie in it, or in what it points to."""


@dataclass(frozen=True)
class _Symbol:
    name: str
    value: int
    size: int
    kind: int
    section: str
    entry: bool


@dataclass(frozen=True)
class _Relocation:
    offset: int
    type: int
    symbol: int
    addend: int


@dataclass
class Cubin:
    """One ELF file for one GPU architecture. Raises DamagedError for anything else."""

    data: bytes
    label: str = "cubin"
    sections: dict[str, bytes] = field(init=False)
    _sizes: dict[str, int] = field(init=False)
    _symbols: list[_Symbol] = field(init=False)
    _relocations: dict[str, list[_Relocation]] = field(init=False)

    def __post_init__(self) -> None:
        from elftools.common.exceptions import ELFError  # noqa: PLC0415 - only those who compare load it

        try:
            self._read()
        except (ELFError, struct.error, ValueError, KeyError, IndexError) as error:
            msg = f"{self.label}: not a cubin: {error}"
            raise DamagedError(msg) from None

    def _read(self) -> None:
        from elftools.elf.elffile import ELFFile  # noqa: PLC0415 - the same

        elf = ELFFile(io.BytesIO(self.data))
        headers = list(elf.iter_sections())
        names = [section.name for section in headers]
        self._sizes = {section.name: int(section["sh_size"]) for section in headers}
        self.sections = {section.name: section.data() for section in headers if section["sh_type"] != "SHT_NOBITS"}
        self._symbols = _symbols(self.sections.get(".symtab", b""), self.sections.get(".strtab", b""), names)
        self._relocations = {name: _relocations(name, data) for name, data in self.sections.items() if name.startswith((".rela.", ".rel."))}

    @cached_property
    def kernels(self) -> tuple[str, ...]:
        """Symbols of the entry points, sorted."""
        return tuple(sorted(symbol.name for symbol in self._symbols if symbol.entry and symbol.section))

    @cached_property
    def functions(self) -> tuple[str, ...]:
        """Symbols that have a text section of their own, in the file's order."""
        return tuple(name.removeprefix(".text.") for name in self.sections if name.startswith(".text."))

    def has_function(self, name: str) -> bool:
        """Whether `name` has a text section of its own."""
        return f".text.{name}" in self.sections

    def text(self, name: str) -> bytes:
        """Machine code of a function's section."""
        return self.sections[f".text.{name}"]

    def relocations(self, name: str) -> Mapping[int, tuple[tuple[int, Place], ...]]:
        """By offset in the function: (type, what is put there)."""
        found: dict[int, tuple[tuple[int, Place], ...]] = {}
        for one in self._of(f".text.{name}"):
            found[one.offset] = (*found.get(one.offset, ()), (one.type, self._target(one)))
        return found

    def literals(self, name: str) -> bytes:
        """Constant bank 2: the compiler's own literals of one function."""
        return self.sections.get(f".nv.constant2.{name}", b"")

    def constant(self, offset: int) -> Place | None:
        """What lies at an offset of constant bank 3."""
        for symbol in self._bank3:
            if symbol.value <= offset < symbol.value + symbol.size:
                return self._place(symbol, offset - symbol.value)
        return None

    def constants(self, name: str) -> Place | None:
        """What a symbol of constant bank 3 holds; `bytes` is its offset in the bank."""
        return next((Place(what=self._content(one), name=name, bytes=one.value) for one in self._bank3 if one.name == name), None)

    def alike(self, what: str) -> tuple[Place, ...]:
        """Every symbol of constant bank 3 that holds `what`; `bytes` is its offset in the bank."""
        found = (Place(what=self._content(one), name=one.name, bytes=one.value) for one in self._bank3)
        return tuple(place for place in found if place.what == what)

    @cached_property
    def _bank3(self) -> tuple[_Symbol, ...]:
        return tuple(symbol for symbol in self._symbols if symbol.section == _CONSTANT3 and symbol.kind == _OBJECT)

    def slot(self, offset: int) -> Place | None:
        """What the address at an offset of constant bank 4 leads to. Its upper half is read alone where an instruction is predicated."""
        low = self.slots.get(offset - 4)
        return self.slots.get(offset) or (replace(low, what=f"upper half of {low.what}") if low else None)

    @cached_property
    def slots(self) -> Mapping[int, Place]:
        """What the addresses in constant bank 4 lead to, by offset."""
        return {one.offset: self._target(one) for one in self._of(_CONSTANT4)}

    def contract(self, name: str) -> Contract:
        """What the kernel's own `.nv.info` promises."""
        found: dict[str, list[bytes]] = {}
        for number, value in self._info(f".nv.info.{name}"):
            if number in _CONTRACT:
                found.setdefault(_CONTRACT[number], []).append(value)
        return Contract(fields=tuple((key, tuple(sorted(found[key]))) for key in sorted(found)))

    def resources(self, name: str) -> Resources:
        """Registers and memory of a kernel."""
        index = next(index for index, symbol in enumerate(self._symbols) if symbol.name == name and symbol.kind == _FUNC)
        whole: dict[int, int] = {}
        for number, value in self._info(".nv.info"):
            if number in {_REGCOUNT, _FRAME_SIZE, _MIN_STACK_SIZE} and struct.unpack_from("<I", value)[0] == index:
                whole[number] = struct.unpack_from("<I", value, 4)[0]
        own = dict(self._info(f".nv.info.{name}"))
        stack = max(whole.get(_FRAME_SIZE, 0), whole.get(_MIN_STACK_SIZE, 0))
        return Resources(
            registers=whole.get(_REGCOUNT, -1),
            stack=None if stack == _UNKNOWN else stack,
            shared=max(0, self._sizes.get(f".nv.shared.{name}", 0) - self._reserved),
            barriers=int.from_bytes(own.get(_NUM_BARRIERS, b"\0"), "little"),
        )

    @cached_property
    def _reserved(self) -> int:
        """Shared memory of the system's own at the start of each block's: none before sm_90, 1 KiB since."""
        names = [*self._sizes, *(symbol.name for symbol in self._symbols)]
        return 1024 if any(name.startswith((".nv.reservedSmem", ".nv.shared.reserved")) for name in names) else 0

    def _info(self, section: str) -> list[tuple[int, bytes]]:
        """Attributes of a `.nv.info`: a format byte, a number, then a value whose length the format tells."""
        data, place, found = self.sections.get(section, b""), 0, []
        while place + 4 <= len(data):
            form, number, size = data[place], data[place + 1], int.from_bytes(data[place + 2 : place + 4], "little")
            long = form == 0x04  # EIFMT_SVAL: the half word is a length; else it is the value itself
            found.append((number, data[place + 4 : place + 4 + size] if long else data[place + 2 : place + 4]))
            place += 4 + (size if long else 0)
        return found

    def _of(self, section: str) -> list[_Relocation]:
        return [*self._relocations.get(f".rela{section}", []), *self._relocations.get(f".rel{section}", [])]

    def _target(self, relocation: _Relocation, depth: int = 0) -> Place:
        symbol = self._symbols[relocation.symbol]
        if symbol.kind == _FUNC or symbol.section.startswith(".text."):
            name = symbol.name.removeprefix(".text.") or symbol.section.removeprefix(".text.")
            return Place(what="function", name=name, bytes=relocation.addend, function=True)
        return self._place(symbol, relocation.addend, depth)

    def _place(self, symbol: _Symbol, offset: int, depth: int = 0) -> Place:
        return Place(what=self._content(symbol, depth), name=symbol.name, bytes=offset, functions=self._functions(symbol, depth))

    def _functions(self, symbol: _Symbol, depth: int) -> tuple[str, ...]:
        leads = [] if depth > 8 else [self._target(one, depth + 1) for one in self._inside(symbol)]
        return tuple(sorted({name for lead in leads for name in ((lead.name,) if lead.function else lead.functions)}))

    def _inside(self, symbol: _Symbol) -> list[_Relocation]:
        """What a linker or loader puts into an object."""
        return [one for one in self._of(symbol.section) if symbol.value <= one.offset < symbol.value + symbol.size]

    def _content(self, symbol: _Symbol, depth: int = 0) -> str:
        """Space, length and initial value with what it points to: objects of one content are one to a kernel that only reads."""
        data = self.sections.get(symbol.section, b"")[symbol.value : symbol.value + symbol.size]
        leads = [] if depth > 8 else sorted(self._lead(one, symbol, depth) for one in self._inside(symbol))  # a list may point to itself
        digest = hashlib.sha256(data.rstrip(b"\0") + repr(leads).encode()).hexdigest()[:16]
        space = next((name for name in ("constant", "global") if symbol.section.startswith(f".nv.{name}")), symbol.section)
        return f"{space}:{symbol.size}:{digest}"

    def _lead(self, relocation: _Relocation, symbol: _Symbol, depth: int) -> tuple[int, int, str, int]:
        target = self._target(relocation, depth + 1)
        return relocation.offset - symbol.value, relocation.type, target.name if target.function else target.what, target.bytes


def _symbols(table: bytes, strings: bytes, names: list[str]) -> list[_Symbol]:
    """ELF64 symbols. Read here because pyelftools leaves out the bit of `st_other` that marks an entry point."""
    found = []
    for place in range(0, len(table) - 23, 24):
        name, info, other, index, value, size = struct.unpack_from("<IBBHQQ", table, place)
        text = strings[name : strings.index(b"\0", name)].decode(errors="surrogateescape")
        section = names[index] if 0 < index < len(names) else ""
        kind = info & 0xF
        found.append(_Symbol(name=text, value=value, size=size, kind=kind, section=section, entry=kind == _FUNC and bool(other & _ENTRY)))
    return found


def _relocations(name: str, data: bytes) -> list[_Relocation]:
    """ELF64: offset, type and symbol in one word, and in `.rela` sections an addend."""
    size = 24 if name.startswith(".rela.") else 16
    found = []
    for place in range(0, len(data) - size + 1, size):
        offset, info = struct.unpack_from("<QQ", data, place)
        addend = struct.unpack_from("<q", data, place + 16)[0] if size == 24 else 0
        found.append(_Relocation(offset=offset, type=info & 0xFFFFFFFF, symbol=info >> 32, addend=addend))
    return found
