"""A build as a trace that Perfetto and chrome://tracing load.

The format is "Trace Event Format" of the Chromium project: a JSON object with `traceEvents`; times are microseconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.inspect import timeline as times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scons_gpu.inspect.timeline import Step, Timeline

__all__ = ["trace"]

_PROCESS = 1
"""All lanes are of one process: the build."""
_COLOURS = {"failed": "terrible", "differs": "terrible", "refused": "bad", "empty": "grey"}
"""Result → one of the names that the format reserves."""


def trace(found: Timeline) -> str:
    """The trace's text, an event a line."""
    head = {"displayTimeUnit": "ms", "otherData": {"build": found.build.id, "command": " ".join(["scons", *found.build.argv])}}
    encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
    return encode(head)[:-1] + ',"traceEvents":[\n' + ",\n".join(map(encode, _events(found))) + "\n]}\n"


def _events(found: Timeline) -> Iterator[dict[str, Any]]:
    yield _named("process_name", 0, {"name": f"scons {' '.join(found.build.argv)}".rstrip()})
    for number, lane in enumerate(found.lanes, start=1):
        yield _named("thread_name", number, {"name": lane.name})
        yield _named("thread_sort_index", number, {"sort_index": number})
    for step in found.steps:
        yield _event(step)
    for level in times.levels(found):
        at = {"ph": "C", "pid": _PROCESS, "tid": 0, "ts": _micro(level.at)}
        yield {**at, "name": "running steps", "args": {"steps": level.running}}
        yield {**at, "name": "memory (MiB)", "args": {"peaks of running steps": round(level.peak_kib / 1024, 1)}}


def _named(name: str, lane: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "pid": _PROCESS, "tid": lane, "name": name, "args": args}


def _event(step: Step) -> dict[str, Any]:
    action = step.action
    told = {
        "kernel": action.name if action.role else "",
        "source": action.name if action.stage in ("source", "split", "host") else "",
        "module": ", ".join(action.owners),
        "arch": action.arch,
        "result": action.result,
        "bytes": _size(action.target),
        "file": action.target,
        "unit": action.unit,
        "candidate": action.candidate,
        "cpu seconds": round(action.cpu, 6),
        "peak KiB": action.peak_kib,
        "output": action.output[:400],
    }
    event = {
        "ph": "X",
        "pid": _PROCESS,
        "tid": step.lane + 1,
        "ts": _micro(step.start),
        "dur": _micro(step.start + step.seconds) - _micro(step.start),
        "name": f"{action.stage} {action.name}",
        "cat": action.stage,
        "args": {name: value for name, value in told.items() if value not in ("", None)},
    }
    return {**event, "cname": _COLOURS[action.result]} if action.result in _COLOURS else event


def _size(path: str) -> int | None:
    """Of the file as it is now; None where it is gone."""
    try:
        return Path(path).stat().st_size if path else None
    except OSError:
        return None


def _micro(seconds: float) -> int:
    """Whole ones: two steps of one lane, one after the other, must not overlap by a fraction."""
    return round(seconds * 1_000_000)
