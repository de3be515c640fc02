"""One entry of a tuning file: what was measured, where, and what its code runs on. Read field by field, since people edit such files."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from scons_gpu.errors import SourceError, UsageError
from scons_gpu.toolchain.arch import KNOWN
from scons_gpu.toolchain.running import runs_on
from scons_gpu.tune.model import Pairs, Problem, label, pairs

__all__ = ["Device", "Solution", "from_json", "refusal"]

_UNDECIDED = "a tuning file holds what was decided: measure the problem with scons-gpu bench, or take the entry out"
_CAPABILITY = re.compile(r"[1-9]\d*\.\d")


@dataclass(frozen=True)
class Device:
    """The GPU that measured."""

    name: str
    capability: str
    """`9.0`."""
    driver: str = ""


@dataclass(frozen=True)
class Solution:
    """The candidate that was the fastest for a problem, and who says so."""

    problem: Problem
    values: Pairs
    time_us: float
    """Of one launch, in microseconds."""
    spread: float
    """Of its runs, as a part of the time: 0.03 is 3 %."""
    candidates: int
    """How many were measured."""
    device: Device
    tools: Pairs
    """What compiled it: (("llvm", "22.1.0"), ("ptxas", "13.5.37"))."""

    @property
    def label(self) -> str:
        """The candidate, as its result calls it."""
        return label(self.values)

    def to_json(self) -> dict[str, Any]:
        """Its line of the file."""
        return {
            "kernel": self.problem.kernel,
            "arch": self.problem.arch,
            "keys": dict(self.problem.keys),
            "values": dict(self.values),
            "time_us": float(self.time_us),
            "spread": float(self.spread),
            "candidates": self.candidates,
            "device": dict(vars(self.device)),
            "tools": dict(self.tools),
        }


def refusal(solution: Solution) -> str:
    """Why the solution counts for no build at all; empty where it may."""
    arch, device = solution.problem.arch, solution.device
    if runs_on(arch, device.capability):
        return ""
    return f"{device.name} ({device.capability}), which is said to have measured it, cannot run code for {arch}"


def from_json(data: object, *, place: int, file: str) -> Solution:
    """Reads what `to_json` gave: the `place`-th entry of `file`. Raises SourceError, which names both."""
    return _Entry(data, place=place, file=file).solution()


@dataclass(frozen=True)
class _Entry:
    data: object
    place: int
    file: str

    def solution(self) -> Solution:
        if not isinstance(self.data, dict):
            msg = "is no object"
            raise self._wrong(msg)
        if not isinstance(self.data.get("values"), dict) or None in self.data["values"].values():
            msg = "is undecided: it has no values"
            raise self._wrong(msg, hint=_UNDECIDED)
        return Solution(
            problem=Problem(kernel=self._text("kernel"), arch=self._arch(), keys=self._pairs("keys")),
            values=self._pairs("values"),
            time_us=self._number("time_us", above=True),
            spread=self._number("spread"),
            candidates=self._count(),
            device=self._device(),
            tools=self._pairs("tools"),
        )

    def _get(self, name: str) -> Any:  # noqa: ANN401 - JSON
        return self.data.get(name) if isinstance(self.data, dict) else None

    def _text(self, name: str) -> str:
        value = self._get(name)
        if not isinstance(value, str) or not value or not value.isprintable():
            msg = f'"{name}" is {json.dumps(value)}, which is no name'
            raise self._wrong(msg)
        return value

    def _arch(self) -> str:
        arch = self._text("arch")
        kind, _, name = arch.partition("_")
        if kind not in {"sm", "compute"} or name not in KNOWN:
            msg = f'"arch" is {json.dumps(arch)}, which is no architecture'
            raise self._wrong(msg, hint="it is spelled in full, as sm_90, sm_90a or compute_90")
        return arch

    def _pairs(self, name: str) -> Pairs:
        value = self._get(name)
        try:
            if isinstance(value, dict) and None not in value.values():
                return pairs(value, what=f'"{name}"')
        except UsageError as error:
            raise self._wrong(error.what, hint=error.hint) from None
        msg = f'"{name}" is {json.dumps(value)}, not names with values'
        raise self._wrong(msg, hint='it is written as {"TILE": "64"}')

    def _number(self, name: str, *, above: bool = False) -> float:
        value = self._get(name)
        try:
            number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or number < 0 or (above and not number):
            msg = f'"{name}" is {json.dumps(value)}, not a number {"above 0" if above else "of 0 or more"}'
            raise self._wrong(msg)
        return number

    def _count(self) -> int:
        value = self._get("candidates")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            msg = f'"candidates" is {json.dumps(value)}, not the number of those that were measured'
            raise self._wrong(msg)
        return value

    def _device(self) -> Device:
        said = dict(self._pairs("device"))
        if not said.get("name"):
            msg = '"device" has no name'
            raise self._wrong(msg)
        if not _CAPABILITY.fullmatch(said.get("capability", "")):
            msg = f'"device" has the compute capability "{said.get("capability", "")}", which is none'
            raise self._wrong(msg, hint="it is written as 9.0")
        return Device(name=said["name"], capability=said["capability"], driver=said.get("driver", ""))

    def _wrong(self, what: str, *, hint: str = "") -> SourceError:
        named = " ".join(word for name in ("kernel", "arch") if isinstance(word := self._get(name), str) and word.isprintable())
        called = f"entry {self.place} ({named})" if named else f"entry {self.place}"
        return SourceError(f"{called} {what}" if what.startswith("is ") else f"{called}: {what}", source=self.file, hint=hint)
