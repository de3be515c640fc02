"""Commands that look into a build: why, diff, budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scons_gpu.cli import tools as given

if TYPE_CHECKING:
    from scons_gpu.cli.program import Place

__all__ = ["COMMANDS"]

_existing = click.Path(exists=True, dir_okay=False)


@click.command()
@click.argument("name", metavar="TARGET|KERNEL")
@given.as_json
@click.pass_obj
def why(place: Place, name: str, as_json: bool) -> None:
    """Why a file was made again, or a kernel compiled: what changed, and the way from there.

    TARGET is a file that a build made. KERNEL is a kernel's symbol, its readable name, or a part of that which no other kernel has.
    With --build before the command: as of that build.
    """
    from scons_gpu.inspect import ask

    answers = ask.ask(place.store, name, build=place.build)
    if as_json:
        _print_json(ask.to_json(answers, name))
    else:
        click.echo("\n".join(ask.lines(answers)))


@click.command()
@click.argument("then")
@click.argument("now")
@given.as_json
@click.pass_context
def diff(ctx: click.Context, then: str, now: str, as_json: bool) -> None:
    """Kernels of two builds, manifests or stores: added, removed, changed. Exit code 1 if they differ.

    THEN and NOW are each a manifest, the folder of a store (its last build), or the name of a build in the log.
    """
    from scons_gpu.inspect import diff as differ
    from scons_gpu.inspect.causes import sentence
    from scons_gpu.inspect.tables import show

    place: Place = ctx.obj
    found = differ.compare(*differ.sides(then, now, store=place.store))
    if as_json:
        _print_json(found.to_json())
    else:
        for cause in found.settings:
            click.echo(sentence(cause))
        if found.kernels:
            show(differ.COLUMNS, found.rows())
        click.echo(", ".join(f"{count} {what}" for what, count in found.counts().items()))
    if found.differs:
        ctx.exit(1)


@click.group()
def budget() -> None:
    """Limits on what kernels take: registers, spills, code, stack, shared memory."""


@budget.command()
@click.argument("budgets", type=_existing)
@click.argument("manifest", type=_existing)
@given.as_json
@click.pass_context
def check(ctx: click.Context, budgets: str, manifest: str, as_json: bool) -> None:
    """Holds a program's kernels against the limits in BUDGETS, a TOML file. Exit code 1 if one takes more than it may."""
    from scons_gpu.inspect import budgets as held
    from scons_gpu.inspect.figures import of_manifest
    from scons_gpu.inspect.tables import show

    checked = held.check(held.read(given.read(budgets), path=budgets), of_manifest(Path(manifest)))
    if as_json:
        _print_json(checked.to_json())
    else:
        if checked.exceeded:
            show(held.COLUMNS, [each.cells() for each in checked.exceeded])
        click.echo(checked.sentence())
    if checked.exceeded:
        ctx.exit(1)


def _print_json(data: dict[str, Any]) -> None:
    click.echo(json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False))


COMMANDS = (why, diff, budget)
