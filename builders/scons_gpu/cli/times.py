"""Commands on what took the time of a build: trace, slowest, critical-path."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scons_gpu.cli import tools as given

if TYPE_CHECKING:
    from scons_gpu.cli.program import Place
    from scons_gpu.inspect.chain import Chain
    from scons_gpu.inspect.tables import Cell
    from scons_gpu.inspect.timeline import Step, Timeline

__all__ = ["COMMANDS"]

_COLUMNS = ("seconds", "cpu", "stage", "name", "arch", "modules", "result", "MiB")


@click.command()
@given.output
@click.pass_obj
def trace(place: Place, output: str) -> None:
    """Writes a build as a trace for ui.perfetto.dev or chrome://tracing: a lane a worker, an event a step."""
    from scons_gpu.inspect.trace import trace as written
    from scons_gpu.store.files import write_atomic

    found = _timeline(place)
    write_atomic(Path(output), written(found).encode(), sync=False)
    click.echo(f"{output}: {len(found.steps)} steps of build {found.build.id} in {len(found.lanes)} lanes")


@click.command()
@click.option("-n", "count", type=click.IntRange(1), default=10, show_default=True, help="How many.", metavar="N")
@given.as_json
@click.pass_obj
def slowest(place: Place, count: int, as_json: bool) -> None:
    """The steps of a build that took longest."""
    from scons_gpu.inspect.tables import show
    from scons_gpu.inspect.timeline import slowest as longest

    found = _timeline(place)
    steps = longest(found, count)
    if as_json:
        _print_json({"schema": "scons-gpu/slowest/1", "build": found.build.id, "steps": [_json(step) for step in steps]})
    elif not steps:
        click.echo(_nothing(found))
    else:
        show(_COLUMNS, [_row(step) for step in steps])
        click.echo(
            f"of {len(found.steps)} steps, {sum(step.seconds for step in found.steps):.2f} s together, in {found.wall_seconds:.2f} s"
        )


@click.command("critical-path")
@given.as_json
@click.pass_obj
def critical_path(place: Place, as_json: bool) -> None:
    """The chain of steps that bounds a build, and how much faster any number of workers could make it."""
    from scons_gpu.inspect.chain import chain
    from scons_gpu.inspect.graph_files import digests
    from scons_gpu.inspect.tables import show

    found = _timeline(place)
    way = chain(found, digests(place.store, found.build, then=place.build is not None))
    if as_json:
        _print_json(_chain_json(found, way))
    elif not way.links:
        click.echo(_nothing(found))
    else:
        show(("waited", *_COLUMNS), [(link.waited, *_row(link.step)) for link in way.links])
        for line in _verdict(found, way):
            click.echo(line)


def _verdict(found: Timeline, way: Chain) -> tuple[str, ...]:
    apart = f"SCons took {way.wall_seconds - way.span:.2f} s before and after all steps"
    more = f"with a worker for every step {way.bound:.2f} s, {way.gain:.2f} times as fast"
    return (
        f"these {len(way.links)} of {len(found.steps)} steps take {way.seconds:.2f} s one after another; {apart}",
        f"the build took {way.wall_seconds:.2f} s with {found.build.jobs} jobs; {more}",
    )


def _timeline(place: Place) -> Timeline:
    from scons_gpu.inspect import builds
    from scons_gpu.inspect.timeline import timeline

    gc.disable()  # all that is read is kept until the end: looking for what is not takes a third of the time
    found = timeline(builds.of(place.store, place.build))
    if found.build.end is None:
        click.echo(f"note: build {found.build.id} was killed, or still runs: this is what had ended", err=True)
    return found


def _nothing(found: Timeline) -> str:
    return f"build {found.build.id} ran no step: there was nothing to do"


def _row(step: Step) -> tuple[Cell, ...]:
    action = step.action
    memory = round(action.peak_kib / 1024) or None
    return (step.seconds, action.cpu, action.stage, action.name, action.arch, ", ".join(action.owners), action.result, memory)


def _json(step: Step) -> dict[str, Any]:
    action = step.action
    return {
        "stage": action.stage,
        "name": action.name,
        "arch": action.arch,
        "modules": list(action.owners),
        "result": action.result,
        "unit": action.unit or None,
        "file": action.target,
        "start": round(step.start, 6),
        "seconds": round(step.seconds, 6),
        "cpu_seconds": action.cpu,
        "peak_kib": action.peak_kib,
        "worker": step.lane,
    }


def _chain_json(found: Timeline, way: Chain) -> dict[str, Any]:
    return {
        "schema": "scons-gpu/critical-path/1",
        "build": found.build.id,
        "jobs": found.build.jobs,
        "wall_seconds": round(way.wall_seconds, 6),
        "span_seconds": round(way.span, 6),
        "chain_seconds": round(way.seconds, 6),
        "bound_seconds": round(way.bound, 6),
        "gain": round(way.gain, 4),
        "steps": [{"waited": round(link.waited, 6), **_json(link.step)} for link in way.links],
    }


def _print_json(data: dict[str, Any]) -> None:
    click.echo(json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False))


COMMANDS: tuple[click.Command, ...] = (trace, slowest, critical_path)
