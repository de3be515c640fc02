"""When the steps of a build ran, and who ran them: what the trace, the slowest steps and the report's timeline show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scons_gpu.inspect.builds import Action, Build

__all__ = ["Lane", "Level", "Step", "Timeline", "levels", "slowest", "timeline"]

_PIDS = 1 << 22
"""Linux numbers processes below this (proc(5), pid_max); what is above is a thread of SCons, by its address."""


@dataclass(frozen=True)
class Lane:
    """One who works: a worker process, or a thread of SCons that waits for a tool. At any time it does one thing."""

    name: str
    worker: int


@dataclass(frozen=True)
class Step:
    """One action in its place."""

    action: Action
    lane: int
    """Which of the lanes."""
    start: float
    """Seconds since the build began."""
    seconds: float


@dataclass(frozen=True)
class Level:
    """What was going on from some time on."""

    at: float
    """Seconds since the build began."""
    running: int
    """Steps."""
    peak_kib: int
    """The most memory that these steps took at any time of theirs, added up: more than was ever taken at once."""


@dataclass(frozen=True)
class Timeline:
    """All of it, steps in order of their beginnings."""

    build: Build
    lanes: tuple[Lane, ...] = ()
    steps: tuple[Step, ...] = ()
    wall_seconds: float = 0.0
    """Of the whole build; of one that did not end, until its last step ended."""

    @property
    def span(self) -> float:
        """Seconds from the first step's beginning to the last one's end."""
        ends = [step.start + step.seconds for step in self.steps]
        return max(ends) - self.steps[0].start if ends else 0.0


def timeline(build: Build) -> Timeline:
    """Puts a build's steps in order. Those of which no time was recorded are left out."""
    actions = sorted((each for each in build.actions if each.start), key=lambda each: (each.start, each.end, each.target, each.unit))
    began = min([build.time, *(each.start for each in actions[:1])])
    lanes, places = _lanes(actions)
    steps = tuple(Step(each, lane, each.start - began, each.seconds) for each, lane in zip(actions, places, strict=True))
    last = max((step.start + step.seconds for step in steps), default=0.0)
    wall = build.end.wall_seconds if build.end else 0.0
    return Timeline(build=build, lanes=lanes, steps=steps, wall_seconds=max(wall, last))


def _lanes(actions: Sequence[Action]) -> tuple[tuple[Lane, ...], list[int]]:
    """A lane for each worker, in order of first work; a second for one that was given a step before it had ended another."""
    lanes: list[Lane] = []
    free: list[float] = []
    own: dict[int, list[int]] = {}
    threads: list[int] = []
    places = []
    for action in actions:
        mine = own.setdefault(action.worker, [])
        lane = next((lane for lane in mine if free[lane] <= action.start), None)
        if lane is None:
            lane = len(lanes)
            lanes.append(Lane(_name(action.worker, threads, len(mine)), action.worker))
            free.append(0.0)
            mine.append(lane)
        free[lane] = action.end
        places.append(lane)
    return tuple(lanes), places


def _name(worker: int, threads: list[int], again: int) -> str:
    if worker < _PIDS:
        name = f"worker {worker}"
    else:
        if worker not in threads:
            threads.append(worker)
        name = f"SCons thread {threads.index(worker) + 1}"
    return f"{name} ({again + 1})" if again else name


def levels(found: Timeline) -> Iterator[Level]:
    """How much was going on, at each time at which that changed."""
    changes: dict[float, list[int]] = {}
    for step in found.steps:
        for at, sign in ((step.start, 1), (step.start + step.seconds, -1)):
            change = changes.setdefault(at, [0, 0])
            change[0] += sign
            change[1] += sign * step.action.peak_kib
    running = peak = 0
    for at in sorted(changes):
        running, peak = running + changes[at][0], peak + changes[at][1]
        yield Level(at, running, peak)


def slowest(found: Timeline, count: int) -> tuple[Step, ...]:
    """The steps that took longest, those first."""
    return tuple(sorted(found.steps, key=lambda step: (-step.seconds, step.start, step.lane))[:count])
