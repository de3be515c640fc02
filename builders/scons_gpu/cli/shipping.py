"""Commands for those who ship a build, and for those who get one: verify, reproduce."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scons_gpu.cli import tools as given
from scons_gpu.errors import UsageError

if TYPE_CHECKING:
    from scons_gpu.cli.program import Place as Working
    from scons_gpu.inspect.differing import Place
    from scons_gpu.inspect.reproduce import Report
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


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[TARGET | NAME=VALUE]...")
@click.option(
    "--against", type=click.Path(exists=True, dir_okay=False), help="Build once, and compare with this release.", metavar="ARCHIVE"
)
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Jobs of the second build; the first has one.", metavar="N")
@click.option("--keep", type=click.Path(file_okay=False), help="Leave what was built in DIR.", metavar="DIR")
@given.as_json
@click.pass_context
def reproduce(  # noqa: PLR0913, PLR0917 - the command's options
    ctx: click.Context, arguments: tuple[str, ...], against: str | None, jobs: int | None, keep: str | None, as_json: bool
) -> None:
    """Builds twice, in different surroundings, and compares. Exit code 1 if anything differs."""
    from scons_gpu.inspect import reproduce as building

    place: Working = ctx.obj
    common = {"store": place.store, "jobs": jobs or max(os.cpu_count() or 2, 2), "keep": Path(keep) if keep else None}
    if against is None:
        report = building.twice(Path.cwd(), arguments, **common)  # type: ignore[arg-type]
    else:
        report = building.against(read_archive(against, limit=1024), against, Path.cwd(), arguments, **common)  # type: ignore[arg-type]
    if as_json:
        click.echo(json.dumps(_told(report), indent=1))
    else:
        _show_report(report, what=against)
    if report.differing:
        ctx.exit(1)


def _told(report: Report) -> dict[str, object]:
    return {
        "schema": "scons-gpu/reproduce/1",
        "compared": report.compared,
        "same": not report.differing,
        "differing": [{"file": each.file, "places": [vars(place) for place in each.places]} for each in report.differing],
        "causes": [{"input": each.input, "why": each.why, "place": vars(each.place) if each.place else None} for each in report.causes],
    }


def _show_report(report: Report, *, what: str | None) -> None:
    if not report.differing:
        click.echo(
            f"{report.compared} files, all the same" if what is None else f"{what}: the build makes the same, all {report.compared} files"
        )
        return
    for difference in report.differing:
        click.echo(f"differs: {difference.file}")
        for place in difference.places[:_PLACES]:
            _show_place(place, indent="    ")
        if len(difference.places) > _PLACES:
            click.echo(f"    and {len(difference.places) - _PLACES} more")
    for cause in report.causes[:_CAUSES]:
        click.echo(f"comes from {cause.input}: {cause.why}")
        if cause.place:
            _show_place(cause.place, indent="    ")
    if len(report.causes) > _CAUSES:
        click.echo(f"and from {len(report.causes) - _CAUSES} more, which --json lists")


def _show_place(place: Place, *, indent: str) -> None:
    if place.where:
        click.echo(f"{indent}{place.where}")
    click.echo(f"{indent}  - {place.one}\n{indent}  + {place.other}")


_PLACES, _CAUSES = 12, 20

COMMANDS: tuple[click.Command, ...] = (verify, reproduce)
