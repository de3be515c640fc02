"""Functions of one file take the places of functions of the same names in another.

What a function's own code and attributes are depends on its PTX and on where the module's memory lies, and on nothing else of its file. So
where that memory lies alike in two files, a function may be taken from either: the file gives the place, the order, the memory and what
stands in it once; the donor gives what is the function's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.link.pieces import MAIN, MERCURY, Piece, Section, Symbol, Table, Whole
from scons_gpu.link.sections import MEMORY, OF_FUNCTION
from scons_gpu.link.stubs import Traces
from scons_gpu.link.unknown import unknown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

__all__ = ["Grafted", "fits", "graft", "traces"]

_RESERVED = ".nv.reservedSmem.cap"
"""What the first kernel that uses shared memory has among its symbols, as one that went from sm_90 on."""

_ADDRESSES = (".rela.nv.constant4", ".rel.nv.constant4")
_TABLES = (MAIN, MERCURY)
_SECTION_FIRST = (".text.", ".nv.shared.", ".nv.capmerc.text.", ".nv.merc.nv.shared.")


def traces(donor: Whole, undefined: Mapping[str, bool]) -> dict[str, Traces] | None:
    """What each kernel of `undefined` leaves in its file; None where that cannot be said.

    `undefined` says of a kernel whether it uses shared arrays of the launch's size: the file does not tell.
    """
    found: dict[str, Traces] = {}
    asked = False
    for piece in donor.pieces:
        shared = undefined.get(piece.name, False) or any(symbol.name == f".nv.shared.{piece.name}" for symbol in piece.tables[MAIN].local)
        holds = any(
            _RESERVED in {symbol.name, symbol.reserve.decode(errors="replace").rstrip("\0")} for symbol in piece.tables[MAIN].globals
        )
        if piece.name in undefined and ((_refers(piece) and not shared) or (holds and not shared)):
            return None
        asked = asked or holds
        called = {symbol.name for part in piece.parts.get(".nv.callgraph", ()) for _, symbol in part.fixups if symbol.section == 0}
        found[piece.name] = Traces(frozenset(called), shared=shared)
    return {name: each for name, each in found.items() if name in undefined}


def _refers(piece: Piece) -> bool:
    return any(symbol.name == _RESERVED for section in piece.sections for _, symbol in section.fixups)


def fits(whole: Whole, donor: Whole) -> bool:
    """Whether functions of one may stand in the other: what their files have is equal, and addresses have the same slots of bank 4."""
    return whole.head == donor.head and _file(whole) == _file(donor)


def _file(whole: Whole) -> list[object]:
    symbols = [[(symbol.name, symbol.info) for symbol in (*whole.first.get(table, ()), *whole.last.get(table, ()))] for table in _TABLES]
    return [*symbols, *((each.name, each.type, each.flags, _meant(each)) for each in whole.shared)]


def _meant(section: Section) -> tuple[bytes, list[str]]:
    """Its bytes without the indexes of symbols, and the names of those."""
    data = bytearray(section.data)
    for place, _ in section.fixups:
        data[place : place + 4] = bytes(4)
    return bytes(data), [symbol.name for _, symbol in section.fixups]


@dataclass(frozen=True)
class Grafted:
    """A file with functions of another. Both are used up."""

    whole: Whole
    donor: Whole
    moved: Sequence[tuple[Symbol, Symbol]]
    """(Symbol of the donor, that of the file which it is now). It keeps the former: who goes by `id` must not meet another one of it."""


def graft(whole: Whole, donor: Whole, names: Collection[str]) -> Grafted:
    """Functions `names` of `donor` take their places in `whole`, which has one of each name."""
    pieces = {piece.name: piece for piece in donor.pieces}
    before = {table: list(_symbols(donor, table)) for table in _TABLES}
    kept: set[int] = set()
    for number, place in enumerate(whole.pieces):
        if place.name in names:
            mine = pieces[place.name]
            _take(whole, place, mine)
            whole.pieces[number] = mine
            kept |= {id(symbol) for table in _TABLES for symbol in _all(mine.tables[table])}
    moved: list[tuple[Symbol, Symbol]] = []
    for table in _TABLES:
        there = {symbol.name: symbol for symbol in _symbols(whole, table)}
        moved += [(symbol, there[symbol.name]) for symbol in before[table] if id(symbol) not in kept and symbol.name in there]
    known = kept.union(id(old) for old, _ in moved)
    for piece in whole.pieces:
        if piece.name in names and (lost := next((each for each in _references(piece) if id(each) not in known), None)):
            unknown(whole.label, f"a reference of {piece.name} to {lost.name}")
    return Grafted(whole, donor, moved)


def _references(piece: Piece) -> Iterator[Symbol]:
    for section in piece.sections:
        yield from (symbol for _, symbol in section.fixups)
        if isinstance(section.info, Symbol):
            yield section.info
    for parts in piece.parts.values():
        yield from (symbol for part in parts for _, symbol in part.fixups)


def _symbols(whole: Whole, table: str) -> Iterable[Symbol]:
    yield from whole.first.get(table, ())
    yield from whole.last.get(table, ())
    for piece in whole.pieces:
        yield from _all(piece.tables[table])


def _all(table: Table) -> list[Symbol]:
    return [*table.local, *table.globals, *table.last]


def _take(whole: Whole, place: Piece, mine: Piece) -> None:
    """What is the function's own stays in `mine`; what stands at its place for the file comes from there."""
    here, there = _of_file(place), _of_file(mine)
    mine.sections = [section for section in mine.sections if section.name not in there]
    mine.sections += [section for section in place.sections if section.name in here]
    for name in _TABLES:
        old, new = place.tables[name], mine.tables[name]
        new.local = _joined(
            [symbol for symbol in new.local if _own(symbol, mine)], [symbol for symbol in old.local if not _own(symbol, place)]
        )
        new.globals = [symbol for symbol in new.globals if _own(symbol, mine)] + [
            symbol for symbol in old.globals if not _own(symbol, place)
        ]
    if place.names.keys() != mine.names.keys():
        unknown(whole.label, f"the names of {place.name}")
    for table, names in place.names.items():
        own = [name for name in mine.names[table] if name not in there]
        where = next(
            (number + 1 for number, name in enumerate(own) if name.startswith(".nv.shared.")), 0 if "global" in table else len(own) - 1
        )
        own[max(where, 1) : max(where, 1)] = [name for name in names if name in here]
        mine.names[table] = own


def _of_file(piece: Piece) -> set[str]:
    """Names of what stands with this function and is the file's: memory, and what others define."""
    found = {section.name for section in piece.sections if not _owned(section.name, piece)}
    return found.union(symbol.name for table in _TABLES for symbol in _all(piece.tables[table]) if not _own(symbol, piece))


def _owned(section: str, piece: Piece) -> bool:
    return section not in MEMORY and section.endswith(f".{piece.name}") and OF_FUNCTION.fullmatch(section) is not None


def _own(symbol: Symbol, piece: Piece) -> bool:
    return isinstance(symbol.section, str) and _owned(symbol.section, piece)


def _joined(own: list[Symbol], ours: list[Symbol]) -> list[Symbol]:
    where = next((place for place, symbol in enumerate(own) if not symbol.name.startswith(_SECTION_FIRST)), len(own))
    return own[:where] + ours + own[where:]
