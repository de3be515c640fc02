"""`scons-gpu why`: a name that a user gives becomes files and units, and each gets its answer."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from scons_gpu.inspect import builds
from scons_gpu.inspect.causes import sentence
from scons_gpu.inspect.planned import PLAN, Found, Plans
from scons_gpu.inspect.why import Tracer, of_target
from scons_gpu.inspect.why_unit import Units

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from scons_gpu.inspect.builds import Action, History
    from scons_gpu.inspect.causes import Via
    from scons_gpu.inspect.why import Answer

__all__ = ["SCHEMA", "ask", "lines", "to_json"]

SCHEMA = "scons-gpu/why/1"
_SHOWN = 8
"""Names of units that are listed."""
_WAYS = 3
"""Ways from a cause that are listed; --json has all."""


def ask(store: Path, name: str, *, build: str | None = None) -> tuple[Answer, ...]:
    """Why the file or the kernel of that name is as it is; with `build`, as it was when that build had ended.

    A kernel has an answer for each module and architecture. Raises UsageError for what no build in the store's log knows.
    """
    history = builds.read(store)
    last = history.build(build)
    history = history.until(last.id) if build else history
    plans, tracer = Plans(store, history), Tracer(history)
    named = last.end.plans if last.end else tuple(sorted(plans.files))
    units = Units(tracer, plans, store)
    target = _target(history, name, last.top)
    if target is None:
        found = plans.find(name, named)
        if not found:
            raise plans.none(name, named)
        return tuple(_timed(units.answer(each, named), history) for each in found)
    action = history.by_target[target][-1]
    answers = [units.answer(each, named) for each in _of_digest(plans, action.unit, named)] if action.unit else []
    answers = answers or [_with_units(of_target(tracer, target), action, plans, tracer)]
    return tuple(_timed(answer, history) for answer in answers)


def _timed(answer: Answer, history: History) -> Answer:
    """With when the builds began that it names."""
    times = {name: history.build(name).time for name in (answer.build, answer.made_in) if name}
    return replace(answer, time=times.get(answer.build, 0.0), made_time=times.get(answer.made_in, 0.0))


def _target(history: History, name: str, top: str) -> str | None:
    """The absolute path that the log has of a file, given from where the user is, or from the top."""
    paths = (os.path.abspath(name), os.path.join(top, name))  # noqa: PTH100, PTH118 - links stay as they were written
    return next((path for path in paths if path in history.by_target), None)


def _of_digest(plans: Plans, digest: str, named: Sequence[str]) -> Iterator[Found]:
    for path in named:
        made = plans.files.get(path, ())
        text = plans.text(made[-1]) if made else None
        if text is not None and digest.encode() in text:
            yield from (Found(path, part) for part in (plans.parts(made[-1]) or {}).values() if part.digest == digest)


def _with_units(answer: Answer, action: Action, plans: Plans, tracer: Tracer) -> Answer:
    """Of an image: which units its plan names otherwise than that of the image before."""
    actions = plans.files.get(f"{action.target.rpartition('.')[0]}{PLAN}", ()) if action.stage == "link" else ()
    before = tracer.made_before(action)
    earlier = [each for each in actions if before is not None and each.time < before.time]
    now = [each for each in actions if each.time < action.time]
    if not earlier or not now:
        return answer
    old, new = plans.parts(earlier[-1]), plans.parts(now[-1])
    if old is None or new is None:
        return answer
    known = {part.digest for part in old.values()}
    units = [part for part in new.values() if part.role == "unit"]
    changed = tuple(part.readable for part in units if part.digest not in known)
    return replace(answer, changed=changed, unchanged=len(units) - len(changed))


def to_json(answers: Sequence[Answer], name: str) -> dict[str, Any]:
    """What `--json` prints."""
    return {"schema": SCHEMA, "asked": name, "answers": [answer.to_json() for answer in answers]}


def lines(answers: Iterable[Answer]) -> Iterator[str]:
    """What a person reads. Units of which the same is to be said are said together."""
    groups: dict[tuple[object, ...], list[Answer]] = {}
    for answer in answers:
        groups.setdefault(_alike(answer), []).append(answer)
    for number, group in enumerate(groups.values()):
        yield from ([""] if number else [])
        yield from _said(group)


def _alike(answer: Answer) -> tuple[object, ...]:
    causes = tuple((cause.kind, cause.name, cause.then, cause.now) for cause in answer.causes)
    return (answer.subject, answer.unit if answer.outcome == "reused" else "", answer.outcome, answer.build, causes)


def _said(group: Sequence[Answer]) -> Iterator[str]:
    first = group[0]
    places = ", ".join(dict.fromkeys(f"{each.module} {each.arch}".strip() for each in group)) if first.unit else ""
    yield f"{first.subject}{f' ({places})' if places else ''}: {_outcome(first)}"
    for cause in first.causes:
        yield f"  {sentence(cause)}"
        ways = [f"    -> {_way(route, first)}" for route in cause.routes if route]
        yield from ways[:_WAYS]
        yield from [f"    and {len(ways) - _WAYS} more ways"] if len(ways) > _WAYS else []
    if first.differences:
        yield "  in its text:"
    for each in first.differences:
        yield f"    {each.what} {each.name} {each.change}"
        yield from (f"      {sign} {text}" for sign, text in (("-", each.then), ("+", each.now)) if text)
    yield from _company(group)
    yield from (f"  note: {note}" for note in first.notes)


def _outcome(answer: Answer) -> str:
    when = f" in build {answer.build} ({_time(answer.time)})" if answer.build else ""
    before = f"; before that in {answer.before}" if answer.before else ""
    if answer.outcome == "reused":
        made = f": made in build {answer.made_in} ({_time(answer.made_time)})" if answer.made_in else ""
        return f"not compiled, reused{when if answer.made_in != answer.build else ''}{made}"
    if answer.outcome == "missing":
        return "not there"
    words = {"empty": "nothing to make", "built": "made"}
    return f"{words.get(answer.outcome, answer.outcome)}{when}{before}"


def _way(route: Sequence[Via], answer: Answer) -> str:
    steps = [f"{via.stage} {via.name}" for via in route]
    return " -> ".join([*steps, "this unit" if answer.unit else answer.subject])


def _company(group: Sequence[Answer]) -> Iterator[str]:
    first = group[0]
    others = [name for name in first.shared_with if name not in {each.module for each in group}]
    if len({each.module for each in group}) > 1 and len({(each.unit) for each in group}) < len(group):
        yield f"  one unit for {', '.join(sorted({each.module for each in group}))}"
    if others:
        yield f"  shared with {', '.join(others)}"
    changed = sorted({name for each in group for name in each.changed})
    if changed:
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        yield f"  {'changed with it' if first.unit else 'units that changed'}: {', '.join(changed[:_SHOWN])}{more}"
    if unchanged := sum(each.unchanged for each in group):
        yield f"  {unchanged} {'other ' if first.unit else ''}unit{'s' if unchanged > 1 else ''} unchanged"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
