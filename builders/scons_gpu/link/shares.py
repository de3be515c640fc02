"""What each function has in the sections that a file has once: attributes, frames with their relocations, calls."""

from __future__ import annotations

import bisect
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.link import attributes
from scons_gpu.link.pieces import Piece, Section, Symbol
from scons_gpu.link.unknown import unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Shares"]

_LONG = struct.Struct("<Q")
_DWARF64, _COMMON = b"\xff" * 4, 2**64 - 1  # an entry with lengths of eight bytes; the id of a common one
_ID, _START = 12, 20  # where in an entry what it refers to, and where its function begins, are
_INDEX = 12  # where in a relocation the index of its symbol is


@dataclass(frozen=True)
class _Entry:
    """One entry of .debug_frame with the common one before it."""

    start: int
    end: int
    base: int
    """Where it begins in its function's part."""
    owner: Piece


class Shares:
    """Gives the functions of one file their parts of its sections."""

    def __init__(self, label: str, pieces: Mapping[str, Piece]) -> None:
        self._label, self._pieces = label, pieces

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

    def _owner(self, symbol: Symbol) -> Piece:
        return self._pieces[str(symbol.section).removeprefix(".nv.capmerc").removeprefix(".text.")]

    def _part(self, owner: Piece, section: Section, group: int = 0) -> Section:
        parts = owner.parts.setdefault(section.name, [])
        while len(parts) <= group:
            parts.append(Section(section.name, section.type, section.flags, section.align, section.entry, 0, b""))
        return parts[group]

    def _info(self, section: Section) -> None:
        """Registers and frames; and behind those of all functions, stacks."""
        indexes = dict(section.fixups)
        for start, end, number in attributes.records(section.data):
            if start + 4 not in indexes:
                unknown(self._label, f"attribute {number:#04x} in {section.name}")
            symbol = indexes[start + 4]
            part = self._part(self._owner(symbol), section, int(number == attributes.MIN_STACK_SIZE))
            part.fixups.append((len(part.data) + 4, symbol))
            part.data += section.data[start:end]
        section.data, section.fixups = b"", []

    def _calls(self, section: Section) -> None:
        """Pairs of caller and callee, between marks."""
        calls = dict(section.fixups)
        kept = b""
        for place in range(0, len(section.data), 8):
            pair = section.data[place : place + 8]
            if place not in calls:
                kept += pair
                continue
            part = self._part(self._owner(calls[place]), section)
            part.fixups += [(len(part.data) + each - place, calls[each]) for each in (place, place + 4) if each in calls]
            part.data += pair
        section.data, section.fixups = kept, []

    def _frames(self, section: Section, relocations: Section) -> None:
        """An entry stands behind the common one that it refers to; the relocation of its address says whose it is."""
        symbols = {_LONG.unpack_from(relocations.data, place - _INDEX)[0]: symbol for place, symbol in relocations.fixups}
        data, entries = section.data, []
        start = place = 0
        while place < len(data):
            end = place + 12 + _LONG.unpack_from(data, place + 4)[0]
            common = _LONG.unpack_from(data, place + _ID)[0]
            if data[place : place + 4] != _DWARF64 or end > len(data) or (common not in {_COMMON, start}):
                unknown(self._label, f"an entry of {section.name}")
            if common != _COMMON:
                owner = self._owner(symbols[place + _START])
                part = self._part(owner, section)
                base = len(part.data)
                part.data += data[start : place + _ID] + _LONG.pack(base) + data[place + _START : end]
                part.moved.append(base + place + _ID - start)
                entries.append(_Entry(start, end, base, owner))
                start = end
            place = end
        if start != place:
            unknown(self._label, f"the last entry of {section.name}")
        section.data = b""
        self._relocations(relocations, entries)

    def _relocations(self, section: Section, entries: list[_Entry]) -> None:
        starts = [entry.start for entry in entries]
        for place, symbol in section.fixups:
            begin = place - _INDEX
            offset = _LONG.unpack_from(section.data, begin)[0]
            entry = entries[bisect.bisect(starts, offset) - 1]
            part = self._part(entry.owner, section)
            part.fixups.append((len(part.data) + _INDEX, symbol))
            part.moved.append(len(part.data))
            part.data += _LONG.pack(offset - entry.start + entry.base) + section.data[begin + 8 : begin + section.entry]
        section.data, section.fixups = b"", []
