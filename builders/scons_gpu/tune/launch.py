"""How a kernel is launched to be measured: its grid, and its arguments as words that stand for buffers and numbers.

in f32 1048576      a device buffer of that many values, filled with a fixed sequence
out f32 1048576     one that is zeroed before the launch, and compared between candidates
inout f32 1048576   one that is filled, and compared
i32 4096            a number
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from scons_gpu.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TYPES", "Argument", "Buffer", "Launch", "Scalar", "read_argument", "read_launch"]

Direction = Literal["in", "out", "inout"]

TYPES = {"bf16": 2, "f16": 2, "f32": 4, "f64": 8, "i8": 1, "i32": 4, "i64": 8, "u8": 1, "u32": 4, "u64": 8}
"""Each type's size in bytes."""
_GRID = (2**31 - 1, 65535, 65535)  # CUDA C++ Programming Guide, technical specifications per compute capability
_BLOCK = (1024, 1024, 64)
_THREADS = 1024
_COUNT = re.compile(r"[1-9]\d*", re.ASCII)
_FIELDS = frozenset({"grid", "block", "shared", "args"})


@dataclass(frozen=True)
class Buffer:
    """Device memory of `count` values."""

    direction: Direction
    type: str
    count: int

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.count * TYPES[self.type]


@dataclass(frozen=True)
class Scalar:
    """A number."""

    type: str
    value: int | float


Argument = Buffer | Scalar


@dataclass(frozen=True)
class Launch:
    """One launch. `read_launch` makes one from what a user wrote, and says what is wrong with it."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0
    """Dynamic shared memory, bytes."""
    args: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """What the words of `args` mean."""
        return tuple(read_argument(word) for word in self.args)

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """The buffers that are compared, in the arguments' order."""
        return tuple(each for each in self.arguments if isinstance(each, Buffer) and each.direction != "in")

    def to_json(self) -> dict[str, Any]:
        """As a user writes it."""
        return {"grid": list(self.grid), "block": list(self.block), "shared": self.shared, "args": list(self.args)}


def read_launch(data: Mapping[str, Any]) -> Launch:
    """The launch that `{"grid": [64], "block": [256], "shared": 0, "args": [...]}` describes. Raises UsageError for anything else."""
    if not hasattr(data, "keys"):
        _refuse(f"{data!r} is no launch", "a launch is a dict with grid, block, and where need be shared and args")
    unknown = sorted(map(str, set(data) - _FIELDS))
    missing = [name for name in ("grid", "block") if name not in data]
    if unknown or missing:
        _refuse(f"a launch {f'has no {missing[0]}' if missing else f'knows no {unknown[0]!r}'}", "it has grid, block, shared and args")
    block = _shape("block", data["block"], _BLOCK)
    if math.prod(block) > _THREADS:
        _refuse(f"block {data['block']!r} has {math.prod(block)} threads", f"a block takes {_THREADS} at most")
    shared = data.get("shared", 0)
    if not _whole(shared) or not 0 <= shared < 2**31:
        _refuse(f"shared {shared!r} is no size", "dynamic shared memory is given in bytes")
    return Launch(grid=_shape("grid", data["grid"], _GRID), block=block, shared=shared, args=_words(data.get("args", ())))


def read_argument(word: str) -> Argument:
    """What `word` means. Raises UsageError that quotes it."""
    match word.split():
        case [("in" | "out" | "inout") as direction, str() as kind, str() as count] if kind in TYPES:
            if not _COUNT.fullmatch(count) or int(count) >= 2**48:
                _refuse_word(word, f"{count!r} is no number of values")
            return Buffer(direction=direction, type=kind, count=int(count))
        case [str() as kind, str() as value] if kind in TYPES:
            return Scalar(type=kind, value=_number(word, kind, value))
        case [("in" | "out" | "inout"), str() as kind, str()] | [str() as kind, str()]:
            _refuse_word(word, f"{kind!r} is no type")
    return _refuse_word(word, "it has another number of words")


def _number(word: str, kind: str, text: str) -> int | float:
    try:
        if "f" in kind:
            return float(text)
        value, bits = int(text, 0), TYPES[kind] * 8
    except ValueError:
        _refuse_word(word, f"{text!r} is no {kind}")
    least, most = (0, 2**bits) if kind[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    if not least <= value < most:
        _refuse_word(word, f"{text} does not fit into {kind}")
    return value


def _words(words: Any) -> tuple[str, ...]:  # noqa: ANN401 - whatever a user wrote
    if isinstance(words, str) or not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        _refuse(f"args {words!r} is no list of words", 'as in ["in f32 1024", "out f32 1024", "i32 4"]')
    for word in words:
        read_argument(word)
    return tuple(" ".join(word.split()) for word in words)


def _shape(name: str, value: Any, most: tuple[int, int, int]) -> tuple[int, int, int]:  # noqa: ANN401 - whatever a user wrote
    sizes = list(value) if isinstance(value, (list, tuple)) else [value]
    if not 1 <= len(sizes) <= 3 or not all(_whole(size) for size in sizes):
        _refuse(f"{name} {value!r} is no shape", f"{name} is one to three whole numbers, as in [64] or [8, 8, 4]")
    filled = (*sizes, 1, 1)[:3]
    if not all(1 <= size <= limit for size, limit in zip(filled, most, strict=True)):
        _refuse(f"{name} {value!r} is out of range", f"a {name} goes from 1 to {', '.join(map(str, most))}")
    return (filled[0], filled[1], filled[2])


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse_word(word: str, why: str) -> NoReturn:
    hint = f'as in "in f32 1024", "out f32 1024", "inout f32 1024" or "i32 4"; types are {", ".join(TYPES)}'
    _refuse(f'the argument "{word}" does not read: {why}', hint)


def _refuse(what: str, hint: str) -> NoReturn:
    raise UsageError(what, hint=hint) from None
