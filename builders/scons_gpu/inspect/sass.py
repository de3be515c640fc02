"""Whether two functions' machine code is the same, and in which sense: told instruction by instruction on bytes, and on `nvdisasm`'s reading where bytes differ."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import ToolError
from scons_gpu.inspect.cubin import Cubin, Place, stem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["DIFFERENT", "IDENTICAL", "PLACED", "Code", "Program", "disassemble", "relate", "same_work"]

IDENTICAL = "identical"
PLACED = "placed"
DIFFERENT = "different"

_BYTES = 16  # an instruction's, since sm_70
_CONSTANT = re.compile(r"c\[0x([34])\]\[([^\]]*)\]")
_OFFSET = re.compile(r"(?:^|\+)(-?0x[0-9a-f]+|RZ|URZ)$")
_LINK = re.compile(r"\d+@(?:lo|hi)?\(.*?\)+|`\([^)]*\)|\(\*\"[^\"]*\"\*\)[^,]*")
_NUMBER = re.compile(r"(?<![\w.\[])-?0x[0-9a-f]+(?![\w.])")
_REGISTER = re.compile(r"\b(U?R|U?P|B|SB)(\d+|Z|T)\b(?:\.reuse)?")
_CLONE = re.compile(r"\$__internal_\d+_\$")


@dataclass(frozen=True)
class Instruction:
    """One, as it is read and as it is."""

    predicate: str
    opcode: str
    operands: str
    raw: bytes
    flow: bool
    links: tuple[tuple[int, Place], ...]
    """What a linker or loader puts into it."""

    @property
    def text(self) -> str:
        """As `nvdisasm` prints it, without hints of register reuse."""
        return f"{self.predicate} {self.opcode} {self.operands}".strip().replace(".reuse", "")


@dataclass(frozen=True)
class Code:
    """One function of one cubin."""

    name: str
    instructions: tuple[Instruction, ...]
    literals: bytes

    @cached_property
    def length(self) -> int:
        """Instructions without the padding behind the last."""
        return sum(one.opcode != "NOP" for one in self.instructions)

    @cached_property
    def local(self) -> int:
        """Loads and stores of local memory: spills, and arrays that did not fit into registers."""
        return sum(one.opcode.startswith(("LDL", "STL")) for one in self.instructions)


@dataclass
class Program:
    """A cubin and its functions, disassembled."""

    cubin: Cubin
    functions: Mapping[str, Code]


def disassemble(cubin: Cubin, *, nvdisasm: str) -> Program:
    """Every function of the cubin. Raises ToolError where the disassembler does not read it."""
    with tempfile.TemporaryDirectory(prefix="scons-gpu-") as folder:
        path = Path(folder, "image.cubin")
        path.write_bytes(cubin.data)
        done = subprocess.run([nvdisasm, "-json", "-c", str(path)], capture_output=True, text=True, check=False)
    try:
        listed = json.loads(done.stdout)[1]
        functions = {one["function-name"]: _code(cubin, one) for one in listed}
    except (ValueError, LookupError, TypeError):
        msg = f"nvdisasm does not read {cubin.label}"
        raise ToolError(msg, output=done.stderr) from None
    return Program(cubin=cubin, functions=functions)


def _code(cubin: Cubin, data: dict[str, object]) -> Code:
    name = str(data["function-name"])
    text, links = cubin.text(name), cubin.relocations(name)
    listed = data["sass-instructions"]
    assert isinstance(listed, list)  # noqa: S101 - tells the type; nvdisasm's schema
    if len(listed) * _BYTES != len(text):
        msg = f"nvdisasm shows {len(listed)} instructions in {len(text)} bytes of {name}"
        raise ToolError(msg)
    return Code(name=name, instructions=tuple(_instruction(one, index * _BYTES, text, links) for index, one in enumerate(listed)), literals=cubin.literals(name))


def _instruction(data: dict[str, object], offset: int, text: bytes, links: Mapping[int, tuple[tuple[int, Place], ...]]) -> Instruction:
    attributes = data.get("other-attributes")
    return Instruction(
        predicate=str(data.get("predicate", "")),
        opcode=str(data["opcode"]),
        operands=str(data.get("operands", "")),
        raw=text[offset : offset + _BYTES],
        flow=isinstance(attributes, dict) and "control-flow" in attributes,
        links=links.get(offset, ()),
    )


def relate(mine: Program, name: str, theirs: Program, other: str, *, state: frozenset[str] = frozenset()) -> str:
    """IDENTICAL, PLACED (the same but for where constants and variables lie, each pair of which holds the same) or DIFFERENT; functions that are called count in.

    `state` names variables whose content may change, so that only equal names are equal.
    """
    seen: set[tuple[str, str]] = set()
    waiting, result = [(name, other)], IDENTICAL
    while waiting:
        pair = waiting.pop()
        if pair in seen:
            continue
        seen.add(pair)
        left, right = mine.functions.get(pair[0]), theirs.functions.get(pair[1])
        if left is None or right is None:
            return DIFFERENT
        one = _relate(_Pair(mine.cubin, left, theirs.cubin, right, state))
        if one == DIFFERENT:
            return DIFFERENT
        result = PLACED if PLACED in {one, result} else IDENTICAL
        waiting += _calls(left, right)
    return result


def _calls(left: Code, right: Code) -> Iterator[tuple[str, str]]:
    for one, two in zip(left.instructions, right.instructions, strict=True):
        for (_, mine), (_, theirs) in zip(one.links, two.links, strict=False):
            if mine.function and (mine.name, theirs.name) != (left.name, right.name):
                yield mine.name, theirs.name


@dataclass(frozen=True)
class _Pair:
    """Two functions side by side, and what is known of the names in them."""

    mine: Cubin
    left: Code
    theirs: Cubin
    right: Code
    state: frozenset[str]

    def same(self, one: Place | None, two: Place | None) -> bool:
        """Whether two addresses lead to the same: equal content, and for variables the same name too."""
        if one is None or two is None or one.bytes != two.bytes or one.function != two.function:
            return False
        if one.function:
            return True  # the functions themselves are related in turn
        variable = one.name in self.state or two.name in self.state
        return one.what == two.what and (not variable or stem(one.name) == stem(two.name))


def _relate(pair: _Pair) -> str:
    left, right = pair.left, pair.right
    if len(left.instructions) != len(right.instructions) or left.literals != right.literals:
        return DIFFERENT
    result = IDENTICAL
    for one, two in zip(left.instructions, right.instructions, strict=True):
        kind = _relate_instructions(pair, one, two)
        if kind == DIFFERENT:
            return DIFFERENT
        result = PLACED if PLACED in {kind, result} else IDENTICAL
    return result


def _relate_instructions(pair: _Pair, one: Instruction, two: Instruction) -> str:
    if one.links or two.links:
        same = [kind for kind, _ in one.links] == [kind for kind, _ in two.links]
        same = same and all(pair.same(mine, theirs) for (_, mine), (_, theirs) in zip(one.links, two.links, strict=True))
        return IDENTICAL if same and _LINK.sub("@", _plain(pair.left, one)) == _LINK.sub("@", _plain(pair.right, two)) else DIFFERENT
    constants = list(zip(_constants(one), _constants(two), strict=False))
    if one.raw == two.raw and all(_same_constant(pair, mine, theirs) for mine, theirs in constants):
        return IDENTICAL
    mine, theirs = _plain(pair.left, one), _plain(pair.right, two)
    if mine == theirs and not constants and one.flow:
        return IDENTICAL  # a call or return whose printed target is the same function
    if len(_constants(one)) != len(_constants(two)) or not all(_same_constant(pair, left, right) for left, right in constants):
        return DIFFERENT
    return PLACED if _same_but_addresses(pair, _CONSTANT.sub(_without_offset, mine), _CONSTANT.sub(_without_offset, theirs)) else DIFFERENT


def _same_but_addresses(pair: _Pair, mine: str, theirs: str) -> bool:
    """Equal texts, or such as differ in numbers alone that are offsets of one and the same constant in each cubin's bank 3."""
    if _NUMBER.sub("#", mine) != _NUMBER.sub("#", theirs):
        return False
    numbers = zip(_NUMBER.findall(mine), _NUMBER.findall(theirs), strict=True)
    unequal = [(int(left, 16), int(right, 16)) for left, right in numbers if left != right]
    return all(pair.same(pair.mine.constant(left), pair.theirs.constant(right)) for left, right in unequal)


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


def _same_constant(pair: _Pair, mine: tuple[int, str, int], theirs: tuple[int, str, int]) -> bool:
    (bank, register, offset), (other_bank, other_register, other_offset) = mine, theirs
    if bank != other_bank or bool(register) != bool(other_register):
        return False
    if bank == 4:
        return pair.same(pair.mine.slot(offset), pair.theirs.slot(other_offset))
    if register and offset == other_offset:
        return True  # the base lies in the register; whoever put it there is compared where that stands
    return pair.same(pair.mine.constant(offset), pair.theirs.constant(other_offset))


def _plain(code: Code, one: Instruction) -> str:
    """Printed text with this function's own name and its copies of shared routines told by role."""
    text = _CLONE.sub("$__internal_$", one.text)
    return text.replace(f"${code.name}$", "$self$").replace(f",{code.name}", ",self") if one.flow else text


def same_work(mine: Program, name: str, theirs: Program, other: str) -> bool:
    """Whether two functions hold the same instructions in whatever order and registers: opcodes, modifiers, predicates' signs and immediates as a multiset."""
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
