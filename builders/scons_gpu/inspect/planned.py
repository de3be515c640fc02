"""The units of plans as they were at a time: read from the copies that builds kept, and found by the names that people give kernels."""

from __future__ import annotations

import difflib
import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import UsageError
from scons_gpu.plan.model import part_from_json
from scons_gpu.store import copies

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scons_gpu.inspect.builds import Action, History
    from scons_gpu.plan.model import Part

__all__ = ["PLAN", "Found", "Plans", "names_of"]

PLAN = ".plan.json"
"""How the file of a decided plan ends."""


@dataclass(frozen=True)
class Found:
    """A unit of one module and architecture, as the newest plan that names it has it."""

    plan: str
    """The plan's file."""
    part: Part


class Plans:
    """Copies of plans, read when asked for."""

    def __init__(self, store: Path, history: History) -> None:
        self._store = store
        self._history = history

    @functools.cached_property
    def files(self) -> Mapping[str, tuple[Action, ...]]:
        """Plan → the actions that wrote it, oldest first."""
        return {
            target: made
            for target, actions in self._history.by_target.items()
            if target.endswith(PLAN) and (made := tuple(action for action in actions if action.result == "built"))
        }

    def text(self, action: Action) -> bytes | None:
        """The plan that the action wrote; None where its copy is not in the store any more."""
        return _text(self._store, action.plan)

    def parts(self, action: Action) -> Mapping[str, Part] | None:
        """Its parts, by their first kernel's symbol; state and tables by their readable name."""
        return _parts(self._store, action.plan)

    def find(self, name: str, plans: Sequence[str]) -> list[Found]:
        """The units of that symbol, readable name, or unambiguous part of it. Raises UsageError where there is none, or several kernels."""
        found, others = [], set[str]()
        # What is in the name of a part and in no plan: see `Part.readable`.
        written = name.removeprefix("state of ").removeprefix("table ").partition(" and ")[0].partition(" [")[0]
        needle = json.dumps(written)[1:-1].encode()
        for path in plans:
            made = self.files.get(path, ())
            text = self.text(made[-1]) if made else None
            if text is None or needle not in text:
                continue
            for part in (self.parts(made[-1]) or {}).values():
                if any(name in each for each in names_of(part)):
                    found.append(Found(path, part))
                    others |= {part.readable}
        exact = [each for each in found if name in names_of(each.part)]
        if not exact and len(others) > 1:
            listed = sorted(others)
            more = f" and {len(listed) - 6} more" if len(listed) > 6 else ""
            msg = f"{name} is part of the names of several kernels: {', '.join(listed[:6])}{more}"
            raise UsageError(msg, hint="give the whole name, or the symbol")
        return exact or found

    def none(self, name: str, plans: Sequence[str]) -> UsageError:
        """What to tell where nothing has that name."""
        known: set[str] = set()
        for path in plans:
            if path not in self.files and _holds(path, name):
                msg = f"{name} is older than the log: no build that it knows planned {path}"
                return UsageError(msg, hint="somebody removed the log; what is built from now on is explained")
            if made := self.files.get(path, ()):
                known |= {each for part in (self.parts(made[-1]) or {}).values() for each in names_of(part)}
        near = difflib.get_close_matches(name, sorted(known), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "scons-gpu kernels lists the kernels of a manifest"
        return UsageError(f"{name} is neither a file that a build in the log made nor in the name of a kernel that one knows", hint=hint)


def _holds(path: str, name: str) -> bool:
    try:
        return f'"{name}"'.encode() in Path(path).read_bytes()
    except OSError:
        return False


def names_of(part: Part) -> tuple[str, ...]:
    """What people call it."""
    return (*(each for kernel in part.kernels for each in (kernel.symbol, kernel.readable)), part.readable)


@functools.lru_cache(maxsize=64)
def _text(store: Path, name: str) -> bytes | None:
    return copies.load(store, name) if name else None


@functools.lru_cache(maxsize=64)
def _parts(store: Path, name: str) -> Mapping[str, Part] | None:
    text = _text(store, name)
    if text is None:
        return None
    data: dict[str, Any] = json.loads(text)
    parts = [part_from_json(part) for part in data["parts"]]
    return {part.kernels[0].symbol if part.kernels else part.readable: part for part in parts}
