"""Reading a whole-program cubin into pieces: each section and attribute is known by name, each number becomes what it means.

`whole_write.write` gives back the bytes of every file that is understood. Who merges checks that, so what this reader does not know of
cannot get lost.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from scons_gpu.assemble import cubin
from scons_gpu.errors import DamagedError, LinkError
from scons_gpu.link import attributes
from scons_gpu.link.pieces import MAIN, MERCURY, Head, Piece, Section, Symbol, Whole
from scons_gpu.link.sections import (
    ADDRESSES,
    BANKS,
    LAST,
    MERCURY_TEXT,
    NAMES,
    NOBITS,
    OF_FILE,
    OF_FUNCTION,
    PLACED,
    RELOCATIONS,
    TAIL,
)
from scons_gpu.link.shares import Shares
from scons_gpu.link.unknown import unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["read"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr, System V ABI
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_WORD = struct.Struct("<I")
_ABI = 8
_RESERVED = 0xFF00  # SHN_LORESERVE
_MARKS = 0xFFFFFFF0  # words of .nv.callgraph from here on are no indexes
_MOST = 4096  # bytes of alignment
_FUNCTION, _OF_SECTION = 2, 3  # STT_FUNC, STT_SECTION


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
        what = "a name is no text" if isinstance(error, UnicodeDecodeError) else str(error)
        msg = f"{label}: not a cubin that reads: {what}"
        raise DamagedError(msg) from None


class _Reader:
    def __init__(self, data: bytes, label: str) -> None:
        self._data, self._label = data, label
        ident, kind, machine, version, _, _, offset, flags, *_, count, names = _HEADER.unpack_from(data)
        if ident[8] != _ABI:
            unknown(label, f"ELF ABI version {ident[8]}")
        self._raw = [_SECTION.unpack_from(data, offset + number * _SECTION.size) for number in range(count)]
        start, size = self._raw[names][4:6]
        self._names = [self._text(start + raw[0]) for raw in self._raw]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        if len(self._numbers) != count:
            unknown(label, "two sections of one name")
        older = b"\0.symtab_shndx\0" in data[start : start + size]
        tail = 0 if older else size - 1 - sum(len(name.encode()) + 1 for name in self._names if name)
        self._head = Head(ident=ident, kind=kind, machine=machine, version=version, flags=flags, tail=tail, older=older)
        self._strings = self._raw[self._numbers[".strtab"]][4]
        self._tables = {table: self._symbols(table) for table in (MAIN, MERCURY) if table in self._numbers}

    def whole(self) -> Whole:
        """All of it."""
        sections = [self._section(number) for number in range(len(self._raw))]
        texts = [section.name.removeprefix(".text.") for section in sections if section.name.startswith(".text.")]
        pieces = {name: Piece(name) for name in texts}
        if not pieces:
            unknown(self._label, "no function")
        shared = self._sorted(sections, pieces)
        first, last = {}, {}
        for table, symbols in self._tables.items():
            first[table], last[table] = _Divided(self._label, table, pieces).divide(symbols)
        Shares(self._label, pieces).share({section.name: section for section in shared})
        names = {table: self._divide_names(table, pieces) for table in NAMES} if self._head.older else {}
        return Whole(label=self._label, head=self._head, pieces=list(pieces.values()), shared=shared, first=first, last=last, names=names)

    def _sorted(self, sections: Iterable[Section], pieces: Mapping[str, Piece]) -> list[Section]:
        """Gives functions their sections; those of the file are left."""
        shared: list[Section] = []
        piece = next(iter(pieces.values()))
        late = False
        for section in sections:
            owner = OF_FUNCTION.fullmatch(section.name)
            late = late or section.name in ADDRESSES
            section.kind = section.name.removesuffix(owner[1]) if owner else section.name
            if late and section.kind in LAST:
                section.kind = ".rel.debug_frame" if self._head.older else ".rela.debug_frame"
                shared.append(section)
            elif section.name in PLACED:
                piece.sections.append(section)
            elif section.name in OF_FILE or section.name in BANKS:
                shared.append(section)
            elif owner and owner[1] in pieces:
                if section.name.startswith(".nv.shared."):
                    piece = pieces[owner[1]]
                pieces[owner[1]].sections.append(section)
            else:
                unknown(self._label, f"section {section.name}")
        return shared

    def _text(self, place: int) -> str:
        return self._data[place : self._data.index(b"\0", place)].decode()

    def _symbols(self, table: str) -> list[Symbol]:
        """Names follow one another in the main table's order; a gap is a name that was taken back."""
        offset, size = self._raw[self._numbers[table]][4:6]
        found: list[Symbol] = []
        place = 1
        for at in range(offset, offset + size, _SYMBOL.size):
            name, info, other, index, value, length = _SYMBOL.unpack_from(self._data, at)
            section = index if index == 0 or index >= _RESERVED else self._names[index]
            if name > place and found and table == MAIN and not self._head.older:
                found[-1].reserve = self._data[self._strings + place : self._strings + name]
                place = name
            text = self._text(self._strings + name)
            place += len(text.encode()) + 1 if name == place else 0
            found.append(Symbol(text, info=info, other=other, section=section, value=value, size=length))
        return found

    def _section(self, number: int) -> Section:
        name = self._names[number]
        _, kind, flags, address, offset, size, link, info, align, entry = self._raw[number]
        if address or align > _MOST:
            unknown(self._label, f"section {name} at an address, or aligned to {align} bytes")
        filled = kind not in NOBITS and name not in NAMES and name not in self._tables
        data = self._data[offset : offset + size] if filled else b""
        if filled and len(data) != size:
            msg = f"section {name} ends behind the file"
            raise ValueError(msg)
        section = Section(name, kind, flags, align, entry, size, data, link=self._names[link])
        if name.startswith((".text.", MERCURY_TEXT)):
            section.info, section.high = self._tables[MAIN][info & 0xFFFFFF], info >> 24
        elif name not in self._tables and info:
            section.info = self._names[info]
        if name.startswith(MERCURY_TEXT) and self._numbers.get(f".text{name.removeprefix(MERCURY_TEXT)}") != _WORD.unpack_from(data)[0]:
            unknown(self._label, f"the head of {name}")
        symbols = self._tables.get(MERCURY if name.startswith(".nv.merc.") else MAIN, [])
        section.fixups = [(place, symbols[_WORD.unpack_from(data, place)[0]]) for place in self._indexes(section)]
        return section

    def _indexes(self, section: Section) -> Iterable[int]:
        """Where in its bytes indexes of symbols are."""
        if ".nv.info" in section.name:
            return self._in_attributes(section)
        if section.type in RELOCATIONS:
            return range(12, len(section.data), section.entry)
        if section.name.endswith(".nv.callgraph"):
            words = range(0, len(section.data), 4)
            return [place for place in words if 0 < _WORD.unpack_from(section.data, place)[0] < _MARKS]
        return ()

    def _in_attributes(self, section: Section) -> list[int]:
        try:
            return [place for start, end, number in attributes.records(section.data) for place in attributes.indexes(number, start, end)]
        except LookupError as error:
            unknown(self._label, f"{error.args[0]} in {section.name}")

    def _divide_names(self, table: str, pieces: Mapping[str, Piece]) -> tuple[list[str], list[str]]:
        """Gives each function its names: those of its sections and local symbols stand together, and so do those of its global ones."""
        offset, size = self._raw[self._numbers[table]][4:6]
        first: list[str] = []
        last: list[str] = []
        into = first
        for name in self._data[offset : offset + size].decode().split("\0")[1:-1]:
            function = name.removeprefix(".text.")
            if name in TAIL and into is not last:
                into = last
            elif function in pieces and function != name and into is not last:
                into = pieces[function].names.setdefault(table, [])
            elif name in pieces:
                into = pieces[name].names.setdefault(f"{table} global", [])
            into.append(name)
        return first, last


class _Divided:
    """A symbol table's way to its functions: local symbols stand behind that of the function's section, global ones behind its own."""

    def __init__(self, label: str, table: str, pieces: Mapping[str, Piece]) -> None:
        self._label, self._table, self._pieces = label, table, pieces
        self._first: list[Symbol] = []
        self._last: list[Symbol] = []

    def divide(self, symbols: Iterable[Symbol]) -> tuple[list[Symbol], list[Symbol]]:
        """What belongs to the file: before the functions' symbols, and between local and global ones."""
        into, globals_ = self._first, False
        for symbol in symbols:
            local = symbol.info >> 4 == 0
            if globals_ and local and symbol.name:
                into = self._behind(symbol)
            elif not local and symbol.name in self._pieces and symbol.info & 15 == _FUNCTION:
                into, globals_ = self._pieces[symbol.name].tables[self._table].globals, True
            elif local and symbol.info == _OF_SECTION and symbol.name.startswith(".text."):
                into = self._pieces[symbol.name.removeprefix(".text.")].tables[self._table].local
            elif local and symbol.name in TAIL:
                into = self._last
            elif not local and not globals_:
                unknown(self._label, f"symbol {symbol.name} before the first function's")
            into.append(symbol)
        return self._first, self._last

    def _behind(self, symbol: Symbol) -> list[Symbol]:
        owner = OF_FUNCTION.fullmatch(symbol.name)
        if owner is None or owner[1] not in self._pieces:
            unknown(self._label, f"symbol {symbol.name} behind the global ones")
        return self._pieces[owner[1]].tables[self._table].last
