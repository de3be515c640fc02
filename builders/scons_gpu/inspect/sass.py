"""Whether two functions' machine code is the same: told instruction by instruction, on bytes, and on nvdisasm's reading where they differ.

Bytes alone do not tell: equal bytes may load from one offset of two banks that hold different tables, and different bytes may load the
same table from where it happens to lie. So every address that can be told (constant banks 3 and 4, what a linker puts in) is looked up.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from scons_gpu.inspect.cubin import Cubin, Place, stem
from scons_gpu.inspect.slots import led

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from scons_gpu.inspect.disassembly import Code, Instruction, Program

__all__ = ["DIFFERENT", "IDENTICAL", "PLACED", "TIMED", "relate", "same_work"]

IDENTICAL = "identical"
PLACED = "placed"
TIMED = "timed"
DIFFERENT = "different"
_WORSE = (IDENTICAL, PLACED, TIMED, DIFFERENT)

_CONSTANT = re.compile(r"c\[0x([34])\]\[([^\]]*)\]")
_OFFSET = re.compile(r"(?:^|\+)(-?0x[0-9a-f]+|RZ|URZ)$")
_LINK = re.compile(r"\d+@(?:lo|hi)?\(.*?\)+|`\([^)]*\)|\(\*\"[^\"]*\"\*\)[^,]*")
_NUMBER = re.compile(r"(?<![\w.\[])-?0x[0-9a-f]+(?![\w.])")
_REGISTER = re.compile(r"\b(U?R|U?P|B|SB)(\d+|Z|T)\b(?:\.reuse)?")
_CLONE = re.compile(r"\$__internal_\d+_\$")


def relate(  # noqa: PLR0913 - two functions, and what is known of names
    mine: Program,
    name: str,
    theirs: Program,
    other: str,
    *,
    state: frozenset[str] = frozenset(),
    tables: tuple[str, ...] = (),
) -> str:
    """How two functions relate; what is called counts in.

    IDENTICAL; PLACED: the same but for where constants lie, each pair of which holds the same; TIMED: the same instructions in the same
    order, whose waits or hints differ; DIFFERENT.

    `state` names variables whose content may change, so that only equal names are equal. `tables` names what `mine` reads of constant
    memory: an address put together in registers does not show where it leads, so each table that lies elsewhere in `theirs` must account
    for an instruction that differs, and one that lies nowhere is a difference.
    """
    pair = _Pair(mine.cubin, theirs.cubin, state)
    seen: set[tuple[str, str]] = set()
    waiting, result = [(name, other)], IDENTICAL
    while waiting:
        names = waiting.pop()
        if names in seen:
            continue
        seen.add(names)
        left, right = mine.functions.get(names[0]), theirs.functions.get(names[1])
        if left is None and right is None and names[0] == names[1] != name:
            continue  # the device runtime's, such as vprintf: it is in neither
        one = DIFFERENT if left is None or right is None else _relate(pair, left, right)
        if left is None or right is None or one == DIFFERENT:
            return DIFFERENT
        result = max(one, result, key=_WORSE.index)
        waiting += pair.met
        pair.met.clear()
    return result if all(pair.accounted(table) for table in tables) else DIFFERENT


@dataclass
class _Pair:
    """Two cubins side by side, and what is known of the names in them."""

    mine: Cubin
    theirs: Cubin
    state: frozenset[str]
    moved: set[tuple[int, int]] = field(default_factory=set)
    """Offsets in bank 3 that stand in for one another."""
    met: list[tuple[str, str]] = field(default_factory=list)
    """Functions that are called or whose address is taken: they are related in turn."""

    @cached_property
    def bytes_tell(self) -> bool:
        """Whether equal bytes are equal code: neither side has a constant bank whose offsets would have to be looked up."""
        return not any(cubin.sections.keys() & {".nv.constant3", ".nv.constant4"} for cubin in (self.mine, self.theirs))

    def same(self, one: Place | None, two: Place | None) -> bool:
        """Whether two addresses lead to the same: equal content, and for variables the same name too."""
        if one is None or two is None or one.bytes != two.bytes or one.function != two.function:
            return False
        if one.function:
            self.met.append((one.name, two.name))
            return True
        self.met += [(name, name) for name in one.functions]
        return self._alike(one, two)

    def _alike(self, one: Place, two: Place) -> bool:
        variable = one.name in self.state or two.name in self.state
        return one.what == two.what and (not variable or stem(one.name) == stem(two.name))

    def same_offset(self, mine: int, theirs: int) -> bool:
        """Whether two offsets in bank 3 lead to the same."""
        same = self.same(self.mine.constant(mine), self.theirs.constant(theirs))
        if same and mine != theirs:
            self.moved.add((mine, theirs))
        return same

    def same_constant(self, mine: tuple[int, str, int], theirs: tuple[int, str, int]) -> bool:
        """Whether two uses of a constant bank, as `_constants` gives them, lead to the same."""
        (bank, register, offset), (other_bank, other_register, other_offset) = mine, theirs
        if bank != other_bank or bool(register) != bool(other_register):
            return False
        if bank == 4:
            return self.same(self.mine.slot(offset), self.theirs.slot(other_offset))  # those with a register are `_relate_led`'s
        # with a register the base may lie in that; then `accounted` has the last word
        return bool(register and offset == other_offset) or self.same_offset(offset, other_offset)

    def same_slots(self) -> bool:
        """Whether every address in bank 4 lies in the same place."""
        mine, theirs = self.mine.slots, self.theirs.slots
        return mine.keys() == theirs.keys() and all(self.same(mine[offset], theirs[offset]) for offset in mine)

    def accounted(self, table: str) -> bool:
        """Whether a table that is read lies at one offset in both, or its move shows in the code."""
        here = self.mine.constants(table)
        if here is None:
            return True  # the assembler had no use for it
        there = [place for place in self.theirs.alike(here.what) if self._alike(here, place)]
        if any(place.bytes == here.bytes for place in there):
            return True
        moved = [self.mine.constant(mine) for mine, _ in self.moved]
        return bool(there) and any(place is not None and place.name == table for place in moved)


def _relate(pair: _Pair, left: Code, right: Code) -> str:
    if len(left.raw) != len(right.raw) or left.literals != right.literals:
        return DIFFERENT
    if left.raw == right.raw and pair.bytes_tell and _same_links(pair, left, right):
        return IDENTICAL
    if pair.bytes_tell and left.opcodes != right.opcodes:
        return DIFFERENT
    result = IDENTICAL
    here, there = _led(left, pair.mine), _led(right, pair.theirs)
    for index, (one, two) in enumerate(zip(left.instructions, right.instructions, strict=True)):
        if index in here or index in there:
            kind = _relate_led(pair, (one, here.get(index, ())), (two, there.get(index, ())))
        else:
            kind = _relate_instructions(pair, (left, one), (right, two))
        if kind == DIFFERENT:
            return DIFFERENT
        result = max(kind, result, key=_WORSE.index)
    return result


def _led(code: Code, cubin: Cubin) -> Mapping[int, tuple[Place | None, ...]]:
    return led([(one.opcode, one.operands, one.flow) for one in code.instructions], cubin.slot)


def _relate_led(
    pair: _Pair, here: tuple[Instruction, tuple[Place | None, ...]], there: tuple[Instruction, tuple[Place | None, ...]]
) -> str:
    """Two loads of an address at an offset that a register holds, or two instructions that put that offset there."""
    (one, mine), (two, theirs) = here, there
    if len(mine) != len(theirs):
        return DIFFERENT
    if not all(map(pair.same, mine, theirs)) and not (one.raw == two.raw and pair.same_slots()):
        return DIFFERENT
    if one.raw == two.raw:
        return IDENTICAL
    return PLACED if one.predicate == two.predicate and one.operands.partition(",")[0] == two.operands.partition(",")[0] else DIFFERENT


def _relate_instructions(pair: _Pair, here: tuple[Code, Instruction], there: tuple[Code, Instruction]) -> str:
    (left, one), (right, two) = here, there
    mine, theirs = _plain(left, one), _plain(right, two)
    if one.links or two.links:
        return IDENTICAL if _same_link(pair, one.links, two.links) and _LINK.sub("@", mine) == _LINK.sub("@", theirs) else DIFFERENT
    constants, others = _constants(one), _constants(two)
    if len(constants) != len(others) or not all(map(pair.same_constant, constants, others)):
        return DIFFERENT
    if one.raw == two.raw or (one.flow and mine == theirs):
        return IDENTICAL  # the bytes of a call differ where the printed target is the same function
    if mine == theirs:
        return TIMED
    return PLACED if _same_but_addresses(pair, _CONSTANT.sub(_without_offset, mine), _CONSTANT.sub(_without_offset, theirs)) else DIFFERENT


def _same_links(pair: _Pair, left: Code, right: Code) -> bool:
    """Whether the same is put into two functions."""
    return left.links.keys() == right.links.keys() and all(_same_link(pair, left.links[place], right.links[place]) for place in left.links)


def _same_link(pair: _Pair, one: tuple[tuple[int, Place], ...], two: tuple[tuple[int, Place], ...]) -> bool:
    if [kind for kind, _ in one] != [kind for kind, _ in two]:
        return False
    return all(pair.same(mine, theirs) for (_, mine), (_, theirs) in zip(one, two, strict=True))


def _same_but_addresses(pair: _Pair, mine: str, theirs: str) -> bool:
    """Equal texts, or such as differ in numbers alone that are offsets of one and the same constant in each cubin's bank 3."""
    if _NUMBER.sub("#", mine) != _NUMBER.sub("#", theirs):
        return False
    numbers = zip(_NUMBER.findall(mine), _NUMBER.findall(theirs), strict=True)
    unequal = [(int(left, 16), int(right, 16)) for left, right in numbers if left != right]
    return all(pair.same_offset(left, right) for left, right in unequal)


def _constants(one: Instruction) -> list[tuple[int, str, int]]:
    """(bank, register, offset) of each use of bank 3 (what the source declares) or 4 (addresses that the loader fills in)."""
    return [_constant(match) for match in _CONSTANT.finditer(one.operands)]


def _constant(match: re.Match[str]) -> tuple[int, str, int]:
    inside = match[2]
    found = _OFFSET.search(inside)
    if not found:
        return int(match[1]), inside, 0
    offset = 0 if found[1].endswith("RZ") else int(found[1], 16)
    return int(match[1]), inside[: found.start()], offset


def _without_offset(match: re.Match[str]) -> str:
    bank, register, _ = _constant(match)
    return f"c[{bank}][{register}]"


def _plain(code: Code, one: Instruction) -> str:
    """Printed text with this function's own name and its copies of shared routines told by role."""
    text = _CLONE.sub("$__internal_$", one.text)
    return text.replace(f"${code.name}$", "$self$").replace(f",{code.name}", ",self") if one.flow else text


def same_work(mine: Program, name: str, theirs: Program, other: str) -> bool:
    """Whether two functions hold the same instructions in whatever order and registers: a multiset, immediates and modifiers included."""
    left, right = mine.functions.get(name), theirs.functions.get(other)
    if left is None or right is None or left.literals != right.literals:
        return False
    return Counter(_work(left, mine.cubin)) == Counter(_work(right, theirs.cubin))


def _work(code: Code, cubin: Cubin) -> Iterator[str]:
    for one in code.instructions:
        if one.opcode == "NOP":
            continue
        operands = _CONSTANT.sub(_name_of(cubin), _plain(code, one).removeprefix(one.predicate).strip())
        if one.links:
            operands = _LINK.sub("@", operands) + "".join(f" {stem(place.name)}+{place.bytes}" for _, place in one.links)
        elif one.flow:
            operands = _NUMBER.sub("label", operands)
        yield f"{one.predicate[:1]}{'!' if '!' in one.predicate else ''} {_REGISTER.sub(_kind_of, operands)}"


def _kind_of(match: re.Match[str]) -> str:
    return match[0] if match[2] in {"Z", "T"} else match[1]


def _name_of(cubin: Cubin) -> Callable[[re.Match[str]], str]:
    def named(match: re.Match[str]) -> str:
        bank, register, offset = _constant(match)
        place = cubin.slot(offset) if bank == 4 else None if register else cubin.constant(offset)
        return f"c[{bank}][{place.what}+{place.bytes}]" if place else match[0]

    return named
