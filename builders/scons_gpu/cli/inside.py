"""Commands that look into a build: why, diff, budget."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from scons_gpu.cli import tools as given

if TYPE_CHECKING:
    from scons_gpu.cli.program import Place

__all__ = ["COMMANDS"]


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
        click.echo("\n".join(ask.lines(answers, place.store)))


def _print_json(data: dict[str, Any]) -> None:
    click.echo(json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False))


COMMANDS = (why,)
