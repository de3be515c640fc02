"""The builds that a store's log tells of, as values: what all commands that look into a build stand on."""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import DamagedError
from scons_gpu.store import because, log, stats
from scons_gpu.store.because import NOTHING, Because

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = ["Action", "Build", "End", "History", "history", "of", "read"]

UNIT_STAGES = ("lower", "assemble", "defer")
"""Stages that make a unit's files."""


@dataclass(frozen=True)
class Action:
    """One step of a build. store/log.py tells what each field of its record holds."""

    build: str
    time: float
    """When its record was written; seconds since 1970."""
    stage: str
    name: str
    result: str
    arch: str = ""
    owners: tuple[str, ...] = ()
    target: str = ""
    """Absolute path of what it makes; empty in records of older versions."""
    key: Mapping[str, str] = field(default_factory=dict)
    because: Because = NOTHING
    unit: str = ""
    """Digest of the unit, state or table object that it works on."""
    role: str = ""
    """`unit`, `state` or `table`, where there is a `unit`."""
    candidate: str = ""
    plan: str = ""
    """Of a step that writes a plan: the name of the plan's copy in the store (store/copies.py)."""
    content: str = ""
    """A hash of the file that it made; empty for units."""
    resources: tuple[Mapping[str, Any], ...] = ()
    """Of an assembled unit: what the assembler said of each kernel (store/record.py)."""
    start: float = 0.0
    end: float = 0.0
    worker: int = 0
    cpu: float = 0.0
    peak_kib: int = 0
    output: str = ""

    @property
    def seconds(self) -> float:
        """From its start to its end."""
        return max(0.0, self.end - self.start)

    @property
    def node(self) -> tuple[str, ...]:
        """What the same step of another build has too: its file; for a unit, whose file is named by content, kernel and first owner."""
        if self.unit or not self.target:
            return (self.stage, self.name, self.arch, *self.owners[:1])
        return (self.stage, self.target)


@dataclass(frozen=True)
class End:
    """What a build left when it ended."""

    ok: bool
    programs: tuple[str, ...] = ()
    plans: tuple[str, ...] = ()
    """Paths of the plans of all programs."""
    needed: frozenset[str] = frozenset()
    """Digests of the units of every image that was due."""
    deferred: frozenset[str] = frozenset()
    wall_seconds: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    """modules, kernels, references, unique, twins."""


@dataclass(frozen=True)
class Build:
    """One run of SCons."""

    id: str
    time: float
    """When its first record was written; seconds since 1970."""
    argv: tuple[str, ...] = ()
    looking: bool = False
    """Whether it was asked to build nothing: `-n`, `-q`."""
    jobs: int = 1
    top: str = ""
    """The folder of the SConstruct."""
    actions: tuple[Action, ...] = ()
    """In the order in which they ended."""
    end: End | None = None
    """None for a build that was killed, or still runs."""

    @functools.cached_property
    def by_target(self) -> Mapping[str, tuple[Action, ...]]:
        """File → the actions that made it."""
        found: dict[str, list[Action]] = defaultdict(list)
        for action in self.actions:
            found[action.target].append(action)
        return {target: tuple(actions) for target, actions in found.items()}


@dataclass(frozen=True)
class History:
    """All builds that a log knows, oldest first."""

    builds: tuple[Build, ...]
    last: str = ""
    """Id of the last one that did not only look."""
    place: str = ""
    """The store that it is of, for messages."""

    def build(self, name: str | None = None) -> Build:
        """The build of that id; without one, the last that did not only look. Raises UsageError where there is none."""
        wanted = self.last if name is None else name
        found = self._by_id.get(wanted)
        if found is None:
            raise stats.no_build(self.place, name)
        return found

    def until(self, name: str) -> History:
        """What was known when that build had ended. Raises UsageError where there is none of that id."""
        last = self.build(name)
        return replace(self, builds=tuple(build for build in self.builds if build.time <= last.time), last=last.id)

    @functools.cached_property
    def _by_id(self) -> Mapping[str, Build]:
        return {build.id: build for build in self.builds}

    @functools.cached_property
    def actions(self) -> tuple[Action, ...]:
        """Of all builds, in the order in which they ended."""
        return tuple(sorted((action for build in self.builds for action in build.actions), key=lambda action: action.time))

    @functools.cached_property
    def _nodes(self) -> Mapping[tuple[str, ...], tuple[Action, ...]]:
        found: dict[tuple[str, ...], list[Action]] = defaultdict(list)
        for action in self.actions:
            found[action.node].append(action)
        return {node: tuple(actions) for node, actions in found.items()}

    def of_node(self, node: tuple[str, ...]) -> tuple[Action, ...]:
        """All actions of one node, oldest first."""
        return self._nodes.get(node, ())

    def previous(self, action: Action) -> Action | None:
        """The last action of the same node before this one, in an earlier build; None where the log knows of none."""
        earlier = (each for each in reversed(self.of_node(action.node)) if each.time < action.time and each.build != action.build)
        return next(earlier, None)

    def of_stage(self, stage: str) -> tuple[Action, ...]:
        """All of one stage, oldest first."""
        return self._stages.get(stage, ())

    @functools.cached_property
    def _stages(self) -> Mapping[str, tuple[Action, ...]]:
        found: dict[str, list[Action]] = defaultdict(list)
        for action in self.actions:
            found[action.stage].append(action)
        return {stage: tuple(actions) for stage, actions in found.items()}

    @functools.cached_property
    def by_unit(self) -> Mapping[str, tuple[Action, ...]]:
        """Digest → what was done to make it, oldest first."""
        found: dict[str, list[Action]] = defaultdict(list)
        for action in self.actions:
            if action.unit and action.stage in UNIT_STAGES:
                found[action.unit].append(action)
        return {unit: tuple(actions) for unit, actions in found.items()}

    @functools.cached_property
    def by_target(self) -> Mapping[str, tuple[Action, ...]]:
        """File → what made it, oldest first."""
        found: dict[str, list[Action]] = defaultdict(list)
        for action in self.actions:
            if action.target:
                found[action.target].append(action)
        return {target: tuple(actions) for target, actions in found.items()}


def read(store: Path) -> History:
    """The builds of a store's log, and of the log put aside before it."""
    return history(log.read(store / "log.jsonl"), place=str(store))


PLANNED = (b'"type":"start"', b'"type":"end"', b".plan.json")
"""What records hold that tell which programs and plans a build was of."""


def of(store: Path, name: str | None = None, *, holding: Sequence[bytes] = (b"",)) -> Build:
    """One build, without decoding what the log tells of others; the last that did not only look, where None.

    `holding`: only records whose line holds one of these. Raises UsageError where there is no such build, DamagedError as `history`.
    """
    found, records = log.read_build(store / "log.jsonl", name, holding=holding)
    if not found:
        raise stats.no_build(store, name)
    return history(records, place=str(store)).build(found)


def history(records: Iterable[dict[str, Any]], *, place: str = "") -> History:
    """The builds that these records tell of. Raises DamagedError for a record that this version cannot read."""
    grouped, last = stats.by_build(records)
    try:
        builds = tuple(_build(name, found) for name, found in grouped.items())
    except (TypeError, ValueError, AttributeError) as error:
        msg = f"the log of {place} holds what is no record of this version: {error}"
        raise DamagedError(msg, hint="remove its log.jsonl and log.1.jsonl: nothing is built from them") from None
    return History(builds=builds, last=last, place=place)


def _build(name: str, records: Sequence[Mapping[str, Any]]) -> Build:
    start: Mapping[str, Any] = next((record for record in records if record.get("type") == "start"), {})
    return Build(
        id=name,
        time=float(records[0].get("time") or 0.0),
        argv=tuple(map(str, start.get("argv") or ())),
        looking=bool(start.get("looking", False)),
        jobs=int(start.get("jobs") or 1),
        top=str(start.get("top") or ""),
        actions=tuple(_action(record, build=name) for record in records if record.get("type") == "action"),
        end=next((_end(record) for record in records if record.get("type") == "end"), None),
    )


def _action(record: Mapping[str, Any], *, build: str) -> Action:
    get = record.get
    return Action(
        build=build,
        time=float(get("time") or 0.0),
        stage=str(get("stage", "")),
        name=str(get("name", "")),
        result=str(get("result", "")),
        arch=str(get("arch") or ""),
        owners=tuple(map(str, get("owners") or ())),
        target=str(get("target") or ""),
        key=dict(get("key") or {}),
        because=because.from_json(get("because")) if get("because") else NOTHING,
        unit=str(get("unit") or ""),
        role=str(get("role") or ("unit" if get("unit") else "")),
        candidate=str(get("candidate") or ""),
        plan=str(get("plan") or ""),
        content=str(get("content") or ""),
        resources=tuple(map(dict, get("resources") or ())),
        start=float(get("start") or 0.0),
        end=float(get("end") or 0.0),
        worker=int(get("worker") or 0),
        cpu=float(get("cpu") or 0.0),
        peak_kib=int(get("peak_kib") or 0),
        output=str(get("output") or ""),
    )


_COUNTS = ("modules", "kernels", "references", "unique", "twins")


def _end(record: Mapping[str, Any]) -> End:
    return End(
        ok=bool(record.get("ok")),
        programs=tuple(map(str, record.get("programs") or ())),
        plans=tuple(map(str, record.get("plans") or ())),
        needed=frozenset(map(str, record.get("units_needed") or ())),
        deferred=frozenset(map(str, record.get("units_deferred") or ())),
        wall_seconds=float(record.get("wall_seconds") or 0.0),
        counts={name: int(record.get(name) or 0) for name in _COUNTS},
    )
