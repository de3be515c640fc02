"""`scons-gpu budget`: limits on what kernels take, by pattern, and which kernels exceed theirs.

A budget is a TOML file of tables `[[kernels]]`: `match` is a shell pattern for readable names and symbols, `module` and `arch` narrow
it, every other key is a limit. Of several tables that match a kernel the last one that names a figure decides on it.
"""

from __future__ import annotations

import difflib
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import BudgetError, UsageError
from scons_gpu.inspect.figures import NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scons_gpu.inspect.figures import Row
    from scons_gpu.inspect.tables import Cell

__all__ = ["COLUMNS", "SCHEMA", "Checked", "Exceeded", "Limit", "check", "read", "refusal"]

SCHEMA = "scons-gpu/budget/1"
COLUMNS = ("module", "kernel", "arch", "what", "is", "limit", "by")
_NARROWING = ("module", "arch")


@dataclass(frozen=True)
class Limit:
    """One table of a budget."""

    match: str
    module: str = "*"
    arch: str = "*"
    limits: Mapping[str, int] = field(default_factory=dict)
    """Figure → the most that it may be."""
    place: str = ""
    """File and number of the table, for messages."""

    def names(self, row: Row) -> bool:
        """Whether the kernel is one of those that it is for."""
        return (
            any(fnmatchcase(name, self.match) for name in (row.readable, row.symbol))
            and fnmatchcase(row.module, self.module)
            and fnmatchcase(row.arch, self.arch)
        )


@dataclass(frozen=True)
class Exceeded:
    """A kernel that takes more than it may."""

    row: Row
    figure: str
    value: int
    limit: int
    by: str
    """The pattern that set the limit."""

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        row = self.row
        return {
            **{name: getattr(row, name) for name in ("module", "symbol", "readable", "source", "arch")},
            **{name: getattr(self, name) for name in ("figure", "value", "limit", "by")},
        }

    def cells(self) -> tuple[Cell, ...]:
        """A row of the table."""
        return (self.row.module, self.row.readable, self.row.arch, self.figure, self.value, self.limit, self.by)


@dataclass(frozen=True)
class Checked:
    """What a budget comes to."""

    kernels: int
    """Kernels, of every module and architecture, that have a limit."""
    free: int
    """Those that have none."""
    exceeded: tuple[Exceeded, ...]

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {"schema": SCHEMA, "kernels": self.kernels, "free": self.free, "exceeded": [each.to_json() for each in self.exceeded]}

    def sentence(self) -> str:
        """The counts in words."""
        over = len({each.row.place for each in self.exceeded})
        within = f"{self.kernels - over} of {self.kernels} kernels are within their budget"
        return within + (f", {self.free} have none" if self.free else "")


def read(text: str, *, path: str) -> tuple[Limit, ...]:
    """The limits of a budget. Raises UsageError that names the table for what means nothing."""
    data = _parsed(text, path)
    tables = data.pop("kernels", None)
    if data:
        msg = f"{path}: {min(data)} means nothing here"
        raise UsageError(msg, hint="a budget holds tables [[kernels]] and nothing else")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        msg = f"{path}: there is no table [[kernels]]"
        raise UsageError(msg, hint='as in [[kernels]] match = "*" registers = 64')
    return tuple(_limit(table, f"{path}: table {number}") for number, table in enumerate(tables, start=1))


def _parsed(text: str, path: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415 - only who has a budget loads it
    else:
        import tomli as tomllib  # noqa: PLC0415 - the same
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        msg = f"{path} is no TOML: {error}"
        raise UsageError(msg) from None
    return data


def _limit(table: Mapping[str, Any], place: str) -> Limit:
    known = ("match", *_NARROWING, *NAMES)
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            msg = f"{place}: {key} is no limit"
            raise UsageError(msg, hint=f"did you mean {near[0]}?" if near else f"the limits are {', '.join(NAMES)}")
    patterns = {key: table.get(key, "*") for key in ("match", *_NARROWING)}
    if "match" not in table or not all(isinstance(pattern, str) for pattern in patterns.values()):
        msg = f"{place}: match says which kernels it is for; match, module and arch are patterns"
        raise UsageError(msg, hint='as in match = "softmax*"')
    limits = {key: value for key, value in table.items() if key in NAMES}
    for key, value in limits.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            msg = f"{place}: {key} = {value!r} is no number of 0 or more"
            raise UsageError(msg)
    if not limits:
        msg = f"{place} sets no limit"
        raise UsageError(msg, hint=f"the limits are {', '.join(NAMES)}")
    return Limit(**patterns, limits=limits, place=place)


def check(limits: Sequence[Limit], rows: Sequence[Row]) -> Checked:
    """Which kernels exceed what. Raises UsageError for a pattern that names no kernel, and for a figure that none of its kernels has."""
    found: list[Exceeded] = []
    known: dict[int, dict[str, bool]] = defaultdict(dict)
    free = 0
    for row in rows:
        mine = [(number, limit) for number, limit in enumerate(limits) if limit.names(row)]
        free += not mine
        for number, limit in mine:
            for name in limit.limits:
                known[number][name] = known[number].get(name, False) or row.figures.value(name) is not None
        found += _exceeded(row, [limit for _, limit in mine])
    for number, limit in enumerate(limits):
        _check_used(limit, known.get(number), rows)
    return Checked(kernels=len(rows) - free, free=free, exceeded=tuple(found))


def _exceeded(row: Row, limits: Sequence[Limit]) -> list[Exceeded]:
    deciding = {name: limit for limit in limits for name in limit.limits}  # the last one that names it
    return [
        Exceeded(row, name, value, deciding[name].limits[name], deciding[name].match)
        for name in NAMES
        if name in deciding and (value := row.figures.value(name)) is not None and value > deciding[name].limits[name]
    ]


def _check_used(limit: Limit, known: Mapping[str, bool] | None, rows: Sequence[Row]) -> None:
    if known is None:
        narrowed = "".join(f", {name} {getattr(limit, name)}" for name in _NARROWING if getattr(limit, name) != "*")
        msg = f"{limit.place}: no kernel matches {limit.match}{narrowed}"
        near = difflib.get_close_matches(limit.match, sorted({row.readable for row in rows}), n=3, cutoff=0.5)
        raise UsageError(msg, hint=f"there is {', '.join(near)}" if near else "scons-gpu kernels lists the kernels of a manifest")
    for name, is_known in known.items():
        if not is_known:
            msg = f"{limit.place}: {name} is known of no kernel that matches {limit.match}"
            raise UsageError(msg, hint="kernels that end as PTX have no figures: narrow the table with arch, or leave the limit out")


def refusal(checked: Checked, *, budget: str) -> BudgetError | None:
    """The error of a program that exceeds its budget, with the table of all that does; None for one that does not."""
    if not checked.exceeded:
        return None
    rows = [COLUMNS, *(tuple(map(str, each.cells())) for each in checked.exceeded)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(COLUMNS))]
    table = "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    over = len({each.row.place for each in checked.exceeded})
    msg = f"{over} {'kernel takes' if over == 1 else 'kernels take'} more than {budget} allows"
    return BudgetError(msg, output=table, hint=f"make {'it' if over == 1 else 'them'} smaller, or raise the limit in {budget}")
