"""Whole-program objects become one image, which is, byte for byte, what the assembler makes of the undivided module.

Where objects share nothing but what every file has, the assembler writes a function's code, parameters and attributes alike whatever
stands beside it: what is left is order, numbers and names, and those follow rules. So a module is built unit by unit, and its image is
nevertheless the one that a single assembly of all its PTX would give. Objects that hold memory of the module (`.nv.constant3` with
constants, `.nv.constant4` with addresses, `.nv.global`) have its layout in their code; at most one of an image may, and so what shares
that memory is assembled together before it comes here.
"""

from __future__ import annotations

import gc
import re
import struct
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scons_gpu.errors import LinkError
from scons_gpu.link import attributes
from scons_gpu.link.named import call, call_local
from scons_gpu.link.pieces import MAIN, MERCURY, Piece, Section, Symbol, Whole
from scons_gpu.link.sections import MEMORY, OF_FUNCTION, PLACED, has_memory
from scons_gpu.link.unknown import UnknownError
from scons_gpu.link.whole_read import read
from scons_gpu.link.whole_write import write

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scons_gpu.link.graft import Grafted

__all__ = ["Input", "merge_objects", "understood"]

_RESERVED = 1024  # bytes of shared memory that the system keeps of each block from sm_90 on
_LEAST = 16  # alignment that the assembler gives undefined shared arrays at least
_NOBITS, _SHARED_FLAGS = 8, 0x43  # SHT_NOBITS; writable, loaded, with sh_info
_SYSTEM = (".nv.reservedSmem.offset0", "__nv_reservedSMEM_offset_0_alias")
"""Symbols that come with the first function, before the module's variables."""
_ISA_CLASS = b"\x02\x02"
_INTERNAL = re.compile(r"\$__internal_\d+_\$(.*)", re.DOTALL)


@dataclass(frozen=True)
class Input:
    """One object."""

    label: str
    """What messages call it."""
    data: bytes
    name: str = ""
    """What its kernel is called in the image, where the object serves kernels of several names (`twins.ANONYMOUS`)."""
    local: Mapping[str, str] = field(default_factory=dict)
    """Names of its own functions → what they are called in the image."""
    known: bool = False
    """Whether `understood` has taken these very bytes before: that is not asked again."""
    grafted: Grafted | None = None
    """In place of `data`: what was read of it, with functions of another object."""


def merge_objects(objects: Sequence[Input], *, places: Mapping[str, int] | None = None, without: str = "", dynamic: int = 0) -> bytes:
    """The image of these objects, in the order in which their PTX would stand in one file: the assembler writes the last one first.

    `places` says of kernels where in that order they stand, where one object holds several that do not stand together. `without` is a
    kernel that is left out. `dynamic` is the alignment of the
    module's undefined shared arrays, 0 where it has none: an assembler that finds one declared gives every function of the file room
    for it.

    Raises DamagedError, UnknownError or LinkError, each with the label of the object that cannot be merged and why.
    """
    with _uncollected():
        wholes = []
        moved: list[tuple[Symbol, Symbol]] = []
        for each in reversed(objects):
            if each.grafted:
                wholes.append(each.grafted.whole)
                moved += each.grafted.moved
                continue
            wholes.append((read if each.known else understood)(each.data, label=each.label))
            if each.name:
                call(wholes[-1], each.name)
            if each.local:
                call_local(wholes[-1], each.local)
        after = {name: -place for name, place in (places or {}).items()}
        merged = _merged(wholes, without=without, places=after, dynamic=dynamic)
        merged.moved |= {id(old): merged.moved.get(id(new), new) for old, new in moved}
        return write(merged)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's search for cycles: there are none in tens of thousands of pieces, and it would look through all nodes of a build."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def understood(data: bytes, *, label: str) -> Whole:
    """The pieces of an object of which nothing gets lost: written again as they are, they give its bytes."""
    whole = read(data, label=label)
    try:
        same = write(whole) == data
    except (struct.error, ValueError, KeyError, IndexError, OverflowError):  # a reference that leads nowhere
        same = False
    if not same:
        msg = f"{label} is not laid out as merging knows it"
        raise UnknownError(msg, hint="GPU_LINK=image links it; scons-gpu doctor shows which assembler made it")
    return whole


def _merged(wholes: Sequence[Whole], *, without: str, places: Mapping[str, int], dynamic: int) -> Whole:
    """One file of all pieces; the wholes are used up."""
    if not wholes:
        msg = "there is nothing to merge"
        raise LinkError(msg)
    first, mine = wholes[0], _own(wholes[0])
    for other in wholes[1:]:
        if other.head is not first.head or _own(other) != mine:
            _check_alike(first, other)
            mine = _own(first)
    holder = _check_names(wholes)
    pieces = _placed([piece for whole in wholes for piece in whole.pieces if piece.name != without], places)
    if not pieces:
        msg = "there is nothing to merge"
        raise LinkError(msg)
    for whole in wholes:
        if whole is holder or whole.pieces[0].name == without:
            _to_first(whole.pieces[0], pieces[0])
    moved = _same_file_symbols(wholes)
    _once(pieces, moved)
    _numbered(pieces)
    for piece in pieces if dynamic else ():
        _with_shared(piece, dynamic, reserved=0 if first.head.older else _RESERVED)
    return Whole(
        label=first.label,
        head=first.head,
        pieces=pieces,
        shared=_shared(wholes, holder),
        first=first.first,
        last=first.last,
        moved=moved,
        names=(holder or first).names,
    )


def _own(whole: Whole) -> list[object]:
    """What a file has of its own. Where that is equal, in the same order, two of them go together: so it is with nearly all."""
    return [*(_names(whole, table) for table in whole.first), *(_plain(section) for section in whole.shared if section.name not in MEMORY)]


def _check_alike(one: Whole, other: Whole) -> None:
    """What stands once in an image must be equal in its objects: they were made by one tool with one set of options."""
    if one.head != other.head:
        told = next(
            name
            for name in ("ident", "kind", "machine", "version", "flags", "tail", "older")
            if getattr(one.head, name) != getattr(other.head, name)
        )
        msg = f"{one.label} and {other.label} differ in the {told} of their headers"
        raise LinkError(msg, hint=_TOGETHER)
    mine = {section.name: section for section in one.shared}
    theirs = {section.name: section for section in other.shared}
    for name in sorted(mine.keys() | theirs.keys()):
        if has_memory(name) or OF_FUNCTION.fullmatch(name):
            continue
        if name == ".nv.compat" and name in mine and name in theirs:
            _widest(mine[name], theirs[name])
        if name not in mine or name not in theirs or _plain(mine[name]) != _plain(theirs[name]):
            msg = f"{one.label} and {other.label} differ in {name}"
            raise LinkError(msg, hint=_TOGETHER)
    for table in one.first.keys() | other.first.keys():
        if _names(one, table) != _names(other, table):
            msg = f"{one.label} and {other.label} differ in the sections that have symbols"
            raise LinkError(msg, hint=_TOGETHER)


def _widest(mine: Section, theirs: Section) -> None:
    """The image needs the highest EICOMPAT_ATTR_ISA_CLASS of its objects, which is then that of both."""
    if len(mine.data) != len(theirs.data):
        return
    for start, _, number in attributes.records(mine.data):
        if mine.data[start : start + 2] == theirs.data[start : start + 2] == bytes((2, number)) == _ISA_CLASS:
            most = max(mine.data[start + 2], theirs.data[start + 2])
            for section in (mine, theirs):
                section.data = section.data[: start + 2] + bytes((most,)) + section.data[start + 3 :]


_TOGETHER = "they were made with different options, tools or architectures; build them again together"


def _plain(section: Section) -> tuple[object, ...]:
    return (section.name, section.type, section.flags, section.align, section.entry, section.data, section.link)


def _names(whole: Whole, table: str) -> list[str]:
    return [symbol.name for symbol in (*whole.first.get(table, ()), *whole.last.get(table, ()))]


def _check_names(wholes: Sequence[Whole]) -> Whole | None:
    """The one that holds memory of the module."""
    found: dict[str, str] = {}
    holder = None
    for whole in wholes:
        for piece in whole.pieces:
            if piece.name in found:
                msg = f"{piece.name} is defined by both {found[piece.name]} and {whole.label}"
                raise LinkError(msg)
            found[piece.name] = whole.label
        if _memory(whole):
            if holder:
                msg = f"{holder.label} and {whole.label} both hold memory of the module"
                raise LinkError(msg, hint="assemble the two together")
            holder = whole
    return holder


def _memory(whole: Whole) -> bool:
    """It is among the file's own sections, or among those of functions."""
    return not all(MEMORY.isdisjoint([section.name for section in each.sections]) for each in whole.pieces) or not MEMORY.isdisjoint(
        [section.name for section in whole.shared]
    )


def _placed(pieces: list[Piece], places: Mapping[str, int]) -> list[Piece]:
    """In the order of the image; a function that it does not name stays behind the one that it stands behind."""
    place, keys = 0, {}
    for piece in pieces:
        place = places.get(piece.name, place)
        keys[piece.name] = place
    return sorted(pieces, key=lambda piece: keys[piece.name]) if places else pieces


def _to_first(holder: Piece, first: Piece) -> None:
    """The module's variables stand with the first function of the file, whoever uses them."""
    if holder is first:
        return
    first.sections += [section for section in holder.sections if has_memory(section.name)]
    holder.sections = [section for section in holder.sections if not has_memory(section.name)]
    for name in (MAIN, MERCURY):
        old, new = holder.tables[name], first.tables[name]
        mine = [symbol for symbol in old.local if isinstance(symbol.section, str) and _is_memory(symbol.section)]
        old.local = [symbol for symbol in old.local if symbol not in mine]
        own = next(
            (place for place, symbol in enumerate(new.local) if not symbol.name.startswith((".text.", ".nv.shared."))), len(new.local)
        )
        new.local[own:own] = mine
        variables = [symbol for symbol in old.globals if isinstance(symbol.section, str) and _is_memory(symbol.section)]
        old.globals = [symbol for symbol in old.globals if symbol not in variables]
        own = next((place for place, symbol in enumerate(new.globals) if symbol.name not in {first.name, *_SYSTEM}), len(new.globals))
        new.globals[own:own] = variables
        names = {symbol.name for symbol in (*mine, *variables)}
        for table in first.names if name == MAIN else ():
            moved = [each for each in holder.names.get(table, ()) if each in names]
            holder.names[table] = [each for each in holder.names.get(table, ()) if each not in names]
            own = next(
                (place for place, each in enumerate(first.names[table]) if each.startswith(".nv.shared.")), len(first.names[table]) - 1
            )
            first.names[table][own + 1 : own + 1] = moved


def _is_memory(section: str) -> bool:
    return has_memory(section) or section.startswith((".nv.merc.nv.constant.", ".nv.merc.nv.global"))


def _same_file_symbols(wholes: Sequence[Whole]) -> dict[int, Symbol]:
    """Symbols of each file's own sections → those of the first file."""
    moved: dict[int, Symbol] = {}
    for other in wholes[1:]:
        for table in wholes[0].first:
            mine = (*wholes[0].first[table], *wholes[0].last[table])
            theirs = (*other.first[table], *other.last[table])
            moved |= {id(old): new for old, new in zip(theirs, mine, strict=True)}
    return moved


def _once(pieces: Sequence[Piece], moved: dict[int, Symbol]) -> None:
    """What several files have alike stays where it comes first."""
    placed: set[str] = set()
    for piece in pieces:
        piece.sections = [section for section in piece.sections if section.name not in placed]
        placed |= {section.name for section in piece.sections if section.name in PLACED}
    for table in (MAIN, MERCURY):
        known: dict[tuple[str, bytes], Symbol] = {}
        for piece in pieces:
            kept = []
            for symbol in piece.tables[table].globals:
                if symbol.section in piece_sections(piece):
                    kept.append(symbol)
                    continue
                there = known.setdefault((symbol.name, symbol.reserve), symbol)
                if there is symbol:
                    kept.append(symbol)
                elif _value(there) != _value(symbol):
                    msg = f"{symbol.name} differs in the object of {piece.name}"
                    raise LinkError(msg, hint=_TOGETHER)
                else:
                    moved[id(symbol)] = there
            piece.tables[table].globals = kept


def piece_sections(piece: Piece) -> tuple[str, str]:
    """Where the function itself lies, in either form."""
    return f".text.{piece.name}", f".nv.capmerc.text.{piece.name}"


def _value(symbol: Symbol) -> tuple[object, ...]:
    return (symbol.info, symbol.other, symbol.section, symbol.value, symbol.size)


def _numbered(pieces: Sequence[Piece]) -> None:
    """The assembler's own functions (slow paths of divisions and roots) are numbered through the file."""
    number = 0
    for piece in pieces:
        names = {}
        for symbol in piece.tables[MAIN].local:
            if symbol.name.startswith("$__internal_") and (found := _INTERNAL.fullmatch(symbol.name)):
                names[symbol.name] = f"$__internal_{number}_${found[1]}"
                number += 1
        if not names:
            continue
        for table in piece.tables.values():
            for symbol in table.local:
                symbol.name = names.get(symbol.name, symbol.name)
        piece.names = {table: [names.get(name, name) for name in found] for table, found in piece.names.items()}


def _with_shared(piece: Piece, align: int, *, reserved: int) -> None:
    """Shared memory of a function in a file that has an undefined array of it."""
    name, align = f".nv.shared.{piece.name}", max(align, _LEAST)
    there = next((section for section in piece.sections if section.name == name), None)
    if there is not None:
        there.align = max(there.align, align)
        there.size += -there.size % align
        return
    section = Section(name, _NOBITS, _SHARED_FLAGS, align, 0, reserved, b"", info=f".text.{piece.name}", kind=".nv.shared.")
    piece.sections.insert(0, section)  # without a symbol: the function has no use for it


def _shared(wholes: Sequence[Whole], holder: Whole | None) -> list[Section]:
    """In the order of who has memory."""
    found: dict[str, Section] = {}
    for whole in (holder, *wholes) if holder else wholes:
        for section in whole.shared:
            found.setdefault(section.name, section)
    return list(found.values())
