"""Causes: what somebody changed, and the way from there to what was built again."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Cause", "Via", "merged", "sentence"]


@dataclass(frozen=True)
class Via:
    """One step on the way from a cause to what was built again."""

    stage: str
    name: str
    target: str
    build: str


@dataclass(frozen=True)
class Cause:
    """One thing that was other than before."""

    kind: str
    """source, header, generated header, tuning file, file; define, flag, folder, option, architecture, candidate, sources; tool;
    scons-gpu; lost, missing, altered, failed, order, first, new, gone."""
    name: str
    """A path, a variable of the user's, a tool."""
    change: str = "changed"
    """`changed`, `added` or `removed`; of a path and of what there may be several of."""
    then: str = ""
    now: str = ""
    routes: tuple[tuple[Via, ...], ...] = ((),)
    """Steps from the cause to what was asked about, that one left out; one cause may come by several ways."""
    derived: bool = False
    """Whether the name was told from what follows of it: whoever knows it better goes before."""

    def to_json(self) -> dict[str, Any]:
        """Without what is empty."""
        data = {name: getattr(self, name) for name in ("kind", "name", "change")}
        data |= {name: value for name in ("then", "now") if (value := getattr(self, name)) or self.then or self.now}
        routes = [[asdict(via) for via in route] for route in self.routes if route]
        return {**data, "routes": routes} if routes else data

    def through(self, via: Via) -> Cause:
        """The same, one step further."""
        return replace(self, routes=tuple((*route, via) for route in self.routes))


_CONSEQUENCES = ("first", "order", "taken", "dropped")
"""Kinds that say nothing where another cause says more."""


def merged(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """Each once, with all its ways; what only follows from others left out. In the order of first mention."""
    found: dict[tuple[str, ...], Cause] = {}
    for cause in causes:
        key = (cause.kind, cause.name, cause.change, cause.then, cause.now)
        known = found.get(key)
        ways = dict.fromkeys((*(known.routes if known else ()), *cause.routes))
        found[key] = replace(cause, routes=tuple(ways), derived=cause.derived and (known is None or known.derived))
    return tuple(_without_consequences(list(found.values())))


def _without_consequences(causes: list[Cause]) -> list[Cause]:
    known = {(cause.kind, cause.name) for cause in causes if not cause.derived}
    routes: dict[tuple[str, str], list[tuple[Via, ...]]] = defaultdict(list)
    for cause in causes:
        if cause.derived and (cause.kind, cause.name) in known:
            routes[cause.kind, cause.name] += cause.routes
    kept = [cause for cause in causes if not (cause.derived and (cause.kind, cause.name) in known)]
    kept = [replace(cause, routes=tuple(dict.fromkeys((*cause.routes, *routes[cause.kind, cause.name])))) for cause in kept]
    debug = next((cause for cause in kept if cause.name == "GPU_DEBUG"), None)
    if debug is not None:  # it brings a level of its own
        level = (debug.now == "1", "now") if debug.now == "1" else (debug.then == "1", "then")
        kept = [cause for cause in kept if not (cause.name == "GPU_OPT" and level[0] and getattr(cause, level[1]) == "0")]
    if any(cause.kind not in _CONSEQUENCES for cause in kept):
        kept = [cause for cause in kept if cause.kind not in _CONSEQUENCES]
    return kept


_SENTENCES = {
    "lost": "the store had no good copy of {name}: {now}",
    "gone": "the store no longer had {name}",
    "missing": "{name} was not there",
    "altered": "{name} was not the file that the build before had made",
    "failed": "making {name} had failed before",
    "order": "the inputs of {name} came in another order",
    "first": "{name}: the first build that the log knows",
    "unrecorded": "{name}: SCons had no record of it (.sconsign.dblite is new, or was removed)",
    "new": "{name} is new",
    "taken": "tool {name}: {then} -> {now}",
    "dropped": "{name} is not there any more",
    "always": "{name} is made in each build",
}


def sentence(cause: Cause) -> str:
    """The cause in words."""
    if cause.kind in _SENTENCES:
        return _SENTENCES[cause.kind].format(name=cause.name, then=cause.then or "(none)", now=cause.now or "(none)")
    if cause.then or cause.now:
        return f"{cause.kind} {cause.name}: {cause.then or '(none)'} -> {cause.now or '(none)'}"
    return f"{cause.kind} {cause.name} {cause.change}"
