"""Commands for tuning files: merge, check, show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scons_gpu.cli import tools as given
from scons_gpu.errors import GpuError

if TYPE_CHECKING:
    from scons_gpu.inspect.tables import Cell
    from scons_gpu.tune.tuning import Solution

__all__ = ["COMMANDS"]

SCHEMA = "scons-gpu/tuning-entries/1"
_COLUMNS = ("kernel", "arch", "keys", "solution", "time us", "spread %", "of", "device", "tools")
_files = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))


@click.group()
def tuning() -> None:
    """Files that say which candidate is the fastest: merge, check, show."""


@tuning.command()
@_files
@given.output
def merge(files: tuple[str, ...], output: str) -> None:
    """Joins tuning files; FILE may be one of them.

    Where two solve one problem differently, the solution by the newer tools is kept, else the faster one; a line says so. One that no
    build could use is never kept in place of one that counts.
    """
    from scons_gpu.tune import tuning as form

    merged = form.merge([form.read(Path(file)) for file in files])
    form.write(Path(output), merged.solutions)
    for line in merged.conflicts:
        click.echo(f"conflict: {line}")
    click.echo(f"{output}: {_count(len(merged.solutions), 'entry', 'entries')} of {_count(len(files), 'file', 'files')}")


@tuning.command()
@_files
@click.pass_context
def check(ctx: click.Context, files: tuple[str, ...]) -> None:
    """Reads tuning files as a build does. Exit code 1 if one does not read, or has an entry that no build can use."""
    from scons_gpu.tune import tuning as form

    failed = False
    for file in files:
        try:
            read = form.read(Path(file))
        except GpuError as error:
            click.echo(f"error: {error}", err=True)
            failed = True
            continue
        wrong = form.check(read)
        for line in wrong:
            click.echo(f"{file}: {line}")
        failed = failed or bool(wrong)
        told = f", of which {len(wrong)} can never count" if wrong else ""
        click.echo(f"{file}: {_count(len(read.solutions), 'entry', 'entries')}{told}")
    if failed:
        ctx.exit(1)


@tuning.command()
@_files
@given.as_json
def show(files: tuple[str, ...], as_json: bool) -> None:
    """What tuning files hold, an entry a row. Of several files that know a problem, a build takes the first."""
    from scons_gpu.inspect import tables
    from scons_gpu.tune import tuning as form

    read = [form.read(Path(file)) for file in files]
    if as_json:
        entries = [{"file": each.file, **one.to_json()} for each in read for one in each.solutions]
        click.echo(json.dumps({"schema": SCHEMA, "entries": entries}, indent=1, sort_keys=True, ensure_ascii=False))
        return
    for each in read:
        tables.show(_COLUMNS, [_row(one) for one in each.solutions], title=each.file if len(read) > 1 else "")


def _row(one: Solution) -> tuple[Cell, ...]:
    from scons_gpu.tune.model import spelled

    device = f"{one.device.name} ({one.device.capability})" + (f", driver {one.device.driver}" if one.device.driver else "")
    tools = " ".join(f"{name} {version}" for name, version in one.tools)
    problem = one.problem.kernel, one.problem.arch, spelled(one.problem.keys)
    return (*problem, one.label, one.time_us, one.spread * 100, one.candidates, device, tools)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


COMMANDS = (tuning,)
