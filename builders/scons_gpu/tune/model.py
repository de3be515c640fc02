"""Problems, what their candidates came to, and decisions: the words that the choice, tuning files and messages share."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from scons_gpu.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["By", "Decision", "Pairs", "Problem", "Result", "label", "pairs", "spelled"]

Pairs = tuple[tuple[str, str], ...]
"""Names and values, sorted by name: equal sets are equal, in whatever order they were written."""
By = Literal["tuning", "resources", "only"]

_NAME = re.compile(r"[^\s=]+")


@dataclass(frozen=True)
class Problem:
    """A kernel that has candidates, for one architecture."""

    kernel: str
    """Its readable name."""
    arch: str
    """As spelled in full: `sm_90a`, `compute_90`."""
    keys: Pairs = ()
    """What tells it from others of the same kernel: a shape, a type. Make it with `pairs`."""

    def text(self) -> str:
        """What messages call it: `gemm(float const*, float*) sm_90 n=4096`."""
        return " ".join(part for part in (self.kernel, self.arch, spelled(self.keys)) if part)


@dataclass(frozen=True)
class Result:
    """What a candidate came to. Figures are None where nobody knows them, as for PTX, which its assembler will decide."""

    values: Pairs
    registers: int | None = None
    spill_bytes: int | None = None
    """Stores and loads together."""
    shared_bytes: int | None = None
    """Static, per block, without what the system reserves."""
    stack_bytes: int | None = None
    max_threads: int | None = None
    """Per block, as launch bounds say; None where there are none."""
    instructions: int | None = None
    failure: str = ""
    """Why it has no object; empty where it has one."""
    block_threads: int | None = None
    """Of the block that it is launched with, where launch data says so."""
    dynamic_bytes: int = 0
    """Shared memory that the launch adds to each block."""

    @property
    def label(self) -> str:
        """What messages call it: `TILE=64 GPU_MAXRREGCOUNT=128`, sorted."""
        return label(self.values)


@dataclass(frozen=True)
class Decision:
    """Which candidate a problem takes, and by what."""

    by: By
    values: Pairs
    why: str
    """One sentence for log and manifest. Equal inputs give equal ones: it has no path, time or host."""
    file: str = ""
    """The tuning file that decided, by the name that the user gave it."""

    @property
    def label(self) -> str:
        """The candidate, as its result calls it."""
        return label(self.values)


def label(values: Pairs) -> str:
    """One set of values in words. A set without values is the kernel as it is written."""
    return spelled(values) or "as written"


def pairs(values: Mapping[str, object], *, what: str = "values") -> Pairs:
    """What a user wrote as `values`, in the one form that is compared: 64 and "64" are one value, True is 1 and None a bare name.

    Raises UsageError for a name that is none and for a value that is neither number nor text; `what` says where it stands.
    """
    return tuple(sorted((_name(name, what), _value(name, value, what)) for name, value in values.items()))


def _name(name: object, what: str) -> str:
    if isinstance(name, str) and name.isprintable() and _NAME.fullmatch(name):
        return name
    msg = f"{what}: {name!r} is no name"
    raise UsageError(msg, hint="a name is text without blanks and without =")


def _value(name: str, value: object, what: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (int, float)) or (isinstance(value, str) and value.isprintable()):
        return str(value)
    msg = f"{what}: {name} is {value!r}, which is no value"
    raise UsageError(msg, hint="a value is a number, or text on one line")


def spelled(values: Pairs) -> str:
    """`TILE=64 n=4096`, sorted; a value with blanks is quoted, a bare name stays one. Empty for none."""
    return " ".join(f"{name}={_shown(value)}" if value else name for name, value in sorted(values))


def _shown(value: str) -> str:
    return json.dumps(value, ensure_ascii=False) if re.search(r"\s", value) else value
