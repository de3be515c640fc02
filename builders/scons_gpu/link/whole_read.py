"""Reading a whole-program cubin into pieces, each section and attribute known by name, each number resolved to what it means.

The format is ELF64 with NVIDIA's own sections. What a section holds was read off files of ptxas 13.5 (ELF ABI version 8) that differ in
one kernel, one feature or the order of kernels. `whole_write.write` gives back the bytes of every file that is understood: who merges
checks that, so that what this reader does not know of cannot get lost.
"""

from __future__ import annotations

import bisect
import re
import struct
from typing import TYPE_CHECKING

from scons_gpu.assemble import cubin
from scons_gpu.errors import DamagedError, LinkError
from scons_gpu.link import attributes
from scons_gpu.link.pieces import MAIN, MERCURY, Head, Piece, Section, Symbol, Whole

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["NOBITS", "PLACED", "SAME", "UnknownError", "has_memory", "holds_memory", "read"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr, System V ABI
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_WORD = struct.Struct("<I")
_LONG = struct.Struct("<Q")
_ABI = 8
NOBITS = frozenset({8, 0x70000015})  # SHT_NOBITS; and its kind of `.nv.merc.nv.shared.reserved.0`
_RELOCATIONS = frozenset({4, 9, 0x70000082})  # SHT_RELA, SHT_REL, and that of `.nv.merc.rela.…`
_RESERVED = 0xFF00  # SHN_LORESERVE
_DWARF64, _COMMON = b"\xff" * 4, 2**64 - 1  # an entry with lengths of eight bytes; the id of a common one
_FUNCTION = 2  # STT_FUNC
_OF_FUNCTION = re.compile(
    r"(?:\.nv\.info|\.rela?\.text|\.rela?\.nv\.constant2|\.text|\.nv\.shared|\.nv\.constant[02]|\.nv\.merc\.nv\.info|\.nv\.merc\.rela\.text|\.nv\.merc\.rela\.nv\.constant2|\.nv\.merc\.nv\.constant2|\.nv\.capmerc\.text)\.(?!reserved\.)(.+)"
)
_OF_FILE = frozenset(
    {
        *("", ".shstrtab", ".strtab", MAIN, MERCURY, ".note.nv.tkinfo", ".note.nv.cuinfo", ".nv.compat"),
        *(".nv.info", ".nv.callgraph", ".debug_frame", ".rela.debug_frame", ".nv.shared.reserved.0"),
        *(".rel.debug_frame", ".nv.rel.action"),
        *(
            ".nv.merc.nv.info",
            ".nv.merc.nv.callgraph",
            ".nv.merc.debug_frame",
            ".nv.merc.rela.debug_frame",
            ".nv.merc.nv.shared.reserved.0",
        ),
    }
)
_BANKS = frozenset(
    {
        *(".nv.constant3", ".nv.constant4", ".nv.global.init", ".rela.nv.constant4", ".rela.nv.global.init"),
        *(".rel.nv.constant4", ".rel.nv.global.init"),
        *(".nv.merc.nv.constant.pic", ".nv.merc.nv.constant.user", ".nv.merc.nv.global.init", ".nv.merc.rela.nv.constant.pic"),
    }
)
SAME = {
    ".nv.merc.nv.constant.pic": ".nv.constant4",
    ".nv.merc.nv.constant.user": ".nv.constant3",
    ".nv.merc.nv.global.init": ".nv.global.init",
    ".nv.merc.nv_debug_ptx_txt": ".nv_debug_ptx_txt",
}
"""Sections whose bytes are those of another one, at its place in the file."""
PLACED = frozenset({".nv.shared.reserved.0", ".nv.global", ".nv.merc.nv.shared.reserved.0", ".nv.merc.nv.global"})
"""Sections of the file that stand among those of functions: behind the shared memory of the first."""
_MERCURY_TEXT = ".nv.capmerc.text"
_NAMES = (".shstrtab", ".strtab")
_TAIL = frozenset({".debug_frame", ".nv.callgraph", ".nv.rel.action"})
"""Sections of the file that have a symbol behind the functions' local ones."""


def has_memory(section: str) -> bool:
    """Whether this section is memory of the module, or addresses of it: then its layout is in the code of all who use it."""
    return section in _BANKS or section == ".nv.global"


def holds_memory(data: bytes) -> bool:
    """Whether an object has such a section, by its table of names: what has none of them there has none at all."""
    return any(name in data for name in (b"\0.nv.constant3\0", b"\0.nv.constant4\0", b"\0.nv.global\0", b"\0.nv.global.init\0"))


class UnknownError(LinkError):
    """A cubin holds something that is not known, so it cannot be merged."""


def read(data: bytes, *, label: str) -> Whole:
    """The pieces of a cubin; `label` is what messages call it.

    Raises DamagedError for what is no cubin, or is cut short, and UnknownError, with its name, for what is not known.
    """
    head = cubin.head(data)
    if isinstance(head, str):
        msg = f"{label}: {head}"
        raise DamagedError(msg)
    if head.relocatable:
        msg = f"{label} is relocatable: it was assembled with -c"
        raise LinkError(msg)
    try:
        return _Reader(data, label).whole()
    except (struct.error, IndexError, ValueError, KeyError) as error:
        if isinstance(error, UnicodeDecodeError):
            error = ValueError("a name is no text")
        msg = f"{label}: not a cubin that reads: {error}"
        raise DamagedError(msg) from None


class _Reader:
    def __init__(self, data: bytes, label: str) -> None:
        self._data = data
        self._label = label
        ident, kind, machine, version, _, _, self._offset, flags, *_, count, names = _HEADER.unpack_from(data)
        if ident[8] != _ABI:
            raise self._unknown(f"ELF ABI version {ident[8]}")
        self._raw = [_SECTION.unpack_from(data, self._offset + number * _SECTION.size) for number in range(count)]
        start = self._raw[names][4]
        self._names = [self._text(start + raw[0]) for raw in self._raw]
        if len(set(self._names)) != count:
            raise self._unknown("two sections of one name")
        used = 1 + sum(len(name.encode()) + 1 for name in self._names if name)
        size = self._raw[names][5]
        older = b"\0.symtab_shndx\0" in data[start : start + size]
        self._head = Head(
            ident=ident, kind=kind, machine=machine, version=version, flags=flags, tail=0 if older else size - used, older=older
        )
        self._strings = self._raw[self._names.index(".strtab")][4]
        self._tables: dict[str, list[Symbol]] = {}
        self._pieces: dict[str, Piece] = {}
        self._by_name: dict[str, Section] = {}

    def whole(self) -> Whole:
        for table in (MAIN, MERCURY):
            if table in self._names:
                self._tables[table] = self._symbols(table)
        sections = [self._section(number) for number in range(len(self._raw))]
        self._by_name = {section.name: section for section in sections}
        shared: list[Section] = []
        for section in sections:
            if section.name.startswith(".text."):
                self._pieces[section.name.removeprefix(".text.")] = Piece(section.name.removeprefix(".text."))
        piece = next(iter(self._pieces.values()), None)
        if piece is None:
            raise self._unknown("no function")
        for section in sections:
            if section.name.startswith(".nv.shared.") and section.name.removeprefix(".nv.shared.") in self._pieces:
                piece = self._pieces[section.name.removeprefix(".nv.shared.")]
            if section.name in PLACED:
                piece.sections.append(section)
            elif section.name in _OF_FILE or section.name in _BANKS:
                shared.append(section)
            elif (found := _OF_FUNCTION.fullmatch(section.name)) and found[1] in self._pieces:
                self._pieces[found[1]].sections.append(section)
            else:
                raise self._unknown(f"section {section.name}")
        first, last = {}, {}
        for name, symbols in self._tables.items():
            first[name], last[name] = self._divide(name, symbols)
        for section in shared:
            self._share(section)
        pieces = list(self._pieces.values())
        whole = Whole(label=self._label, head=self._head, pieces=pieces, shared=shared, first=first, last=last)
        if self._head.older:
            whole.names = {name: self._divide_names(name) for name in _NAMES}
        return whole

    def _divide_names(self, table: str) -> tuple[list[str], list[str]]:
        """Gives each function its names: those of its sections and local symbols stand together, and so do those of its global ones."""
        raw = self._raw[self._names.index(table)]
        names = self._data[raw[4] : raw[4] + raw[5]].decode().split("\0")[1:-1]
        first: list[str] = []
        last: list[str] = []
        into = first
        for name in names:
            function = name.removeprefix(".text.")
            if name in _TAIL and into is not last:
                into = last
            elif function in self._pieces and function != name and into is not last:
                into = self._pieces[function].names.setdefault(table, [])
            elif function in self._pieces and function == name:
                into = self._pieces[function].names.setdefault(f"{table} global", [])
            into.append(name)
        return first, last

    def _unknown(self, what: str) -> UnknownError:
        return UnknownError(f"{self._label} holds what merging does not know: {what}", hint="GPU_LINK=image links it")

    def _text(self, place: int) -> str:
        return self._data[place : self._data.index(b"\0", place)].decode()

    def _symbols(self, table: str) -> list[Symbol]:
        _, _, _, _, offset, size, *_ = self._raw[self._names.index(table)]
        found, place = [], 1
        for at in range(offset, offset + size, _SYMBOL.size):
            name, info, other, index, value, length = _SYMBOL.unpack_from(self._data, at)
            section = index if index == 0 or index >= _RESERVED else self._names[index]
            if name > place and found and table == MAIN and not self._head.older:
                found[-1].reserve = self._data[self._strings + place : self._strings + name]
                place = name
            text = self._text(self._strings + name)
            if name == place:
                place += len(text.encode()) + 1
            found.append(Symbol(text, info=info, other=other, section=section, value=value, size=length))
        return found

    def _section(self, number: int) -> Section:
        name = self._names[number]
        _, kind, flags, address, offset, size, link, info, align, entry = self._raw[number]
        if address:
            raise self._unknown(f"section {name} at an address")
        data = b""
        if kind not in NOBITS and name not in _NAMES and name not in self._tables:
            data = self._data[offset : offset + size]
            if len(data) != size:
                msg = f"section {name} ends behind the file"
                raise ValueError(msg)
        section = Section(name, kind, flags, align, entry, size, data, link=self._names[link])
        table = MERCURY if name.startswith((".nv.merc.", ".nv.capmerc.")) else MAIN
        if name.startswith((".text.", ".nv.capmerc.text.")):
            section.info, section.high = self._tables[MAIN][info & 0xFFFFFF], info >> 24
        elif name in self._tables or not info:
            section.info = 0
        else:
            section.info = self._names[info]
        if name.startswith(".nv.capmerc.text.") and _WORD.unpack_from(data)[0] != self._names.index(
            f".text{name.removeprefix(_MERCURY_TEXT)}"
        ):
            raise self._unknown(f"the head of {name}")
        section.fixups = self._fixups(section, self._tables.get(table, []))
        return section

    def _fixups(self, section: Section, symbols: list[Symbol]) -> list[tuple[int, Symbol]]:
        name, data = section.name, section.data
        if ".nv.info" in name:
            places: Iterable[int] = self._in_attributes(section)
        elif section.type in _RELOCATIONS:
            places = range(12, len(data), section.entry)
        elif name.endswith(".nv.callgraph"):
            places = [place for place in range(0, len(data), 4) if 0 < _WORD.unpack_from(data, place)[0] < 0xFFFFFFF0]
        else:
            return []
        return [(place, symbols[_WORD.unpack_from(data, place)[0]]) for place in places]

    def _in_attributes(self, section: Section) -> list[int]:
        try:
            return [place for start, end, number in attributes.records(section.data) for place in attributes.indexes(number, start, end)]
        except LookupError as error:
            raise self._unknown(f"{error.args[0]} in {section.name}") from None

    def _divide(self, table: str, symbols: list[Symbol]) -> tuple[list[Symbol], list[Symbol]]:
        """Gives each function its symbols: local ones stand behind that of its section, global ones behind its own."""
        first: list[Symbol] = []
        last: list[Symbol] = []
        piece: Piece | None = None
        state = "first"
        for symbol in symbols:
            local = symbol.info >> 4 == 0
            if state in {"first", "local"} and local and symbol.name.startswith(".text.") and symbol.info == 3:
                piece, state = self._pieces[symbol.name.removeprefix(".text.")], "local"
            elif state == "local" and symbol.name in _TAIL:
                state = "last"
            elif state in {"local", "last"} and not local:
                state, piece = "global", None
            if state == "global" and local and symbol.name:
                state = "behind"
            if state == "global" and symbol.name in self._pieces and symbol.info & 15 == _FUNCTION:
                piece = self._pieces[symbol.name]
            if state == "first":
                first.append(symbol)
            elif state == "last":
                last.append(symbol)
            elif state == "behind":
                owner = _OF_FUNCTION.fullmatch(symbol.name)
                if owner is None:
                    raise self._unknown(f"symbol {symbol.name} behind the global ones")
                self._pieces[owner[1]].tables[table].last.append(symbol)
            elif piece is None:
                raise self._unknown(f"symbol {symbol.name} before the first function's")
            elif state == "local":
                piece.tables[table].local.append(symbol)
            else:
                piece.tables[table].globals.append(symbol)
        return first, last

    def _share(self, section: Section) -> None:
        """Gives each function its part of a section of the file; what is left stays."""
        name = section.name.removeprefix(".nv.merc")
        if name == ".nv.info":
            self._share_info(section)
        elif name == ".debug_frame":
            self._share_frames(section)
        elif name == ".nv.callgraph":
            self._share_calls(section)

    def _owner(self, symbol: Symbol) -> Piece:
        return self._pieces[str(symbol.section).removeprefix(".nv.capmerc").removeprefix(".text.")]

    def _part(self, owner: Piece, section: Section, group: int = 0) -> Section:
        parts = owner.parts.setdefault(section.name, [])
        while len(parts) <= group:
            parts.append(Section(section.name, section.type, section.flags, section.align, section.entry, 0, b""))
        return parts[group]

    def _give(self, part: Section, section: Section, start: int, end: int) -> int:
        """Moves bytes of the file's section behind those of the part; where they begin there."""
        begin = len(part.data)
        part.data += section.data[start:end]
        part.fixups += [(place - start + begin, symbol) for place, symbol in section.fixups if start <= place < end]
        part.size = len(part.data)
        return begin

    def _share_info(self, section: Section) -> None:
        for (start, end, number), (_, symbol) in zip(attributes.records(section.data), section.fixups, strict=True):
            self._give(self._part(self._owner(symbol), section, int(number == attributes.MIN_STACK_SIZE)), section, start, end)
        section.data, section.fixups = b"", []

    def _share_calls(self, section: Section) -> None:
        calls = dict(section.fixups)
        kept = bytearray()
        for place in range(0, len(section.data), 8):
            if place in calls:
                self._give(self._part(self._owner(calls[place]), section), section, place, place + 8)
            else:
                kept += section.data[place : place + 8]
        section.data, section.fixups = bytes(kept), []

    def _share_frames(self, section: Section) -> None:
        """An entry stands behind the common one that it refers to; the relocation of its address says whose it is."""
        kind = "rel" if self._head.older else "rela"
        relocations = self._by_name[section.name.replace("debug_frame", f"{kind}.debug_frame")]
        symbols = {_LONG.unpack_from(relocations.data, place - 12)[0]: symbol for place, symbol in relocations.fixups}
        chunks: list[tuple[int, int, int, Piece]] = []  # start, end, base in the owner's part, owner
        start = place = 0
        while place < len(section.data):
            end = place + 12 + _LONG.unpack_from(section.data, place + 4)[0]
            if section.data[place : place + 4] != _DWARF64 or end > len(section.data):
                raise self._unknown(f"an entry of {section.name}")
            common = _LONG.unpack_from(section.data, place + 12)[0]
            if common != _COMMON:
                if common != start or place + 20 not in symbols:
                    raise self._unknown(f"an entry of {section.name}")
                owner = self._owner(symbols[place + 20])
                part = self._part(owner, section)
                base = self._give(part, section, start, end)
                part.data = part.data[: base + place + 12 - start] + _LONG.pack(base) + part.data[base + place + 20 - start :]
                part.moved.append(base + place + 12 - start)
                chunks.append((start, end, base, owner))
                start = end
            place = end
        if start != place:
            raise self._unknown(f"an entry of {section.name}")
        section.data = b""
        self._share_relocations(relocations, chunks)

    def _share_relocations(self, section: Section, chunks: list[tuple[int, int, int, Piece]]) -> None:
        starts = [chunk[0] for chunk in chunks]
        for place, _ in section.fixups:
            offset = _LONG.unpack_from(section.data, place - 12)[0]
            start, end, base, owner = chunks[bisect.bisect(starts, offset) - 1]
            if offset >= end:
                raise self._unknown(f"a relocation of {section.name}")
            part = self._part(owner, section)
            at = self._give(part, section, place - 12, place + section.entry - 12)
            part.data = part.data[:at] + _LONG.pack(offset - start + base) + part.data[at + 8 :]
            part.moved.append(at)
        section.data, section.fixups = b"", []
