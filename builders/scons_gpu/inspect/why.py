"""Why a file was made again: from what SCons found to be other, step by step down to what somebody changed.

A step's record says which of its inputs were other than when its file was last made (store/because.py). An input that a step of ours
made has a record too, in the same build or in one since; so the way ends at sources, headers, options and tools.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from scons_gpu.inspect import fields
from scons_gpu.inspect.causes import Cause, Via, merged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scons_gpu.inspect.builds import Action, History
    from scons_gpu.inspect.slices import Difference
    from scons_gpu.store.because import Input

__all__ = ["Answer", "Tracer", "made", "of_target"]

_LEAVES = {"source": "source", "host": "source", "choose": "tuning file"}
"""Stage → what an input of it is that nobody here made."""


@dataclass(frozen=True)
class Answer:
    """Why one file, or one unit of one module and architecture, is as it is."""

    subject: str
    """A path below the top, or a kernel's readable name."""
    outcome: str
    """What the last step came to: built, compiled, reused, failed, refused, empty, missing."""
    build: str = ""
    """The build that it came to this in; empty where the log does not know it."""
    time: float = 0.0
    """When that began; seconds since 1970."""
    module: str = ""
    arch: str = ""
    symbol: str = ""
    source: str = ""
    unit: str = ""
    """Digest, of a kernel's unit."""
    before: str = ""
    """The build that made it before; empty where the log knows of none."""
    made_in: str = ""
    """Of a unit that was reused: the build that had made it."""
    made_time: float = 0.0
    """When that began."""
    causes: tuple[Cause, ...] = ()
    differences: tuple[Difference, ...] = ()
    """What in the unit's text is other."""
    shared_with: tuple[str, ...] = ()
    """Other modules that the one unit is for."""
    changed: tuple[str, ...] = ()
    """Units of the module that changed with it, or of the image; readable names."""
    unchanged: int = 0
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        lists = {
            "causes": [cause.to_json() for cause in self.causes],
            "differences": [each.to_json() for each in self.differences],
            "changed": list(self.changed),
            "shared_with": list(self.shared_with),
            "notes": list(self.notes),
        }
        return {**vars(self), **lists}


def made(action: Action) -> bool:
    """Whether the step came to its end; a file may rightly be absent."""
    return action.result in ("built", "empty")


class Tracer:
    """Follows causes through the records of a history."""

    def __init__(self, history: History) -> None:
        self.history = history

    def shown(self, path: str, build: str) -> str:
        """A path as the user of that build would write it."""
        top = self.history.build(build).top
        return str(PurePath(path).relative_to(top)) if top and PurePath(path).is_relative_to(top) else path

    def made_before(self, action: Action) -> Action | None:
        """The last time that this file was made before, in an earlier build."""
        earlier = (each for each in reversed(self.history.by_target.get(action.target, ())) if each.time < action.time)
        return next((each for each in earlier if made(each) and each.build != action.build), None)

    def causes(self, action: Action) -> list[Cause]:
        """All that made this step run, with the ways to it."""
        because, name = action.because, self.shown(action.target, action.build)
        before = self.made_before(action)
        found = self._first(action, before) if because.first else []
        for each in because.inputs:
            found += self._input(action, each, before)
        found += fields.of_key(action.stage, because.key, action.key)
        if because.missing:
            found += self._missing(action, name, more=bool(found))
        for flag in ("altered", "order"):
            found += [Cause(flag, name)] if getattr(because, flag) else []
        via = Via(action.stage, action.name, action.target, action.build)
        return [cause.through(via) for cause in found or [Cause("always", name)]]

    def _first(self, action: Action, before: Action | None) -> list[Cause]:
        name = self.shown(action.target, action.build)
        if before is None:
            failed = self.history.previous(action)
            return [Cause("failed", name, now=failed.build) if failed else Cause("first", name)]
        differing = {
            field: (before.key.get(field, ""), action.key.get(field, ""))
            for field in sorted({*before.key, *action.key})
            if before.key.get(field) != action.key.get(field)
        }
        return [Cause("unrecorded", name), *fields.of_key(action.stage, differing, action.key)]

    def _missing(self, action: Action, name: str, *, more: bool) -> list[Cause]:
        """A step that failed left no file: that says nothing where something was changed since."""
        last = self.history.previous(action)
        if last is not None and not made(last):
            return [] if more else [Cause("failed", name, now=last.build)]
        return [Cause("missing", name)]

    def _input(self, action: Action, changed: Input, before: Action | None) -> Iterator[Cause]:
        made_it = [each for each in self.history.by_target.get(changed.path, ()) if made(each) and each.time <= action.time]
        if changed.change == "removed":
            yield self._removed(action, changed, made_it)
            return
        since = _differing(made_it, before) if before is not None else made_it[-1:]
        if not since:
            yield Cause(self._leaf(action, changed), self.shown(changed.path, action.build), changed.change)
        for each in since:
            if changed.change == "added" and each.because.first and self.made_before(each) is None and each.stage in ("source", "split"):
                yield Cause("source", each.name, "added")
            else:
                yield from self.causes(each)

    def _removed(self, action: Action, changed: Input, made_it: list[Action]) -> Cause:
        if action.stage == "plan" and made_it:
            return Cause("source", made_it[-1].name, "removed")
        kind = "header" if action.stage in ("source", "host") else "dropped" if made_it else "file"
        return Cause(kind, self.shown(changed.path, action.build), "removed")

    @staticmethod
    def _leaf(action: Action, changed: Input) -> str:
        if changed.role != "source":
            return "header" if changed.role == "read" else "generated header"
        return _LEAVES.get(action.stage, "file")


def _differing(made_it: list[Action], before: Action) -> list[Action]:
    """What made the file since then, without those that made it as it was."""
    since = [place for place, each in enumerate(made_it) if each.time > before.time]
    other = [
        made_it[place] for place in since if not place or not made_it[place].content or made_it[place].content != made_it[place - 1].content
    ]
    return other or [made_it[place] for place in since] or made_it[-1:]


def of_target(tracer: Tracer, path: str) -> Answer:
    """Why the file at `path`, which a step in the log made, was made the last time."""
    actions = tracer.history.by_target[path]
    action = actions[-1]
    before = tracer.made_before(action)
    causes = merged(tracer.causes(action))
    notes = () if before else ("the first time in this log: what it was made from before, the log does not know",)
    return Answer(
        subject=tracer.shown(path, action.build),
        outcome=action.result,
        build=action.build,
        module=action.owners[0] if action.owners else "",
        arch=action.arch,
        before=before.build if before else "",
        causes=tuple(_without_last(cause) for cause in causes),
        notes=notes if action.because and not action.because.first else (),
    )


def _without_last(cause: Cause) -> Cause:
    """The last step of each way is the file itself."""
    return Cause(**{**vars(cause), "routes": tuple(route[:-1] for route in cause.routes)})
