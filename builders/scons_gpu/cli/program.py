"""The command itself: what all subcommands share, and how each way to end becomes an exit code.

Subcommands import what they need when they run: `--help` loads neither LLVM nor a tool's description.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scons_gpu import __version__
from scons_gpu.cli.bench import COMMANDS as BENCH
from scons_gpu.cli.graphs import COMMANDS as GRAPHS
from scons_gpu.cli.inside import COMMANDS as INSIDE
from scons_gpu.cli.looks import COMMANDS as LOOKS
from scons_gpu.cli.report import COMMANDS as REPORT
from scons_gpu.cli.shipping import COMMANDS as SHIPPING
from scons_gpu.cli.steps import COMMANDS as STEPS
from scons_gpu.cli.times import COMMANDS as TIMES
from scons_gpu.cli.tuning import COMMANDS as TUNING
from scons_gpu.errors import GpuError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Place", "main", "program"]

FAILED, MISUSED, INTERRUPTED = 1, 2, 130


@dataclass(frozen=True)
class Place:
    """Where a command works."""

    store: Path
    build: str | None = None
    """The build that a command is about; None for the last one."""


class _Program(click.Group):
    """Turns errors into a message and an exit code: 1 what was asked about failed or differs, 2 wrong use."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        """Runs a subcommand."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # a closed pipe is met here, where click ends quietly, not at the interpreter's end
        except GpuError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(MISUSED if isinstance(error, UsageError) else FAILED)
        except BrokenPipeError:
            raise
        except OSError as error:
            click.echo(f"error: {error.filename or 'system'}: {error.strerror or error}", err=True)
            ctx.exit(FAILED)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        return result


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("-C", "directory", type=click.Path(exists=True, file_okay=False), default=".", help="Work in DIR.", metavar="DIR")
@click.option("--store", type=click.Path(file_okay=False), help="The store; .gpu-store in DIR by default.", metavar="DIR")
@click.option("--build", help="The build to look at, by its name in <store>/log.jsonl; the last one by default.", metavar="ID")
@click.version_option(__version__, prog_name="scons-gpu", message="%(prog)s %(version)s")
@click.pass_context
def program(ctx: click.Context, directory: str, store: str | None, build: str | None) -> None:
    """Builds GPU modules step by step, and shows what a build made.

    Exit codes: 0 done, 1 what was asked about failed or differs, 2 wrong use.
    """
    ctx.with_resource(_working_in(directory))
    ctx.obj = Place(store=Path(store or ".gpu-store").absolute(), build=build)


for _command in (*LOOKS, *INSIDE, *GRAPHS, *TIMES, *REPORT, *STEPS, *TUNING, *BENCH, *SHIPPING):
    program.add_command(_command)


@contextlib.contextmanager
def _working_in(directory: str) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


def main() -> None:
    """The entry point."""
    program(prog_name="scons-gpu")
