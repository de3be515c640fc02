"""Measuring a dump on a GPU: which candidate of each problem is the fastest of those that give the same result."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import ceil
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import LaunchError, UsageError
from scons_gpu.toolchain.running import runs_on
from scons_gpu.tune.data import difference
from scons_gpu.tune.naming import names_of
from scons_gpu.tune.solution import Solution

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scons_gpu.tune.device import Gpu
    from scons_gpu.tune.dump import Dump, DumpedCandidate, DumpedProblem
    from scons_gpu.tune.launch import Launch

__all__ = ["SCHEMA", "Bench", "Candidate", "Timing", "bench", "middle"]

SCHEMA = "scons-gpu/bench/1"
SPREAD = 0.03
"""At which a time is believed."""
_WARM_UP = 5  # launches: the first pays for loading code, the next for clocks that come up
_SAMPLE_US = 100.0  # events tell time to half a microsecond (cuEventElapsedTime), so a sample is to take 200 times that
_MOST_REPEATS = 1000
_BATCH_US = 250_000.0  # of samples, before the spread is looked at again
_FEWEST, _MOST = 8, 50  # samples of a batch: a middle half of eight has four


@dataclass(frozen=True)
class Timing:
    """What many launches of one kernel took."""

    time_us: float
    """The mean of the middle half."""
    spread: float
    """From the least to the most of the middle half, as a part of the mean."""
    launches: int


@dataclass(frozen=True)
class Candidate:
    """What became of one candidate: a time, or why it has none."""

    label: str
    timing: Timing | None = None
    failure: str = ""


@dataclass(frozen=True)
class Measured:
    """What became of one problem: a solution, or why there is none."""

    problem: str
    candidates: tuple[Candidate, ...] = ()
    solution: Solution | None = None
    skipped: str = ""
    """Why nobody tried."""


@dataclass(frozen=True)
class Bench:
    """What became of a dump."""

    problems: tuple[Measured, ...]

    @property
    def solutions(self) -> tuple[Solution, ...]:
        """What a tuning file takes."""
        return tuple(each.solution for each in self.problems if each.solution)

    @property
    def unsolved(self) -> tuple[str, ...]:
        """Problems that were tried and of which no candidate could be measured."""
        return tuple(each.problem for each in self.problems if not each.solution and not each.skipped)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"schema": SCHEMA, "problems": [_plain(each) for each in self.problems]}


def bench(  # noqa: PLR0913 - what a user may choose
    dump: Dump,
    device: Gpu,
    *,
    seconds: float = 5.0,
    tolerance: float | None = None,
    kernel: str = "",
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = lambda _: None,
) -> Bench:
    """Measures each problem's candidates, in the dump's order.

    `seconds` is the longest that more runs are made of one candidate. `tolerance` takes the place of each floating point type's own.
    `kernel` names problems, by the kernel's symbol, its readable name, that without parameters, or a pattern over these. `say` gets a
    line for each candidate. Raises UsageError where no problem is named so.
    """
    chosen = [each for each in dump.problems if not kernel or _is_named(each, kernel)]
    if kernel and not chosen:
        msg = f"--kernel {kernel}: the dump has no such problem"
        raise UsageError(msg, hint="it has " + ", ".join(sorted({each.problem.kernel for each in dump.problems})) if dump.problems else "")
    rules = _Rules(seconds=seconds, tolerance=tolerance, clock=clock, say=say)
    tools = tuple(sorted(dump.tools.items()))
    return Bench(problems=tuple(_Problem(each, device, rules).measure(tools) for each in chosen))


def middle(times: Sequence[float]) -> tuple[float, float]:
    """The mean of the middle half, and how far that half spreads as a part of its mean."""
    quarter = len(times) // 4
    half = sorted(times)[quarter : len(times) - quarter]
    mean = fmean(half)
    return mean, (half[-1] - half[0]) / mean if mean else 0.0


@dataclass(frozen=True)
class _Rules:
    seconds: float
    tolerance: float | None
    clock: Callable[[], float]
    say: Callable[[str], None]


class _Problem:
    """One problem on its way."""

    def __init__(self, dumped: DumpedProblem, device: Gpu, rules: _Rules) -> None:
        self._dumped, self._device, self._rules = dumped, device, rules
        self._text = dumped.problem.text()
        self._reference: tuple[str, Launch, tuple[bytes, ...]] | None = None
        """The first candidate that ran, how it was launched, and what it gave."""

    def measure(self, tools: tuple[tuple[str, str], ...]) -> Measured:
        skipped = self._unfit()
        if skipped:
            self._rules.say(f"{self._text}: skipped: {skipped}")
            return Measured(problem=self._text, skipped=skipped)
        candidates = tuple(self._tried(each) for each in self._dumped.candidates)
        timed = [(each.timing, dumped) for each, dumped in zip(candidates, self._dumped.candidates, strict=True) if each.timing]
        if not timed:
            return Measured(problem=self._text, candidates=candidates)
        timing, winner = min(timed, key=lambda pair: pair[0].time_us)  # the first of equal ones
        solution = Solution(
            problem=self._dumped.problem,
            values=winner.result.values,
            time_us=round(timing.time_us, 3),
            spread=round(timing.spread, 4),
            candidates=len(timed),
            device=self._device.facts,
            tools=tools,
        )
        return Measured(problem=self._text, candidates=candidates, solution=solution)

    def _unfit(self) -> str:
        """Why it cannot be measured here; empty where it can."""
        arch, capability = self._dumped.problem.arch, self._device.facts.capability
        if not runs_on(arch, capability):
            return f"code for {arch} does not run on this device ({capability})"
        if not all(each.launch or self._dumped.launch for each in self._dumped.candidates):
            return "nobody said how it is launched: give its candidates `launch`"
        return ""

    def _tried(self, candidate: DumpedCandidate) -> Candidate:
        label = candidate.result.label
        try:
            timing = self._timed(candidate)
        except LaunchError as error:
            self._rules.say(f"{self._text}: {label}: left out: {error}")
            return Candidate(label=label, failure=str(error))
        self._rules.say(f"{self._text}: {label}: {timing.time_us:.2f} us, spread {timing.spread:.1%}, {timing.launches} launches")
        return Candidate(label=label, timing=timing)

    def _timed(self, candidate: DumpedCandidate) -> Timing:
        launch = candidate.launch or self._dumped.launch
        if candidate.image is None or launch is None:
            msg = f"it has no image: {candidate.result.failure or 'nobody says why'}"
            raise LaunchError(msg)
        ptx = self._dumped.problem.arch.startswith("compute_")
        self._device.load(candidate.image, entry=candidate.entry or self._dumped.entry, launch=launch, ptx=ptx)
        self._compare(candidate.result.label, launch, self._device.run())
        return _time(self._device, self._rules)

    def _compare(self, label: str, launch: Launch, outputs: tuple[bytes, ...]) -> None:
        """Raises LaunchError where the outputs are not those of the first candidate."""
        if self._reference is None:
            self._reference = label, launch, outputs
            return
        first, its_launch, expected = self._reference
        if launch.outputs != its_launch.outputs:
            msg = f"its result cannot be compared with that of {first}: it has other outputs"
            raise LaunchError(msg)
        for buffer, one, other in zip(launch.outputs, expected, outputs, strict=True):
            if why := difference(buffer, one, other, tolerance=self._rules.tolerance):
                msg = f"its result is not that of {first}: `{buffer.direction} {buffer.type} {buffer.count}`: {why}"
                raise LaunchError(msg)


def _time(device: Gpu, rules: _Rules) -> Timing:
    """Runs what is loaded until its times agree, or the time is used up."""
    end = rules.clock() + rules.seconds
    warm = median(device.time(samples=_WARM_UP, repeat=1))
    repeat = min(max(ceil(_SAMPLE_US / warm), 1), _MOST_REPEATS) if warm > 0 else _MOST_REPEATS
    samples = min(max(int(_BATCH_US / max(warm * repeat, 1.0)), _FEWEST), _MOST)
    times: list[float] = []
    while True:
        times += device.time(samples=samples, repeat=repeat)
        mean, spread = middle(times)
        if spread <= SPREAD or rules.clock() >= end:
            return Timing(time_us=mean, spread=spread, launches=len(times) * repeat)


def _is_named(dumped: DumpedProblem, pattern: str) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for name in names_of(dumped.entry, dumped.problem.kernel))


def _plain(measured: Measured) -> dict[str, Any]:
    solution = measured.solution.to_json() if measured.solution else None
    candidates = [
        {
            "label": each.label,
            "failure": each.failure,
            **(vars(each.timing) if each.timing else {"time_us": None, "spread": None, "launches": 0}),
        }
        for each in measured.candidates
    ]
    return {"problem": measured.problem, "skipped": measured.skipped, "candidates": candidates, "solution": solution}
