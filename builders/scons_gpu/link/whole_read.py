"""Reading a whole-program cubin into pieces: each section and attribute is known by name, each number becomes what it means.

`whole_write.write` gives back the bytes of every file that is understood. Who merges checks that, so what this reader does not know of
cannot get lost.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

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
from scons_gpu.link.texts import Texts
from scons_gpu.link.unknown import unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
_TEXT, _MERCURY_CODE = ".text.", f"{MERCURY_TEXT}."
_OF_FILE, _AMONG, _OWNED = range(3)
_ATTRIBUTES, _CALLS, _BY_TYPE = range(3)


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


class _Role(NamedTuple):
    """What reading has to know of sections of one kind: asked once, since a module has thousands of them."""

    place: int
    """Whose it is: `_OF_FILE`, `_AMONG` those of functions, or `_OWNED` by one."""
    filled: bool
    """Whether its bytes are its own, not names or symbols."""
    code: bool
    """Whether `sh_info` is a symbol and registers."""
    form: int
    """How indexes of symbols stand in its bytes: `_ATTRIBUTES`, `_CALLS`, or as its type says."""
    table: str
    """The symbol table that they are of."""
    late: bool
    """Whether behind it relocations of a function stand among those of the file, where they may."""
    may_be_late: bool


@lru_cache(maxsize=1024)
def _role(kind: str) -> _Role | None:
    """None for a kind of sections that merging does not know."""
    if kind in PLACED:
        place = _AMONG
    elif kind in OF_FILE or kind in BANKS:
        place = _OF_FILE
    elif kind.endswith(".") and OF_FUNCTION.fullmatch(f"{kind}x"):
        place = _OWNED
    else:
        return None
    return _Role(
        place=place,
        filled=kind not in NAMES and kind not in {MAIN, MERCURY},
        code=kind.startswith((".text.", MERCURY_TEXT)),
        form=_ATTRIBUTES if ".nv.info" in kind else _CALLS if kind.endswith(".nv.callgraph") else _BY_TYPE,
        table=MERCURY if kind.startswith(".nv.merc.") else MAIN,
        late=kind in ADDRESSES,
        may_be_late=kind in LAST,
    )


@lru_cache(maxsize=1024)
def _head(ident: bytes, kind: int, machine: int, version: int, flags: int, tail: int, older: bool) -> Head:  # noqa: FBT001, PLR0913, PLR0917 - its fields
    """Files that are merged have one."""
    return Head(ident=ident, kind=kind, machine=machine, version=version, flags=flags, tail=tail, older=older)


class _Reader:
    def __init__(self, data: bytes, label: str) -> None:
        self._data, self._label = data, label
        ident, kind, machine, version, _, _, offset, flags, *_, count, names = _HEADER.unpack_from(data)
        if ident[8] != _ABI:
            unknown(label, f"ELF ABI version {ident[8]}")
        self._raw = list(_SECTION.iter_unpack(data[offset : offset + count * _SECTION.size]))
        start, size = self._raw[names][4:6]
        self._texts = Texts(data, start, size)
        self._names = [self._texts.at(raw[0]) for raw in self._raw]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        if len(self._numbers) != count:
            unknown(label, "two sections of one name")
        older = b"\0.symtab_shndx\0" in data[start : start + size]
        tail = 0 if older else size - sum(len(name.encode()) + 1 for name in self._names)
        self._head = _head(ident, kind, machine, version, flags, tail, older)
        self._tables = {table: self._symbols(table) for table in (MAIN, MERCURY) if table in self._numbers}

    def whole(self) -> Whole:
        """All of it."""
        pieces = {name[len(_TEXT) :]: Piece(name[len(_TEXT) :]) for name in self._names if name.startswith(_TEXT)}
        if not pieces:
            unknown(self._label, "no function")
        shared = self._sections(pieces)
        first, last = {}, {}
        for table, symbols in self._tables.items():
            first[table], last[table] = _Divided(self._label, table, pieces).divide(symbols)
        Shares(self._label, pieces).share({section.name: section for section in shared})
        names = {table: self._divide_names(table, pieces) for table in NAMES} if self._head.older else {}
        return Whole(label=self._label, head=self._head, pieces=list(pieces.values()), shared=shared, first=first, last=last, names=names)

    def _sections(self, pieces: Mapping[str, Piece]) -> list[Section]:
        """Gives functions their sections; those of the file are left."""
        shared: list[Section] = []
        piece = next(iter(pieces.values()))
        late = False
        for number, name in enumerate(self._names):
            kind, role, owner = self._kind(name, pieces)
            section = self._section(number, kind, role)
            late = late or role.late
            if late and role.may_be_late:
                section.kind = ".rel.debug_frame" if self._head.older else ".rela.debug_frame"
                shared.append(section)
            elif owner is not None:
                if kind == ".nv.shared.":
                    piece = owner
                owner.sections.append(section)
            elif role.place == _AMONG:
                piece.sections.append(section)
            else:
                shared.append(section)
        return shared

    def _kind(self, name: str, pieces: Mapping[str, Piece]) -> tuple[str, _Role, Piece | None]:
        """Kind of a section, and the function that it belongs to."""
        start, _, owner = name.rpartition(".")
        if owner in pieces and (role := _role(kind := f"{start}.")):
            return kind, role, pieces[owner]
        if (role := _role(name)) and role.place != _OWNED:
            return name, role, None
        found = OF_FUNCTION.fullmatch(name)  # of a function with a point in its name
        role = _role(kind := name.removesuffix(found[1])) if found and found[1] in pieces else None
        if found is None or role is None:
            unknown(self._label, f"section {name}")
        return kind, role, pieces[found[1]]

    def _symbols(self, table: str) -> list[Symbol]:
        """Names follow one another in the main table's order; a gap is a name that was taken back."""
        offset, size = self._raw[self._numbers[table]][4:6]
        start, length = self._raw[self._numbers[".strtab"]][4:6]
        names, gaps = Texts(self._data, start, length), table == MAIN and not self._head.older
        found: list[Symbol] = []
        place = 1
        for name, info, other, index, value, amount in _SYMBOL.iter_unpack(self._data[offset : offset + size]):
            if name > place and found and gaps:
                found[-1].reserve = self._data[start + place : start + name]
                place = name
            text = names.at(name)
            if name == place:
                place += len(text.encode()) + 1
            section = index if index == 0 or index >= _RESERVED else self._names[index]
            found.append(Symbol(text, info, other, section, value, amount))
        return found

    def _section(self, number: int, kind: str, role: _Role) -> Section:
        name = self._names[number]
        _, type_, flags, address, offset, size, link, info, align, entry = self._raw[number]
        if address or align > _MOST:
            unknown(self._label, f"section {name} at an address, or aligned to {align} bytes")
        filled = role.filled and type_ not in NOBITS
        data = self._data[offset : offset + size] if filled else b""
        if filled and len(data) != size:
            msg = f"section {name} ends behind the file"
            raise ValueError(msg)
        section = Section(name, type_, flags, align, entry, size, data, self._names[link], 0, 0, kind)
        if role.code:
            section.info, section.high = self._tables[MAIN][info & 0xFFFFFF], info >> 24
            if kind == _MERCURY_CODE and self._numbers.get(f".text{name.removeprefix(MERCURY_TEXT)}") != _WORD.unpack_from(data)[0]:
                unknown(self._label, f"the head of {name}")
        elif info and name not in self._tables:
            section.info = self._names[info]
        if data and (role.form != _BY_TYPE or type_ in RELOCATIONS) and (places := self._indexes(section, role)):
            symbols = self._tables.get(role.table, ())
            section.fixups = [(place, symbols[_WORD.unpack_from(data, place)[0]]) for place in places]
        return section

    def _indexes(self, section: Section, role: _Role) -> Sequence[int]:
        """Where in its bytes indexes of symbols are."""
        if role.form == _ATTRIBUTES:
            try:
                return attributes.indexes(section.data)
            except attributes.UnknownAttributeError as error:
                unknown(self._label, f"{error} in {section.name}")
        if section.type in RELOCATIONS:
            return range(12, len(section.data), section.entry)
        if role.form == _CALLS:
            return [4 * number for number, (word,) in enumerate(_WORD.iter_unpack(section.data)) if 0 < word < _MARKS]
        return ()

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
