"""Commands for those who ship a build, and for those who get one: verify, reproduce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scons_gpu.cli import tools as given
from scons_gpu.errors import UsageError

if TYPE_CHECKING:
    from scons_gpu.inspect.verify import Verdict

__all__ = ["COMMANDS"]

_MIB = 1 << 20


@click.command()
@click.argument("archive", type=click.Path(exists=True, dir_okay=False))
@click.option("--limit", type=click.IntRange(min=1), default=1024, show_default=True, help="What it may unpack to, in MiB.", metavar="MIB")
@given.as_json
@click.pass_context
def verify(ctx: click.Context, archive: str, limit: int, as_json: bool) -> None:
    """A release against what it says of itself, byte by byte. Exit code 1 if anything is another."""
    from scons_gpu.inspect.verify import verify as look

    found = look(read_archive(archive, limit=limit), most=limit * _MIB)
    if as_json:
        click.echo(json.dumps(_report(archive, found), indent=1))
    else:
        _show(archive, found)
    if found.problems:
        ctx.exit(1)


def read_archive(archive: str, *, limit: int) -> bytes:
    """Its bytes. Raises UsageError for what is no file, or is longer than it may unpack to."""
    path = Path(archive)
    if not path.is_file():
        msg = f"{archive}: not a file"
        raise UsageError(msg)
    if (size := path.stat().st_size) > limit * _MIB:
        msg = f"{archive}: has {size} bytes, and {limit} MiB are allowed"
        raise UsageError(msg, hint="--limit says how much it may be")
    return path.read_bytes()


def _report(archive: str, found: Verdict) -> dict[str, object]:
    return {
        "schema": "scons-gpu/verify/1",
        "archive": archive,
        "release": found.name,
        "files": len(found.files),
        "programs": sorted(program.program for program in found.programs.values()),
        "modules": found.modules,
        "kernels": found.kernels,
        "whole": not found.problems,
        "problems": [vars(problem) for problem in found.problems],
        "notes": found.notes,
    }


def _show(archive: str, found: Verdict) -> None:
    for problem in found.problems:
        click.echo(f"error: {archive}: {problem}", err=True)
    for note in found.notes:
        click.echo(f"{archive}: {note}", err=True)
    if not found.problems:
        counted = f"{len(found.files)} files, {found.modules} modules, {found.kernels} kernels"
        click.echo(f"{archive}: whole: release {found.name}, {counted}")


COMMANDS: tuple[click.Command, ...] = (verify,)
