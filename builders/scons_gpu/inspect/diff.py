"""`scons-gpu diff`: what two builds, manifests or stores have of kernels, side by side."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import UsageError
from scons_gpu.inspect import builds, fields, figures
from scons_gpu.inspect.causes import merged, sentence

if TYPE_CHECKING:
    from collections.abc import Callable

    from scons_gpu.inspect.builds import History
    from scons_gpu.inspect.causes import Cause
    from scons_gpu.inspect.figures import Row
    from scons_gpu.inspect.tables import Cell

__all__ = ["COLUMNS", "SCHEMA", "Diff", "Side", "compare", "side", "sides"]

SCHEMA = "scons-gpu/diff/1"
_SHOWN = ("registers", "spill_bytes", "shared_bytes", "stack_bytes", "code_bytes", "instructions")
COLUMNS = ("module", "kernel", "arch", "change", "registers", "spills", "shared", "stack", "code", "instructions", "because")


@dataclass(frozen=True)
class Side:
    """One of the two."""

    name: str
    rows: tuple[Row, ...]
    options: dict[str, Any]
    """Of each module; of a manifest."""
    tools: dict[str, Any]


@dataclass(frozen=True)
class Kernel:
    """One kernel that is not the same on both sides."""

    then: Row | None
    now: Row | None
    causes: tuple[Cause, ...] = ()
    """The fields of its key that differ, where both are known."""

    @property
    def change(self) -> str:
        """`added`, `removed` or `changed`."""
        return "added" if self.then is None else "removed" if self.now is None else "changed"

    @property
    def shown(self) -> Row:
        """The newer side's."""
        found = self.now or self.then
        assert found is not None  # noqa: S101 - one of the two is there
        return found

    def pair(self, name: str) -> tuple[int | None, int | None]:
        """A figure, then and now."""
        then, now = (row.figures.value(name) if row else None for row in (self.then, self.now))
        return then, now

    def because(self) -> str:
        """The fields that differ, in a line."""
        if self.causes:
            return "; ".join(sentence(cause) for cause in self.causes)
        return "" if self.then is None or self.now is None else "another unit" if self.then.unit != self.now.unit else "same unit"


@dataclass(frozen=True)
class Diff:
    """All that differs."""

    then: Side
    now: Side
    kernels: tuple[Kernel, ...]
    settings: tuple[Cause, ...]
    """Options and tools of the whole."""
    equal: int
    """Kernels that are the same on both sides."""

    @property
    def differs(self) -> bool:
        """Whether anything does."""
        return bool(self.kernels or self.settings)

    def counts(self) -> dict[str, int]:
        """Kernels by what became of them."""
        found = {name: sum(each.change == name for each in self.kernels) for name in ("added", "removed", "changed")}
        return {"equal": self.equal, **found}

    def rows(self) -> list[tuple[Cell, ...]]:
        """A row for each kernel that differs."""
        return [
            (one.shown.module, one.shown.readable, one.shown.arch, one.change, *(_cell(*one.pair(name)) for name in _SHOWN), one.because())
            for one in self.kernels
        ]

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "schema": SCHEMA,
            "then": self.then.name,
            "now": self.now.name,
            "counts": self.counts(),
            "settings": [cause.to_json() for cause in self.settings],
            "kernels": [_kernel_json(one) for one in self.kernels],
        }


def _kernel_json(one: Kernel) -> dict[str, Any]:
    shown = one.shown
    return {
        **{name: getattr(shown, name) for name in ("module", "symbol", "readable", "source", "arch")},
        "change": one.change,
        "units": [row.unit if row else None for row in (one.then, one.now)],
        **{name: list(one.pair(name)) for name in figures.NAMES},
        "causes": [cause.to_json() for cause in one.causes],
    }


def _cell(then: int | None, now: int | None) -> str:
    texts = ["-" if value is None else str(value) for value in (then, now)]
    return texts[0] if texts[0] == texts[1] else " -> ".join(texts)


def sides(then: str, now: str, *, store: Path) -> tuple[Side, Side]:
    """Both, each as `side` has it; a log that both are in is read once."""
    read = functools.cache(builds.read)
    return side(then, store=store, read=read), side(now, store=store, read=read)


def side(name: str, *, store: Path, read: Callable[[Path], History] = builds.read) -> Side:
    """What a name stands for: a manifest's file, a store's folder (its last build), or a build in the log of `store`.

    Raises UsageError where it is none of them.
    """
    path = Path(name)
    if path.is_file():
        options, tools = figures.settings_of(path)
        return Side(name, tuple(figures.of_manifest(path)), options, tools)
    if path.is_dir():
        history = read(path.absolute())
        return Side(name, tuple(figures.of_build(history, path.absolute(), history.build())), {}, {})
    history = read(store)
    if all(build.id != name for build in history.builds):
        near = ", ".join(build.id for build in history.builds[-3:])
        msg = f"{name} is no manifest, no store, and no build in {store}"
        raise UsageError(msg, hint=f"its last builds are {near}" if near else "no build was logged there")
    return Side(name, tuple(figures.of_build(history, store, history.build(name))), {}, {})


def compare(then: Side, now: Side) -> Diff:
    """Kernel by kernel. One is the same where its unit, all that shaped that, and all its figures are."""
    before, after = ({row.place: row for row in each.rows} for each in (then, now))
    kernels, equal = [], 0
    for place in sorted(before | after):
        one, other = before.get(place), after.get(place)
        if one and other and (one.unit, one.figures, one.key) == (other.unit, other.figures, other.key):
            equal += 1
        else:
            kernels.append(Kernel(one, other, _fields(one, other)))
    return Diff(then, now, tuple(kernels), _settings(then, now), equal)


def _fields(then: Row | None, now: Row | None) -> tuple[Cause, ...]:
    if then is None or now is None:
        return ()
    differing = {
        name: (then.key.get(name, ""), now.key.get(name, ""))
        for name in sorted({*then.key, *now.key})
        if then.key.get(name, "") != now.key.get(name, "")
    }
    unit = {name: pair for name, pair in differing.items() if not name.startswith("object ")}
    made = {name.removeprefix("object "): pair for name, pair in differing.items() if name.startswith("object ")}
    texts = [fields.text() for name in ("slice", "joins") if unit.pop(name, None)]
    made = {name: pair for name, pair in made.items() if name in ("provider", "options", "kind")}
    return merged([*texts, *fields.of_unit(unit), *fields.of_key("link", made, {})])


def _settings(then: Side, now: Side) -> tuple[Cause, ...]:
    pairs = {"options": (then.options, now.options), "tools": (then.tools, now.tools)}
    differing = {name: (json.dumps(one), json.dumps(other)) for name, (one, other) in pairs.items() if one != other and one and other}
    return merged(fields.of_key("manifest", differing, {}))
