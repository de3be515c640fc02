"""Why a step ran, as its record in the log says it: what SCons found to be other than when the file was last made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NOTHING", "Because", "Input", "from_json", "to_json"]


@dataclass(frozen=True)
class Input:
    """One file that a step reads, and that is not what it was."""

    path: str
    """As SCons spells it: below the folder of the SConstruct, or absolute."""
    change: str
    """`changed`, `added` or `removed`."""
    role: str = "source"
    """`source` (declared), `read` (a compiler said so: a header), or `made` (a header that another step makes)."""


@dataclass(frozen=True)
class Because:
    """All that was other. Nothing at all of a step that SCons keeps no record of: a unit's, whose record is the store."""

    first: bool = False
    """SCons had no record of the file: it was never made here, or `.sconsign.dblite` is gone."""
    missing: bool = False
    """The file was not there."""
    altered: bool = False
    """The file, or one beside it, was not what was recorded when it was made."""
    inputs: tuple[Input, ...] = ()
    key: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Field → its value then and now; empty where there was none."""
    order: bool = False
    """The same inputs stood in another order."""
    lost: str = ""
    """Of a unit that the store should have had: what was wrong with its entry."""

    def __bool__(self) -> bool:
        return any((self.first, self.missing, self.altered, self.inputs, self.key, self.order, self.lost))


NOTHING = Because()
"""Of a step that SCons keeps no record of."""


def to_json(because: Because) -> dict[str, Any]:
    """What is not empty."""
    data: dict[str, Any] = {name: value for name in ("first", "missing", "altered", "order", "lost") if (value := getattr(because, name))}
    if because.inputs:
        data["inputs"] = [[each.path, each.change, each.role] for each in because.inputs]
    if because.key:
        data["key"] = {name: list(pair) for name, pair in because.key.items()}
    return data


def from_json(data: Any) -> Because:  # noqa: ANN401 - whatever a log holds
    """Reads what `to_json` gave. Raises ValueError or TypeError for what it never gives."""
    given = dict(data or {})
    return Because(
        **{name: bool(given.get(name)) for name in ("first", "missing", "altered", "order")},
        inputs=tuple(Input(*map(str, each)) for each in given.get("inputs", ())),
        key={str(name): (str(then), str(now)) for name, (then, now) in dict(given.get("key", {})).items()},
        lost=str(given.get("lost", "")),
    )
