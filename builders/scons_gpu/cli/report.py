"""The command that makes a page of a build: report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from scons_gpu.cli import tools as given

if TYPE_CHECKING:
    from scons_gpu.cli.program import Place

__all__ = ["COMMANDS"]


@click.command()
@click.argument("manifests", metavar="[MANIFEST]...", nargs=-1, type=click.Path(dir_okay=False, path_type=Path))
@given.output
@click.pass_obj
def report(place: Place, manifests: tuple[Path, ...], output: str) -> None:
    """Writes one page that shows a build: its kernels, modules and units, what was made and why, and what took the time.

    The page holds all that it shows, and needs no network. MANIFEST: these programs alone; all of the build by default.
    With --build before the command: of that build.
    """
    from scons_gpu.inspect.report.make import make
    from scons_gpu.store.files import write_atomic

    text = make(place.store, build=place.build, manifests=manifests)
    write_atomic(Path(output), text)
    click.echo(f"{output}: {len(text) / 1e6:.1f} MB")


COMMANDS = (report,)
