"""Writing a whole-program cubin from pieces: the places, numbers and names that ptxas 13.5 gives them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from scons_gpu.link.pieces import MAIN, MERCURY
from scons_gpu.link.sections import MERCURY_TEXT, NOBITS, SAME, ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scons_gpu.link.pieces import Section, Symbol, Whole

__all__ = ["write"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_WORD, _LONG = struct.Struct("<I"), struct.Struct("<Q")
_LOAD, _PROGRAMS = 1, 6  # PT_LOAD, PT_PHDR
_WRITE, _ALLOCATE, _EXECUTE = 1, 2, 4  # SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR
_MERCURY = 0x10000000  # sh_flags of `.nv.merc.…`
_RANKS = {older: ranks(older=older) for older in (False, True)}


def write(whole: Whole) -> bytes:
    """The file that its pieces make."""
    return _Writer(whole).file()


class _Writer:
    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        sections = [*whole.shared, *(section for piece in whole.pieces for section in piece.sections)]
        places = _RANKS[whole.head.older]
        self._sections = sorted(
            sections, key=lambda section: places.get(section.kind, len(places))
        )  # stable: in one kind they stay as they come
        self._numbers = {section.name: number for number, section in enumerate(self._sections)}
        self._symbols = {table: self._ordered(table) for table in (MAIN, MERCURY) if table in self._numbers}
        self._indexes = {id(symbol): index for symbols in self._symbols.values() for index, symbol in enumerate(symbols)}
        if whole.head.older:
            self._names, self._sections_at = _listed(self._all_names(".shstrtab"))
            self._strings, self._symbols_at = _listed(self._all_names(".strtab"))
        else:
            self._names, self._sections_at = _listed(section.name for section in self._sections)
            self._names += bytes(whole.head.tail)
            self._strings, self._symbols_at = _strings(symbol for symbols in self._symbols.values() for symbol in symbols)

    def _all_names(self, table: str) -> Iterator[str]:
        first, last = self._whole.names[table]
        yield from first
        for piece in self._whole.pieces:
            yield from piece.names.get(table, ())
        yield from last
        for piece in self._whole.pieces:
            yield from piece.names.get(f"{table} global", ())

    def _ordered(self, table: str) -> list[Symbol]:
        tables = [piece.tables[table] for piece in self._whole.pieces]
        return [
            *self._whole.first[table],
            *(symbol for each in tables for symbol in each.local),
            *self._whole.last[table],
            *(symbol for each in tables for symbol in each.globals),
            *(symbol for each in tables for symbol in each.last),
        ]

    def file(self) -> bytes:
        """Header, sections, their headers, segments."""
        out = bytearray(_HEADER.size)
        headers: list[tuple[Section, int, int]] = []
        for section in self._sections:
            if section.name in SAME:
                twin = headers[self._numbers[SAME[section.name]]]
                headers.append((section, twin[1], twin[2]))
                continue
            data = self._content(section)
            size = section.size if section.type in NOBITS else len(data)
            out += bytes(-len(out) % max(section.align, 1))
            headers.append((section, len(out), size))
            out += data
        headers[0] = (self._sections[0], 0, 0)
        out += bytes(-len(out) % 8 if self._whole.head.older else 0)
        start = len(out)
        for section, offset, size in headers:
            name = self._sections_at[section.name]
            link, info = self._numbers[section.link], self._info(section)
            out += _SECTION.pack(name, section.type, section.flags, 0, offset, size, link, info, section.align, section.entry)
        head = self._whole.head
        segments = _segments(headers, older=head.older)
        programs, length = len(out), _PROGRAM.size * (len(segments) + 2)
        own = (5 if head.older else 4, programs, length, length)
        segments = [*segments, own] if head.older else [own, *segments]
        for kind, (flags, offset, in_file, in_memory) in ((_PROGRAMS, own), *((_LOAD, each) for each in segments)):
            out += _PROGRAM.pack(kind, flags, offset, 0, 0, in_file, in_memory, 8)
        sizes = (_HEADER.size, _PROGRAM.size, len(segments) + 1, _SECTION.size, len(headers), self._numbers[".shstrtab"])
        _HEADER.pack_into(out, 0, head.ident, head.kind, head.machine, head.version, 0, programs, start, head.flags, *sizes)
        return bytes(out)

    def _content(self, section: Section) -> bytes:
        if section.name == ".shstrtab":
            return self._names
        if section.name == ".strtab":
            return self._strings
        if section.name in self._symbols:
            return self._table(self._symbols[section.name])
        out = bytearray()
        if section.name.startswith(MERCURY_TEXT):
            return _WORD.pack(self._numbers[f".text{section.name.removeprefix(MERCURY_TEXT)}"]) + section.data[4:]
        if section.data or section.fixups:
            out += self._fixed(section)
        kind = section.name.removeprefix(".nv.merc")
        if kind == ".nv.info":
            self._info_records(section.name, out)
        elif kind == ".debug_frame":
            self._frames(section.name, out)
        elif kind in {".rela.debug_frame", ".rel.debug_frame"}:
            self._frame_relocations(section.name, out)
        elif kind == ".nv.callgraph":
            out[8:8] = b"".join(bytes(self._fixed(part)) for _, part in self._parts(section.name))  # behind the mark that opens them
        return bytes(out)

    def _fixed(self, section: Section, base: int | None = None) -> bytearray:
        """The bytes with indexes of this file, and what is moved by `base`."""
        data = bytearray(section.data)
        for place, symbol in section.fixups:
            _WORD.pack_into(data, place, self._indexes[id(symbol)])
        for place in section.moved if base else ():
            _LONG.pack_into(data, place, _LONG.unpack_from(data, place)[0] + (base or 0))
        return data

    def _parts(self, name: str, group: int = 0) -> Iterator[tuple[str, Section]]:
        for piece in self._whole.pieces:
            parts = piece.parts.get(name, ())
            if group < len(parts):
                yield piece.name, parts[group]

    def _frames(self, name: str, out: bytearray) -> None:
        for _, part in self._parts(name):
            out += self._fixed(part, len(out))

    def _frame_relocations(self, name: str, out: bytearray) -> None:
        """The last function's first."""
        base, bases = 0, {}
        for owner, part in self._parts(name.replace(".rela", "").replace(".rel", "")):
            bases[owner] = base
            base += len(part.data)
        for owner, part in reversed(list(self._parts(name))):
            out += self._fixed(part, bases[owner])

    def _info_records(self, name: str, out: bytearray) -> None:
        """Registers and frames, the last function's first; then stacks, in order."""
        for _, part in reversed(list(self._parts(name))):
            out += self._fixed(part)
        for _, part in self._parts(name, 1):
            out += self._fixed(part)

    def _info(self, section: Section) -> int:
        if isinstance(section.info, str):
            return self._numbers[section.info]
        if section.name in self._symbols:
            symbols = self._symbols[section.name]
            last = len(symbols) - 1
            while symbols[last].info >> 4:
                last -= 1
            return last + 1
        return section.info if isinstance(section.info, int) else self._indexes[id(section.info)] | section.high << 24

    def _table(self, symbols: Sequence[Symbol]) -> bytes:
        out = bytearray()
        for symbol in symbols:
            index = symbol.section if isinstance(symbol.section, int) else self._numbers[symbol.section]
            out += _SYMBOL.pack(self._symbols_at[symbol.name], symbol.info, symbol.other, index, symbol.value, symbol.size)
        return bytes(out)


def _listed(names: Iterable[str]) -> tuple[bytes, dict[str, int]]:
    """A table of names, and where each is in it: one that comes again stands once."""
    out, places = bytearray(1), {"": 0}
    for name in names:
        if name not in places:
            places[name] = len(out)
            out += name.encode() + b"\0"
    return bytes(out), places


def _strings(symbols: Iterable[Symbol]) -> tuple[bytes, dict[str, int]]:
    """The string table, and where each name is in it."""
    out, places = bytearray(1), {"": 0}
    for symbol in symbols:
        if symbol.name not in places:
            places[symbol.name] = len(out)
            out += symbol.name.encode() + b"\0"
        out += symbol.reserve  # only symbols of the main table have any
    return bytes(out), places


def _segments(headers: Iterable[tuple[Section, int, int]], *, older: bool) -> list[tuple[int, int, int, int]]:
    """(flags, offset, bytes in the file, in memory) of each run of sections that are loaded alike."""
    found: list[list[int]] = []
    last = 0
    for section, offset, size in headers:
        flags = section.flags & (_WRITE | _ALLOCATE | _EXECUTE)
        if older and flags == _ALLOCATE:
            flags |= _EXECUTE  # constants and code are one
        if not flags & _ALLOCATE or section.flags & _MERCURY:
            last = 0
            continue
        if flags != last:
            found.append([4 | (flags & _WRITE) << 1 | (flags & _EXECUTE) >> 2, offset, 0, 0])
        last, run = flags, found[-1]
        run[2] = offset - run[1] + (0 if section.type in NOBITS else size)
        run[3] += -run[3] % max(section.align, 1) if section.type in NOBITS else offset - run[1] - run[3]
        run[3] += size
    return [(flags, offset, in_file, in_memory) for flags, offset, in_file, in_memory in found]
