"""The chain of steps that bounds a build: what would still take its time if there were a worker for every step.

A step waits for those whose files it reads: a split for its source, a plan for its splits, a unit for the first plan that names it, an
image for its plan and units, a fatbin for its images, the manifest for all. The chain is the longest way by the times that were recorded.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.errors import UsageError
from scons_gpu.inspect.graph_walk import library
from scons_gpu.inspect.planned import PLAN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from scons_gpu.inspect.builds import Action
    from scons_gpu.inspect.timeline import Step, Timeline

__all__ = ["Chain", "Link", "chain", "needs"]

_CANDIDATES = ".candidates.json"


@dataclass(frozen=True)
class Link:
    """One step of the chain."""

    step: Step
    waited: float
    """Seconds between the end of the step before, or the build's first step, and its beginning."""


@dataclass(frozen=True)
class Chain:
    """The chain, in order."""

    links: tuple[Link, ...]
    seconds: float
    """Of its steps, without waiting."""
    span: float
    """From the first step of the build to the end of the last."""
    wall_seconds: float

    @property
    def bound(self) -> float:
        """What the build would take with a worker for every step: the chain, and what SCons did before and after all steps."""
        return self.wall_seconds - self.span + self.seconds

    @property
    def gain(self) -> float:
        """How many times as fast that is."""
        return self.wall_seconds / self.bound if self.bound > 0 else 1.0


def chain(found: Timeline, units: Mapping[str, Sequence[str]]) -> Chain:
    """The chain of a build. `units`: plan → digests of its parts.

    Raises UsageError for a log that does not tell which files steps made: without them steps seem to wait for nothing.
    """
    if not found.steps:
        return Chain((), 0.0, 0.0, found.wall_seconds)
    files = [step.action.target for step in found.steps if not step.action.unit]
    if files and not any(files):
        msg = f"the log of build {found.build.id} does not tell which files its steps made: an earlier version of scons-gpu wrote it"
        raise UsageError(msg, hint="build again, or give --build with the id of a later build")
    rustworkx = library()
    end = len(found.steps)
    made = rustworkx.PyDiGraph()
    made.add_nodes_from(range(end + 1))
    made.add_edges_from_no_data(list(needs([step.action for step in found.steps], units)))
    made.add_edges_from_no_data([(place, end) for place in range(end)])
    way = rustworkx.dag_weighted_longest_path(made, lambda one, _other, _edge: found.steps[one].seconds)
    steps = [found.steps[place] for place in way if place != end]
    links, free = [], found.steps[0].start
    for step in steps:
        links.append(Link(step, max(0.0, step.start - free)))
        free = step.start + step.seconds
    return Chain(tuple(links), sum(step.seconds for step in steps), found.span, found.wall_seconds)


def needs(actions: Sequence[Action], units: Mapping[str, Sequence[str]]) -> set[tuple[int, int]]:
    """Pairs of places: of a step, and of one that waits for it. The actions are in order of their beginnings."""
    known = _Known.of(actions, units)
    # What a step waits for begins before it: whatever a log holds, there is no cycle.
    return {(one, place) for place, action in enumerate(actions) for one in known.before(action) if one < place}


@dataclass(frozen=True)
class _Known:
    """Where the steps are that others wait for."""

    targets: Mapping[str, int]
    """File → the step that made it."""
    splits: Mapping[tuple[str, str], Sequence[int]]
    """Folder and architecture → the splits there."""
    units: Mapping[str, Sequence[tuple[int, str]]]
    """Digest → the steps that made its files, and of which kind: `rel` or `whole` objects."""
    lowered: Mapping[str, int]
    planned: Mapping[str, int]
    """Digest → the step that first planned it."""
    tried: Mapping[tuple[str, str], Sequence[int]]
    """Module and architecture → the steps that made what is to be chosen from."""
    problems: Mapping[tuple[str, str], Sequence[int]]
    """The same → the steps that planned it."""
    parts: Mapping[str, Sequence[str]]
    folders: Mapping[str, Sequence[int]]
    """Folder → links and packs of what lies in it or below."""

    @classmethod
    def of(cls, actions: Sequence[Action], parts: Mapping[str, Sequence[str]]) -> _Known:
        targets = {action.target: place for place, action in enumerate(actions) if action.target}
        splits, tried, problems = (defaultdict[tuple[str, str], list[int]](list) for _ in range(3))
        units: dict[str, list[tuple[int, str]]] = defaultdict(list)
        folders: dict[str, list[int]] = defaultdict(list)
        lowered: dict[str, int] = {}
        for place, action in enumerate(actions):
            if action.stage == "split":
                splits[_folder(action.target), action.arch].append(place)
            elif action.unit:
                units[action.unit].append((place, action.key.get("kind", "")))
                if action.stage == "lower":
                    lowered[action.unit] = place
                if action.candidate:
                    tried[_owner(action), action.arch].append(place)
            elif action.target.endswith(_CANDIDATES):
                problems[_owner(action), action.arch].append(place)
            elif action.stage in ("link", "pack"):
                for folder in (_folder(action.target), _folder(_folder(action.target))):
                    folders[folder].append(place)
        return cls(targets, splits, units, lowered, _first(actions, targets, parts), tried, problems, parts, folders)

    def before(self, action: Action) -> Iterable[int]:
        """The steps that this one waits for."""
        stage, target = action.stage, action.target
        if action.unit:
            return self._of_unit(action)
        if stage == "choose":
            tried = self.tried.get((_owner(action), action.arch), ())
            return (*self._made(target.replace(PLAN, _CANDIDATES)), *tried)
        if stage == "link":
            return self._of_image(action)
        if stage == "split":
            stem = target.removesuffix(".index.json")
            return self._made(f"{stem}.ll", f"{stem}.ptx", f"{stem}.bc")
        if stage == "plan":
            return self.splits.get((_folder(target), action.arch), ())
        below = {"pack": target.rpartition(".")[0], "manifest": target.rpartition(".")[0], "host": f"{target}.gpu"}
        return self.folders.get(below.get(stage, ""), ())

    def _of_unit(self, action: Action) -> Iterator[int]:
        lowered = self.lowered.get(action.unit)
        if action.stage != "lower" and lowered is not None:
            yield lowered
        elif action.unit in self.planned and not action.candidate:
            yield self.planned[action.unit]
        elif action.candidate:
            yield from self.problems.get((_owner(action), action.arch), ())

    def _of_image(self, link: Action) -> Iterator[int]:
        """An image waits for one plan, a bundle for those of all its architectures; and for objects of the kind that it takes."""
        stem = link.target.rpartition(".")[0]
        paths = [path for path in self.parts if path == f"{stem}{PLAN}" or _folder(path) == stem]
        yield from self._made(*paths)
        kinds = {value.strip('"') for name, value in link.key.items() if name.rpartition(" ")[2] == "kind"}
        for path in paths:
            for digest in self.parts[path]:
                made = self.units.get(digest, ())
                yield from (place for place, kind in made if not (kind and kinds) or kind in kinds)

    def _made(self, *targets: str) -> tuple[int, ...]:
        return tuple(self.targets[target] for target in targets if target in self.targets)


def _first(actions: Sequence[Action], targets: Mapping[str, int], parts: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Digest → of the plans that name it, the one that was ready first: its unit need not wait for others."""
    found: dict[str, int] = {}
    for path, digests in parts.items():
        place = targets.get(path)
        for digest in digests if place is not None else ():
            known = found.get(digest)
            if place is not None and (known is None or actions[place].end < actions[known].end):
                found[digest] = place
    return found


def _owner(action: Action) -> str:
    return action.owners[0] if action.owners else ""


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
