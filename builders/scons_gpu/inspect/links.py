"""The links of one module and architecture: what of their keys shapes the objects that they take, and when that changed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.inspect import fields
from scons_gpu.inspect.causes import Cause, Via

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scons_gpu.inspect.builds import Action, History

__all__ = ["Links"]

_OBJECT = ("provider", "versions", "options", "kind", "share_twins", "spills")
"""What of an image's key shapes objects."""


@dataclass(frozen=True)
class Links:
    """Links that came to their end, oldest first."""

    actions: tuple[Action, ...]
    arch: str

    @classmethod
    def of(cls, history: History, *, module: str, arch: str, top: str) -> Links:
        """Those of a module in the tree at `top`; a bundle's are of all its architectures."""
        found = (
            action
            for action in history.of_stage("link")
            if module in action.owners and action.arch in ("", arch) and action.result in ("built", "empty")
        )
        return cls(tuple(action for action in found if history.build(action.build).top == top), arch)

    def key(self, action: Action) -> dict[str, str]:
        """What shapes objects for this architecture."""
        split = {name: name.rpartition(" ") for name in action.key}
        return {name: action.key[field] for field, (arch, _, name) in split.items() if arch in ("", self.arch) and name in _OBJECT}

    def between(self, start: float, end: float, *, but: str) -> bool:
        """Whether there was one in that time, in another build than `but`."""
        return any(start < action.time < end and action.build != but for action in self.actions)

    @property
    def changed(self) -> Action | None:
        """The last whose objects were to be other than those of the link before it."""
        for action, earlier in zip(reversed(self.actions), reversed(self.actions[:-1]), strict=False):
            if _without_linker(self.key(action)) != _without_linker(self.key(earlier)):
                return action
        return None

    def causes(self, action: Action) -> list[Cause]:
        """What of that was other than at the link before."""
        place = self.actions.index(action)
        if not place:
            return []
        now, then = self.key(action), self.key(self.actions[place - 1])
        differing = {name: (then.get(name, ""), now.get(name, "")) for name in sorted(then | now) if then.get(name) != now.get(name)}
        via = Via(action.stage, action.name, action.target, action.build)
        return [cause.through(via) for cause in fields.of_key("link", differing, now) if cause.name != "nvlink"]

    def causes_of(self, assembled: Action) -> list[Cause]:
        """What an assembling step was to do otherwise than the last link wants it."""
        then, now = _without_linker(self.key(self.actions[-1])), assembled.key
        provider = (json.dumps(then["provider"]), json.dumps(now.get("provider", "")))
        pairs = {"provider": provider, "options": (then.get("options", ""), now.get("options", ""))}
        return fields.of_key("link", {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}, {})

    def before(self, action: Action) -> str:
        """The build of the link before."""
        place = self.actions.index(action)
        return self.actions[place - 1].build if place else ""

    def taken(self, compiled: Sequence[Action]) -> list[Action]:
        """Those steps on a unit whose file the last link takes: all, where that cannot be told."""
        key = self.key(self.actions[-1]) if self.actions else {}
        kind = key.get("kind", "").strip('"')
        if kind == "ptx":
            mine = [action for action in compiled if action.stage == "lower"]
        else:
            mine = [action for action in compiled if _fits(action.key, key, kind)]
        return mine or list(compiled)


def _fits(key: Mapping[str, str], link: Mapping[str, str], kind: str) -> bool:
    provider = link.get("provider", "").strip('"')
    return (
        bool(key.get("provider"))
        and key.get("kind") == kind
        and key.get("options") == link.get("options")
        and provider.startswith(key["provider"])
    )


def _without_linker(key: Mapping[str, str]) -> dict[str, str]:
    """A provider is spelled with what assembles, then with what links; versions follow from both."""
    provider = " ".join(key.get("provider", "").strip('"').split(" ")[:2])
    return {**key, "provider": provider, "versions": ""}
