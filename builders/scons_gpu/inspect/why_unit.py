"""Why a kernel's unit was compiled, or was not: its plan now and before, its text, its options, the store."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from scons_gpu.errors import DamagedError
from scons_gpu.inspect import fields
from scons_gpu.inspect.causes import Cause, Via, merged
from scons_gpu.inspect.links import Links
from scons_gpu.inspect.slices import differences
from scons_gpu.inspect.why import Answer, made
from scons_gpu.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scons_gpu.inspect.builds import Action
    from scons_gpu.inspect.planned import Found, Plans
    from scons_gpu.inspect.slices import Difference
    from scons_gpu.inspect.why import Tracer
    from scons_gpu.plan.model import Part

__all__ = ["Units"]

_FROM_PLAN = {
    "fast-math": ("fast_math",),
    "ftz": ("ftz", "fast_math"),
    "debug": ("debug", "lineinfo"),
    "opt": ("opt", "debug"),
    "ptx": ("ptx",),
    "lowered-by": ("by",),
    "llvm": ("llvm",),
    "nvvm": ("nvvm",),
    "libdevice": ("libdevice",),
    "format": ("tool",),
}
"""A unit's field → the fields of its plan's key that it comes from."""
_TEXTS = ("slice", "joins", "renames")


@dataclass(frozen=True)
class _Change:
    """The last time that a plan came to name a unit otherwise."""

    action: Action
    """What wrote that plan."""
    earlier: Action | None
    """What wrote the plan before; None where the log knows of none."""
    before: Part | None
    """The unit in it; None for a new one, and where the plan's copy is gone."""
    gone: bool = False
    """Whether that copy is gone."""


@dataclass(frozen=True)
class _Known:
    """What is known of one unit of one module and architecture."""

    part: Part
    change: _Change
    links: Links
    compiled: tuple[Action, ...]
    """Steps that made what the last link takes of it, oldest first."""

    @property
    def last(self) -> Action:
        """The newest of them."""
        return self.compiled[-1]

    @property
    def by_plan(self) -> bool:
        """Whether it was compiled because its plan had come to name it: in that build, or in the first after it that linked."""
        action = self.change.action
        return action.build == self.last.build or (
            action.time < self.last.time and not self.links.between(action.time, self.last.time, but=self.last.build)
        )

    @property
    def by_link(self) -> Action | None:
        """The link of that build, where it wanted other objects than the one before."""
        changed = self.links.changed
        return changed if changed is not None and changed.build == self.last.build else None

    @property
    def latest(self) -> Action:
        """The last step that wanted another file of the unit than before."""
        changed = self.links.changed
        return max((each for each in (self.change.action, changed) if each is not None), key=lambda action: action.time)


class Units:
    """Answers for units."""

    def __init__(self, tracer: Tracer, plans: Plans, store: Path) -> None:
        self._tracer = tracer
        self._history = tracer.history
        self._plans = plans
        self._store = Store([store])

    def answer(self, found: Found, plans: Sequence[str]) -> Answer:
        """Why the unit is as it is; `plans` are those in which to look for who shares it."""
        part, change = found.part, self._change(found)
        steps = self._history.by_unit.get(part.digest, ())
        compiled, failed = [each for each in steps if made(each)], [each for each in steps if not made(each)]
        module, arch = change.action.owners[0], change.action.arch
        links = Links.of(self._history, module=module, arch=arch, top=self._history.build(change.action.build).top)
        answer = Answer(
            subject=part.readable,
            outcome="",
            module=module,
            arch=arch,
            symbol=part.kernels[0].symbol if part.kernels else "",
            source=part.source,
            unit=part.digest,
            shared_with=self._sharing(found, plans),
            before=change.earlier.build if change.earlier else "",
        )
        if failed and (not compiled or failed[-1].time > compiled[-1].time):
            return self._failed(answer, failed[-1], change, part, links)
        if not compiled:
            return self._by_plan(self._unknown(answer, part), change, part)
        return self._compiled(answer, _Known(part, change, links, tuple(links.taken(compiled))))

    def _failed(self, answer: Answer, failed: Action, change: _Change, part: Part, links: Links) -> Answer:
        """A unit that could not be made; no link came after it, so its own key says what of the options is other."""
        said = failed.output.splitlines()[:1]
        answer = replace(answer, outcome=failed.result, build=failed.build, notes=tuple(said))
        since = links.between(change.action.time, failed.time, but=failed.build)
        if change.action.build == failed.build or not since or failed.stage == "lower":
            return self._by_plan(answer, change, part)
        return replace(answer, causes=merged(links.causes_of(failed)), before=links.actions[-1].build)

    def _compiled(self, answer: Answer, known: _Known) -> Answer:
        """A unit of which the log knows who compiled it."""
        last, latest = known.last, known.latest
        if last.time < latest.time and last.build != latest.build:
            return self._wanted(replace(answer, outcome="reused", build=latest.build, made_in=last.build), known, latest)
        owners = {owner for each in known.compiled if each.build == last.build for owner in each.owners}
        if answer.module not in owners:
            return self._wanted(replace(answer, outcome="reused", build=last.build, made_in=last.build), known, latest)
        answer = replace(answer, outcome="compiled", build=last.build)
        if known.by_plan:
            extra = self._by_link(known, known.by_link) if known.by_link else []
            return self._by_plan(answer, known.change, known.part, extra)
        if known.by_link is not None:
            causes = merged(self._by_link(known, known.by_link))
            return replace(answer, causes=causes, before=known.links.before(known.by_link))
        before = next((each.build for each in reversed(known.compiled) if each.build != last.build), "")
        steps = [each for each in self._history.by_unit[known.part.digest] if each.build == last.build and made(each)]
        return replace(answer, causes=self._lost(steps), before=before)

    def _wanted(self, answer: Answer, known: _Known, latest: Action) -> Answer:
        """Why the module came to take what was there already."""
        changed = known.links.changed
        if changed is None or latest.build != changed.build:
            return self._by_plan(answer, known.change, known.part)
        if known.change.action.build == changed.build:
            return self._by_plan(answer, known.change, known.part, self._by_link(known, changed))
        return replace(answer, causes=merged(self._by_link(known, changed)), before=known.links.before(changed))

    def _change(self, found: Found) -> _Change:
        actions, name = self._plans.files[found.plan], _name(found.part)
        now = found.part
        for action, earlier in zip(reversed(actions), reversed(actions[:-1]), strict=False):
            text = self._plans.text(earlier)
            if text is None:
                return _Change(action, earlier, None, gone=True)
            parts = self._plans.parts(earlier) if now.digest.encode() not in text or not self._same_line(action, text, now) else None
            if parts is None:
                continue
            before = parts.get(name)
            if before is None or _fields(before) != _fields(now):
                return _Change(action, earlier, before)
        return _Change(actions[0], None, None)

    def _same_line(self, action: Action, text: bytes, part: Part) -> bool:
        """Whether the part's line of the plan that `action` wrote stands in `text`: then nobody has to read it."""
        here = self._plans.text(action)
        digest = f'"digest": "{part.digest}"'.encode()
        line = next((line for line in here.splitlines() if digest in line), None) if here else None
        return line is not None and line.rstrip(b",") in text

    def _by_plan(self, answer: Answer, change: _Change, part: Part, extra: Sequence[Cause] = ()) -> Answer:
        """With the causes of the plan's change, what in the text is other, and how many units stayed."""
        found, notes = self._differences(change, part)
        changed, unchanged = self._others(change, part)
        return replace(
            answer,
            causes=merged([*self._causes(change, part), *(extra if change.earlier else ())]),
            differences=found,
            changed=changed,
            unchanged=unchanged,
            notes=(*answer.notes, *notes),
        )

    def _unknown(self, answer: Answer, part: Part) -> Answer:
        """The log knows nobody who compiled it."""
        path = self._store.root / "ptx" / part.digest[:2] / f"{part.digest}.ptx"
        if part.refused:
            reason = str(json.loads(part.refused).get("what", ""))
            return replace(answer, outcome="refused", build="", notes=(reason,))
        if path.exists():
            return replace(answer, outcome="reused", notes=("it was in the store before this log began, or came from another store",))
        return replace(answer, outcome="missing", notes=("no build in the log made it, and the store does not hold it",))

    def _causes(self, change: _Change, part: Part) -> list[Cause]:
        if change.earlier is None:
            return self._first(change)
        if change.before is None:
            found = self._tracer.causes(change.action)
            return found if change.gone else [*found, Cause("new", part.readable)]
        before, now = _fields(change.before), _fields(part)
        differing = {name: (before.get(name, ""), now.get(name, "")) for name in sorted(before | now) if before.get(name) != now.get(name)}
        found = []
        if "candidate" in differing:  # its text and options follow
            return self._candidate(change, part, *differing["candidate"])
        if any(name in differing for name in _TEXTS):
            found += self._texts(change, part, differing)
        if "source" in differing:
            found.append(Cause("moved", part.readable, then=differing["source"][0], now=differing["source"][1]))
        return found + self._options(
            change, {name: pair for name, pair in differing.items() if name not in (*_TEXTS, "candidate", "source")}
        )

    def _first(self, change: _Change) -> list[Cause]:
        """The log knows no earlier plan: of a module or an architecture that was added, somebody's key says so."""
        if not change.action.because.first:
            return [Cause("first", self._tracer.shown(change.action.target, change.action.build))]
        folder = PurePath(change.action.target).parent
        packs = {str(folder.with_name(folder.name + suffix)) for suffix in (".fatbin", ".gpubundle")}
        found = []
        for action in self._history.build(change.action.build).actions:
            if action.target in packs and (archs := action.because.key.get("archs")):
                found += fields.of_key("pack", {"archs": archs}, action.key)
            if action.stage == "manifest" and (modules := action.because.key.get("modules")):
                added = fields.of_key("manifest", {"modules": modules}, action.key)
                found += [cause for cause in added if cause.name == change.action.owners[0] and cause.change == "added"]
        return found or self._tracer.causes(change.action)

    def _candidate(self, change: _Change, part: Part, then: str, now: str) -> list[Cause]:
        """Another candidate was chosen: because of a tuning file, or of what the candidates are."""
        leaves = [cause for cause in self._tracer.causes(change.action) if cause.kind == "tuning file"]
        return leaves or [Cause("candidate", part.kernels[0].readable, then=then, now=now)]

    def _texts(self, change: _Change, part: Part, differing: Mapping[str, tuple[str, str]]) -> list[Cause]:
        """Its text, or that of what joins it, is other: what was split anew, of the sources that it comes from."""
        sources = {part.source, change.before.source if change.before else part.source} if "slice" in differing else set()
        if "joins" in differing:
            sources |= {joined.source for each in (part, change.before) if each for joined in each.joins}
        if "renames" in differing:
            return self._tracer.causes(change.action)
        since = change.earlier.time if change.earlier else 0.0
        folder = PurePath(change.action.target).parent
        split = [
            action
            for action in self._history.of_stage("split")
            if action.arch == change.action.arch and action.name in sources and made(action)
            if since < action.time <= change.action.time and PurePath(action.target).parent == folder
        ]
        found = [cause for action in split for cause in self._tracer.causes(action)]
        return _named_by_plan(change.action, found) if found else self._tracer.causes(change.action)

    def _by_link(self, known: _Known, link: Action) -> list[Cause]:
        """What a link wanted otherwise, by the names that the plan of that build has for it."""
        plans = self._history.build(link.build).by_target.get(known.change.action.target, ())
        found = known.links.causes(link)
        return _named_by_plan(plans[-1], found) if plans else found

    def _options(self, change: _Change, differing: Mapping[str, tuple[str, str]]) -> list[Cause]:
        """What shapes all units of the plan, by the names that the plan's key has."""
        key = change.action.because.key
        found: list[Cause] = []
        for name, pair in differing.items():
            if name in ("lower", "assemble"):
                found += fields.of_own(*pair)
                continue
            named = {each: key[each] for each in _FROM_PLAN.get(name, ()) if each in key}
            found += fields.of_key("plan", named, change.action.key) if named else fields.of_unit({name: pair})
        via = Via(change.action.stage, change.action.name, change.action.target, change.action.build)
        return [cause.through(via) for cause in found]

    def _lost(self, steps: Sequence[Action]) -> tuple[Cause, ...]:
        """Nobody wanted it otherwise, and it was compiled: what the store held was damaged, or not there."""
        faults = [each for each in steps if each.because.lost]
        if faults:
            return tuple(Cause("lost", self._tracer.shown(each.target, each.build), now=each.because.lost) for each in faults)
        what = {"lower": "PTX", "assemble": "object", "defer": "deferred PTX"}
        return (Cause("gone", f"the unit's {' and '.join(dict.fromkeys(what[each.stage] for each in steps))}"),)

    def _differences(self, change: _Change, part: Part) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
        if change.gone:
            return (), ("its plan before is not in the store any more, so causes are those of the whole module",)
        if change.before is None:
            return (), ()
        pairs = [(change.before.slice, part.slice)] if change.before.slice != part.slice else []
        old, new = ([name for joined in each.joins for name in joined.slices] for each in (change.before, part))
        pairs += zip([name for name in old if name not in new], [name for name in new if name not in old], strict=False)
        found: list[Difference] = []
        for then, now in pairs:
            texts = self._text(then), self._text(now)
            if texts[0] is None or texts[1] is None:
                return (), ("its text before is not in the store any more, so what in it changed cannot be told",)
            found += differences(texts[0], texts[1])
        return tuple(found), ()

    def _text(self, name: str) -> str | None:
        try:
            return self._store.get_text("slice", name)
        except (KeyError, DamagedError):
            return None

    def _others(self, change: _Change, part: Part) -> tuple[tuple[str, ...], int]:
        """Other units that the same plan names otherwise than before, and how many it names as before."""
        before = self._plans.parts(change.earlier) if change.earlier else None
        now = self._plans.parts(change.action)
        if before is None or now is None:
            return (), 0
        known = {each.digest for each in before.values()}
        others = [each for each in now.values() if each.role == "unit" and _name(each) != _name(part)]
        changed = tuple(each.readable for each in others if each.digest not in known)
        return changed, len(others) - len(changed)

    def _sharing(self, found: Found, plans: Sequence[str]) -> tuple[str, ...]:
        """Other modules whose newest plan names the same unit."""
        digest, names = found.part.digest.encode(), []
        for path in plans:
            made_it = self._plans.files.get(path, ())
            if path != found.plan and made_it and digest in (self._plans.text(made_it[-1]) or b""):
                names.append(made_it[-1].owners[0])
        return tuple(dict.fromkeys(names))


def _named_by_plan(plan: Action, causes: list[Cause]) -> list[Cause]:
    """Causes told from what follows of an option, by that option, where the plan's key has it."""
    exact = {(cause.kind, cause.name): cause for cause in fields.of_key("plan", plan.because.key, plan.key)}
    known = [exact.get((cause.kind, cause.name)) if cause.derived else None for cause in causes]
    return [replace(better, routes=cause.routes) if better else cause for cause, better in zip(causes, known, strict=True)]


def _name(part: Part) -> str:
    return part.kernels[0].symbol if part.kernels else part.readable


def _fields(part: Part) -> dict[str, str]:
    """All that tells one state of a unit from another."""
    own = {"source": part.source, "candidate": part.candidate}
    own |= {name: json.dumps(value, sort_keys=True) for name in ("lower", "assemble") if (value := getattr(part, name)) is not None}
    return {**dict(part.key), **own}
