"""Why each step of a build ran, a sentence each, from what `why` knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scons_gpu.inspect.causes import merged, sentence
from scons_gpu.inspect.planned import PLAN, Found, Plans
from scons_gpu.inspect.report.known import until
from scons_gpu.inspect.report.model import Reason
from scons_gpu.inspect.why import Tracer
from scons_gpu.inspect.why_unit import Units

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from scons_gpu.inspect.builds import Action, Build, History
    from scons_gpu.inspect.causes import Cause

__all__ = ["MOST", "reasons"]

MOST = 400
"""Units that are looked into one by one; of a build that made more, each has the reason of its plan: a header, a tool, the first build."""
_FILES = ("source", "split", "plan", "link", "pack", "host")
_CAUSES = 4  # that a row names


def reasons(history: History, build: Build, *, store: Path, rows: Mapping[str, int]) -> tuple[Reason, ...]:
    """In the order in which the steps ended; units once each. `rows`: digest → row of the units."""
    tracer, plans = Tracer(history), Plans(store, history)
    found = [_reason(action, tracer.causes(action), rows) for action in build.actions if action.stage in _FILES and action.because]
    units = {action.unit: action for action in build.actions if action.unit in rows and action.role == "unit" and action.result == "built"}
    told = _told_by_plan(tracer, build)
    asked = _Asked(Units(tracer, plans, store), plans, build) if len(units) <= MOST else None
    for action in units.values():
        by_plan = [cause for owner in action.owners for cause in told.get((owner, action.arch), ())]
        causes = (asked.causes(action) if asked else ()) or by_plan
        found.append(_reason(action, causes, rows))
    return tuple(found)


def _told_by_plan(tracer: Tracer, build: Build) -> dict[tuple[str, str], tuple[Cause, ...]]:
    """Module and architecture → why its plan was made in this build."""
    plans = [action for action in build.actions if action.target.endswith(PLAN)]
    return {(owner, action.arch): merged(tracer.causes(action)) for action in plans for owner in action.owners}


class _Asked:
    """Units of one build, each looked up in the plans as the build left them."""

    def __init__(self, units: Units, plans: Plans, build: Build) -> None:
        self._units = units
        self._found: dict[str, Found] = {}
        for path, made in plans.files.items():
            last = [action for action in made if action.time <= until(build)]
            for part in (plans.parts(last[-1]) or {}).values() if last else ():
                self._found.setdefault(part.digest, Found(path, part))

    def causes(self, action: Action) -> tuple[Cause, ...]:
        """Nothing for a unit that no plan names: a candidate."""
        found = self._found.get(action.unit)
        return self._units.answer(found, ()).causes if found else ()


def _reason(action: Action, causes: Sequence[Cause], rows: Mapping[str, int]) -> Reason:
    known = merged(causes)
    told = "; ".join(map(sentence, known[:_CAUSES])) + (f"; and {len(known) - _CAUSES} more" if len(known) > _CAUSES else "")
    return Reason(
        stage=action.stage,
        name=action.name,
        arch=action.arch,
        modules=action.owners,
        why=told or "compiled to choose from" if action.candidate else told or "the store did not have it",
        unit=rows.get(action.unit, -1),
    )
