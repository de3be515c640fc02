"""Writing a whole-program cubin from pieces: the places, numbers and names that ptxas 13.5 gives them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from scons_gpu.link.pieces import MAIN, MERCURY
from scons_gpu.link.sections import MERCURY_TEXT, NOBITS, SAME, ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scons_gpu.link.pieces import Part, Section, Symbol, Whole

__all__ = ["write"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_WORD, _LONG = struct.Struct("<I"), struct.Struct("<Q")
_LOAD, _PROGRAMS = 1, 6  # PT_LOAD, PT_PHDR
_WRITE, _ALLOCATE, _EXECUTE = 1, 2, 4  # SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR
_MERCURY = 0x10000000  # sh_flags of `.nv.merc.…`
_MERCURY_CODE = f"{MERCURY_TEXT}."
_FORMS = {
    f"{form}{name}": name
    for form in ("", ".nv.merc")
    for name in (".nv.info", ".debug_frame", ".rela.debug_frame", ".rel.debug_frame", ".nv.callgraph")
}
"""Sections of the file that functions have parts of, and what each is, in either form."""
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
        self._indexes |= {old: self._indexes[id(symbol)] for old, symbol in whole.moved.items() if id(symbol) in self._indexes}
        if whole.head.older:
            names, self._sections_at = _listed(self._all_names(".shstrtab"))
            strings, self._symbols_at = _listed(self._all_names(".strtab"))
        else:
            names, self._sections_at = _listed(section.name for section in self._sections)
            names += bytes(whole.head.tail)
            strings, self._symbols_at = _strings(symbol for symbols in self._symbols.values() for symbol in symbols)
        self._tables = {".shstrtab": names, ".strtab": strings}
        self._tables |= {table: self._table(symbols) for table, symbols in self._symbols.items()}

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
        head = self._whole.head
        chunks, headers, end = self._placed()
        gap = -end % 8 if head.older else 0
        start = end + gap
        chunks.append(bytes(gap))
        chunks += self._headers(headers)
        segments = _segments(headers, older=head.older)
        programs, length = start + _SECTION.size * len(headers), _PROGRAM.size * (len(segments) + 2)
        own = (5 if head.older else 4, programs, length, length)
        segments = [*segments, own] if head.older else [own, *segments]
        for kind, (flags, offset, in_file, in_memory) in ((_PROGRAMS, own), *((_LOAD, each) for each in segments)):
            chunks.append(_PROGRAM.pack(kind, flags, offset, 0, 0, in_file, in_memory, 8))
        sizes = (_HEADER.size, _PROGRAM.size, len(segments) + 1, _SECTION.size, len(headers), self._numbers[".shstrtab"])
        chunks[0] = _HEADER.pack(head.ident, head.kind, head.machine, head.version, 0, programs, start, head.flags, *sizes)
        return b"".join(chunks)

    def _placed(self) -> tuple[list[bytes], list[tuple[Section, int, int]], int]:
        """Bytes of header and sections, sections with their places and sizes, and where the last one ends."""
        chunks, at = [b""], _HEADER.size
        headers: list[tuple[Section, int, int]] = []
        for section in self._sections:
            if section.name in SAME:
                twin = headers[self._numbers[SAME[section.name]]]
                headers.append((section, twin[1], twin[2]))
                continue
            data = self._content(section)
            if section.align > 1 and (gap := -at % section.align):
                chunks.append(bytes(gap))
                at += gap
            headers.append((section, at, section.size if section.type in NOBITS else len(data)))
            chunks.append(data)
            at += len(data)
        headers[0] = (self._sections[0], 0, 0)
        return chunks, headers, at

    def _headers(self, headers: Iterable[tuple[Section, int, int]]) -> Iterator[bytes]:
        numbers, names, indexes = self._numbers, self._sections_at, self._indexes
        locals_ = {table: next(n for n in range(len(all_), 0, -1) if not all_[n - 1].info >> 4) for table, all_ in self._symbols.items()}
        for section, offset, size in headers:
            info = section.info
            if isinstance(info, str):
                value = numbers[info]
            elif isinstance(info, int):
                value = info or locals_.get(section.name, 0)
            else:
                value = indexes[id(info)] | section.high << 24
            name, link = names[section.name], numbers[section.link]
            yield _SECTION.pack(name, section.type, section.flags, 0, offset, size, link, value, section.align, section.entry)

    def _content(self, section: Section) -> bytes:
        name = section.name
        if (whole := self._tables.get(name)) is not None:
            return whole
        if section.kind == _MERCURY_CODE:
            return _WORD.pack(self._numbers[f".text{name.removeprefix(MERCURY_TEXT)}"]) + section.data[4:]
        data = self._fixed(section) if section.fixups else section.data
        return data if name not in _FORMS else self._composed(name, data)

    def _composed(self, name: str, own: bytes) -> bytes:
        """A section of the file: what is its own, and what functions have in it."""
        form = _FORMS[name]
        if form == ".nv.callgraph":  # behind the mark that opens them
            return own[:8] + b"".join(self._fixed(part) for _, part in self._parts(name)) + own[8:]
        parts = self._info_records(name) if form == ".nv.info" else self._frames(name) if form == ".debug_frame" else None
        return own + b"".join(self._frame_relocations(name) if parts is None else parts)

    def _fixed(self, section: Section | Part, moved: Iterable[int] = (), base: int = 0) -> bytes:
        """The bytes with indexes of this file, and what is moved by `base`."""
        data, indexes = bytearray(section.data), self._indexes
        for place, symbol in section.fixups:
            _WORD.pack_into(data, place, indexes[id(symbol)])
        for place in moved if base else ():
            _LONG.pack_into(data, place, _LONG.unpack_from(data, place)[0] + base)
        return bytes(data)

    def _parts(self, name: str, group: int = 0) -> Iterator[tuple[str, Part]]:
        for piece in self._whole.pieces:
            parts = piece.parts.get(name, ())
            if group < len(parts):
                yield piece.name, parts[group]

    def _frames(self, name: str) -> Iterator[bytes]:
        base = 0
        for _, part in self._parts(name):
            yield self._fixed(part, part.moved, base)
            base += len(part.data)

    def _frame_relocations(self, name: str) -> Iterator[bytes]:
        """The last function's first."""
        base, bases = 0, {}
        for owner, part in self._parts(name.replace(".rela", "").replace(".rel", "")):
            bases[owner] = base
            base += len(part.data)
        for owner, part in reversed(list(self._parts(name))):
            yield self._fixed(part, part.moved, bases[owner])

    def _info_records(self, name: str) -> Iterator[bytes]:
        """Registers and frames, the last function's first; then stacks, in order."""
        for _, part in reversed(list(self._parts(name))):
            yield self._fixed(part)
        for _, part in self._parts(name, 1):
            yield self._fixed(part)

    def _table(self, symbols: Sequence[Symbol]) -> bytes:
        numbers, names = self._numbers, self._symbols_at
        out = []
        for symbol in symbols:
            section = symbol.section
            index = section if isinstance(section, int) else numbers[section]
            out.append(_SYMBOL.pack(names[symbol.name], symbol.info, symbol.other, index, symbol.value, symbol.size))
        return b"".join(out)


def _listed(names: Iterable[str]) -> tuple[bytes, dict[str, int]]:
    """A table of names, and where each is in it: one that comes again stands once."""
    out, places, at = [b"\0"], {"": 0}, 1
    for name in names:
        if name not in places:
            places[name] = at
            out.append(name.encode() + b"\0")
            at += len(out[-1])
    return b"".join(out), places


def _strings(symbols: Iterable[Symbol]) -> tuple[bytes, dict[str, int]]:
    """The string table, and where each name is in it."""
    out, places, at = [b"\0"], {"": 0}, 1
    for symbol in symbols:
        if symbol.name not in places:
            places[symbol.name] = at
            out.append(symbol.name.encode() + b"\0")
            at += len(out[-1])
        if symbol.reserve:  # only symbols of the main table have any
            out.append(symbol.reserve)
            at += len(symbol.reserve)
    return b"".join(out), places


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
