"""What each function has in the sections that a file has once: attributes, frames with their relocations, calls."""

from __future__ import annotations

import bisect
import struct
from typing import TYPE_CHECKING, NamedTuple

from scons_gpu.link import attributes
from scons_gpu.link.pieces import Part
from scons_gpu.link.unknown import unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scons_gpu.link.pieces import Piece, Section, Symbol

__all__ = ["Shares"]

_LONG, _ENTRY = struct.Struct("<Q"), struct.Struct("<4sQQ")
_DWARF64, _COMMON = b"\xff" * 4, 2**64 - 1  # an entry with lengths of eight bytes; the id of a common one
_ID, _START = 12, 20  # where in an entry what it refers to, and where its function begins, are
_INDEX = 12  # where in a relocation the index of its symbol is


class _Entry(NamedTuple):
    """One entry of .debug_frame with the common one before it."""

    start: int
    own: int
    """Where the common one ends."""
    end: int
    base: int
    """Where it begins in its function's part."""
    owner: Piece


class Shares:
    """Gives the functions of one file their parts of its sections."""

    def __init__(self, label: str, pieces: Mapping[str, Piece]) -> None:
        self._label, self._pieces = label, pieces
        self._owners: dict[str | int, Piece] = {
            f"{form}{name}": piece for name, piece in pieces.items() for form in (".text.", ".nv.capmerc.text.")
        }
        self._only = next(iter(pieces.values())) if len(pieces) == 1 else None

    def share(self, sections: Mapping[str, Section]) -> None:
        """What is left in the sections afterwards is the file's own. Raises UnknownError."""
        for name, section in sections.items():
            kind = name.removeprefix(".nv.merc")
            if kind == ".nv.info":
                self._info(section)
            elif kind == ".nv.callgraph":
                self._calls(section)
            elif kind == ".debug_frame":
                relocations = (sections.get(name.replace("debug_frame", f"{each}.debug_frame")) for each in ("rela", "rel"))
                self._frames(section, next(each for each in relocations if each))

    @staticmethod
    def _part(owner: Piece, section: Section, group: int = 0) -> Part:
        parts = owner.parts.setdefault(section.name, [])
        while len(parts) <= group:
            parts.append(Part())
        return parts[group]

    def _info(self, section: Section) -> None:
        """Registers and frames; and behind those of all functions, stacks."""
        indexes = dict(section.fixups)
        for start, end, number in attributes.records(section.data):
            if start + 4 not in indexes:
                unknown(self._label, f"attribute {number:#04x} in {section.name}")
            symbol = indexes[start + 4]
            part = self._part(self._owners[symbol.section], section, int(number == attributes.MIN_STACK_SIZE))
            part.fixups.append((len(part.data) + 4, symbol))
            part.data += section.data[start:end]
        section.data, section.fixups = b"", ()

    def _calls(self, section: Section) -> None:
        """Pairs of caller and callee, between marks."""
        calls = dict(section.fixups)
        kept = b""
        for place in range(0, len(section.data), 8) if calls else ():
            pair = section.data[place : place + 8]
            if place not in calls:
                kept += pair
                continue
            part = self._part(self._owners[calls[place].section], section)
            part.fixups += [(len(part.data) + each - place, calls[each]) for each in (place, place + 4) if each in calls]
            part.data += pair
        section.data, section.fixups = kept if calls else section.data, ()

    def _frames(self, section: Section, relocations: Section) -> None:
        """An entry stands behind the common one that it refers to; the relocation of its address says whose it is."""
        symbols = {_LONG.unpack_from(relocations.data, place - _INDEX)[0]: symbol for place, symbol in relocations.fixups}
        entries = self._entries(section, symbols)
        if self._only:
            self._part(self._only, section).data = section.data  # its part is the whole
        else:
            for entry in entries:
                part = self._part(entry.owner, section)
                part.data += section.data[entry.start : entry.own + _ID] + _LONG.pack(entry.base)
                part.data += section.data[entry.own + _START : entry.end]
        for entry in entries:
            self._part(entry.owner, section).moved.append(entry.base + entry.own + _ID - entry.start)
        section.data = b""
        self._relocations(relocations, entries)

    def _entries(self, section: Section, symbols: Mapping[int, Symbol]) -> list[_Entry]:
        data = section.data
        entries: list[_Entry] = []
        bases: dict[str, int] = {}
        start = place = 0
        while place < len(data):
            mark, length, common = _ENTRY.unpack_from(data, place)
            end = place + _ID + length
            if mark != _DWARF64 or end > len(data) or (common not in {_COMMON, start}):
                unknown(self._label, f"an entry of {section.name}")
            if common != _COMMON:
                owner = self._owners[symbols[place + _START].section]
                base = bases.get(owner.name, 0)
                bases[owner.name] = base + end - start
                entries.append(_Entry(start, place, end, base, owner))
                start = end
            place = end
        if start != place:
            unknown(self._label, f"the last entry of {section.name}")
        return entries

    def _relocations(self, section: Section, entries: list[_Entry]) -> None:
        if self._only and entries:
            part = self._part(self._only, section)
            part.data, part.fixups = section.data, list(section.fixups)
            part.moved = [place - _INDEX for place, _ in section.fixups]
            section.data, section.fixups = b"", ()
            return
        starts = [entry.start for entry in entries]
        for place, symbol in section.fixups:
            begin = place - _INDEX
            offset = _LONG.unpack_from(section.data, begin)[0]
            entry = entries[bisect.bisect(starts, offset) - 1]
            part = self._part(entry.owner, section)
            part.fixups.append((len(part.data) + _INDEX, symbol))
            part.moved.append(len(part.data))
            part.data += _LONG.pack(offset - entry.start + entry.base) + section.data[begin + 8 : begin + section.entry]
        section.data, section.fixups = b"", ()
