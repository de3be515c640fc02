"""Tuning files: what was measured on a GPU, kept under version control. One problem, one line.

Their form is that of docs/commands.md, "Tuning files". An entry is a solution: a problem that nobody decided has no place in a file.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scons_gpu.errors import SourceError, UsageError
from scons_gpu.store.files import write_atomic
from scons_gpu.store.lines import to_lines
from scons_gpu.toolchain.arch import Target
from scons_gpu.toolchain.gates import version_tuple
from scons_gpu.tune.solution import Device, Solution, from_json, refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from scons_gpu.tune.model import Pairs, Problem

__all__ = ["SCHEMA", "Device", "Merged", "Solution", "Tuning", "check", "from_text", "merge", "read", "to_text", "write"]

SCHEMA = "scons-gpu/tuning/1"
_TORN = re.compile(r"^(?:<{7}|={7}|>{7})(?: |\r?$)", re.MULTILINE)  # what git leaves of a merge that it could not do


@dataclass(frozen=True)
class Tuning:
    """One file."""

    file: str
    """Its name, as the user gave it."""
    solutions: tuple[Solution, ...] = ()
    _by_problem: dict[Problem, Solution] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_problem", {one.problem: one for one in reversed(self.solutions)})

    def find(self, problem: Problem) -> Solution | None:
        """The solution of exactly this problem."""
        return self._by_problem.get(problem)


@dataclass(frozen=True)
class Merged:
    """What several files come to."""

    solutions: tuple[Solution, ...]
    conflicts: tuple[str, ...] = ()
    """A line for each solution that another one of the same problem displaced: what was kept, and why."""


def read(path: Path, *, name: str = "") -> Tuning:
    """The file at `path`, called `name` in messages and decisions; as it is spelled by default.

    Raises UsageError where it cannot be read, SourceError for what is in it.
    """
    called = name or str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{called}: cannot be read: {getattr(error, 'strerror', None) or error}"
        raise UsageError(msg, hint="a tuning file is what scons-gpu bench writes") from None
    return from_text(text, file=called)


def from_text(text: str, *, file: str = "tuning.json") -> Tuning:
    """Reads what `to_text` wrote, in any layout. Fields of a later version are passed over.

    Raises SourceError that names file and entry: for what is no tuning file, for an undecided problem, and for one that has two entries.
    """
    places: dict[Problem, int] = {}
    solutions = []
    for place, entry in enumerate(_entries(text, file), 1):
        one = from_json(entry, place=place, file=file)
        if one.problem in places:
            msg = f"entries {places[one.problem]} and {place} both solve {one.problem.text()}"
            raise SourceError(msg, source=file, hint="keep one of them; scons-gpu tuning merge decides between files that differ")
        places[one.problem] = place
        solutions.append(one)
    return Tuning(file=file, solutions=tuple(solutions))


def to_text(solutions: Iterable[Solution]) -> str:
    """The file: sorted, an entry a line, the same bytes for the same solutions. Of two for one problem the first is kept."""
    once = {one.problem: one for one in reversed(list(solutions))}
    return to_lines({"schema": SCHEMA, "entries": [once[problem].to_json() for problem in sorted(once, key=_place)]})


def write(path: Path, solutions: Iterable[Solution]) -> None:
    """Writes the file whole: after a kill there is the old one or the new one. Raises GpuError that names the path."""
    write_atomic(path, to_text(solutions))


def merge(files: Sequence[Tuning]) -> Merged:
    """One solution for each problem, whatever the order of the files.

    Where they differ, one that counts goes before one that does not, then the one with the newer tools (ptxas first, then the others by
    name), then the faster one.
    """
    found: dict[Problem, list[_Found]] = {}
    for tuning in files:
        for one in tuning.solutions:
            found.setdefault(one.problem, []).append(_Found(one, tuning.file))
    kept, conflicts = [], []
    for problem in sorted(found, key=_place):
        names = _by_rank({name for each in found[problem] for name, _ in each.solution.tools})
        first, *others = sorted(found[problem], key=lambda each: each.rank(names))
        kept.append(first.solution)
        conflicts += [first.displaces(other, names) for other in others if other.solution.values != first.solution.values]
    return Merged(solutions=tuple(kept), conflicts=tuple(conflicts))


def check(tuning: Tuning) -> tuple[str, ...]:
    """What keeps solutions of the file from ever counting, a line each; none where all can."""
    return tuple(f"{one.problem.text()}: {why}" for one in tuning.solutions if (why := refusal(one)))


def _place(problem: Problem) -> tuple[str, int, str, Pairs]:
    """Architectures by number: sm_90 before sm_100."""
    return problem.kernel, Target(name=problem.arch, real=True).number, problem.arch, problem.keys


def _by_rank(tools: Iterable[str]) -> list[str]:
    """With ptxas first: it makes the machine code that was measured."""
    return sorted(tools, key=lambda name: (name != "ptxas", name))


@dataclass(frozen=True)
class _Found:
    """A solution and the file it stands in."""

    solution: Solution
    file: str

    def rank(self, names: Sequence[str]) -> tuple[object, ...]:
        """Sorted by this the best is first. A total order: files may come in any."""
        one = self.solution
        newest = [tuple(-part for part in version) or (1,) for version in self.versions(names)]
        return bool(refusal(one)), newest, one.time_us, json.dumps(one.to_json(), sort_keys=True), self.file

    def versions(self, names: Sequence[str]) -> list[tuple[int, ...]]:
        """Of the tools of these names, as numbers; () of one that is not named, which counts as the oldest. 13.5 is 13.5.0."""
        tools = dict(self.solution.tools)
        found = [version_tuple(tools.get(name, "")) for name in names]
        return [version + (0,) * (4 - len(version)) if version else () for version in found]

    def displaces(self, other: _Found, names: Sequence[str]) -> str:
        """Kept before `other`, in words."""
        one, two = self.solution, other.solution
        differ = [name for name, mine, its in zip(names, self.versions(names), other.versions(names), strict=True) if mine != its]
        if why := refusal(two):
            pass
        elif differ:
            why = f"by {differ[0]} {dict(one.tools)[differ[0]]}, not {dict(two.tools).get(differ[0]) or 'one that is not named'}"
        else:
            why = "it is faster" if one.time_us < two.time_us else "they are equally fast, and it sorts first"
        return f"{one.problem.text()}: {self._said()} is kept, {other._said()} is not: {why}"

    def _said(self) -> str:
        return f"{self.solution.label} ({self.solution.time_us:.2f} us, {self.file})"


def _entries(text: str, file: str) -> list[object]:
    torn = _TORN.search(text)
    if torn:
        msg = f"line {text.count(chr(10), 0, torn.start()) + 1}: two versions of the file are not merged yet"
        raise SourceError(msg, source=file, hint="save both and join them: scons-gpu tuning merge OURS THEIRS -o FILE")
    try:
        data = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        msg = f"this is not JSON: {error}"
        raise SourceError(msg, source=file, hint="restore it from version control, or measure again with scons-gpu bench") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        msg = f"this is no tuning file: its schema is {json.dumps(schema)}, not {json.dumps(SCHEMA)}"
        raise SourceError(msg, source=file, hint="scons-gpu bench and scons-gpu tuning merge write such files")
    entries = data.get("entries")
    if not isinstance(entries, list):
        msg = f'"entries" is {json.dumps(entries)}, not a list'
        raise SourceError(msg, source=file, hint="restore it from version control, or measure again with scons-gpu bench")
    return entries


def _object(items: list[tuple[str, object]]) -> dict[str, object]:
    """Python keeps the last of two equal names; whoever wrote both meant something."""
    data: dict[str, object] = {}
    for name, value in items:
        if name in data:
            msg = f'"{name}" stands twice in one object'
            raise ValueError(msg)
        data[name] = value
    return data
