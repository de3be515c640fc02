"""Which address a register leads to: calls of the device runtime read theirs from constant bank 4 at an offset that a register holds."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scons_gpu.inspect.cubin import Place

__all__ = ["led"]

_LOAD = re.compile(r"c\[0x4\]\[(U?R\d+)(?:\.[\w.]+)?(?:\+(-?0x[0-9a-f]+))?\]")
_MOVE = re.compile(r"^(U?R\d+),(?:U?RZ,U?RZ,)?(0x[0-9a-f]+|U?RZ)$")
_HALVES = re.compile(r"^(U?R\d+),-?RZ,RZ,([^,]+),([^,]+)$")
_REACH = 64
"""Instructions to look back: the offset is put into its register shortly before."""


def led(operations: Sequence[tuple[str, str, bool]], slot: Callable[[int], Place | None]) -> Mapping[int, tuple[Place | None, ...]]:
    """By number of an instruction, the slots that it leads to: loads from bank 4 through a register, and what puts the offset there.

    `operations` are (opcode, operands, whether it may jump). None stands for a register whose value cannot be told.
    """
    found: dict[int, tuple[Place | None, ...]] = {}
    for index, (_, operands, _) in enumerate(operations):
        for register, offset in _LOAD.findall(operands):
            put, value = _definition(operations, index, register)
            place = slot(value + int(offset or "0", 16)) if value is not None else None
            for one in {index, put}:
                found[one] = (*found.get(one, ()), place)
    return found


def _definition(operations: Sequence[tuple[str, str, bool]], index: int, register: str) -> tuple[int, int | None]:
    """(the instruction that put a number into the register, the number), going back from `index`; (`index`, None) where it is none."""
    for place in range(index - 1, max(-1, index - _REACH), -1):
        opcode, operands, jumps = operations[place]
        if jumps:
            break
        if operands.partition(",")[0].partition(".")[0] == register:
            return (place, value) if (value := _number(opcode, operands)) is not None else (index, None)
    return index, None


def _number(opcode: str, operands: str) -> int | None:
    """The number that an instruction puts into a register, in each of the ways in which ptxas spells that."""
    moved = _MOVE.match(operands)
    if moved and opcode.partition(".")[0] in {"MOV", "IMAD", "UMOV"}:
        return 0 if moved[2].endswith("RZ") else int(moved[2], 16)
    halves = _HALVES.match(operands)
    if halves and opcode.startswith("HFMA2"):
        try:
            high, low = (int.from_bytes(struct.pack("<e", float(text)), "little") for text in halves.group(2, 3))
        except (ValueError, OverflowError):
            return None
        return high << 16 | low
    return None
