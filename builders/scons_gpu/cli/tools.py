"""What several commands do alike: find the tools, read an architecture, offer the options of lowering and assembling."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scons_gpu.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from scons_gpu.assemble.provider import AssembleOptions
    from scons_gpu.lower.options import LowerOptions
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Toolchain

__all__ = ["arch", "as_json", "assemble_options", "assembling", "lower_options", "lowering", "output", "read", "say", "target", "toolchain"]

F = TypeVar("F", bound="Callable[..., Any]")

_lowerings = click.Choice(["auto", "llvm", "nvvm"])
_providers = click.STRING
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
output = click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), help="The file to write.", metavar="FILE")


def arch(*, required: bool = True) -> Callable[[F], F]:
    """`--arch`."""
    return click.option("--arch", required=required, default=None, help="One architecture: sm_90, 90a, compute_90.", metavar="ARCH")


def lowering(command: F) -> F:
    """The options that shape PTX."""
    command = click.option("--by", type=_lowerings, default="auto", show_default=True, help="What lowers; auto decides as a build does.")(
        command
    )
    command = click.option("--ptx", type=int, help="PTX version, 88 for 8.8; the newest that fits by default.")(command)
    command = click.option("--lineinfo", is_flag=True, help="Keep line tables.")(command)
    command = click.option("--debug", is_flag=True, help="Keep debug information.")(command)
    command = click.option("--fast-math", is_flag=True, help="Flush denormals; approximate square roots.")(command)
    command = click.option("--ftz", is_flag=True, help="Flush single precision denormals.")(command)
    return click.option("--opt", type=click.IntRange(0, 3), default=3, show_default=True, help="Optimisation level.")(command)


def assembling(command: F) -> F:
    """The options that shape objects."""
    command = click.option("--flag", "flags", multiple=True, help="A further option for the assembler.", metavar="FLAG")(command)
    command = click.option("--provider", type=_providers, default="auto", show_default=True, help="Which assembler.")(command)
    command = click.option("--fail-on-spill", is_flag=True, help="A kernel that spills registers is an error.")(command)
    command = click.option("--warn-on-spill", is_flag=True, help="Tell of kernels that spill registers.")(command)
    command = click.option("--maxrregcount", type=int, help="Upper limit of registers per thread.", metavar="N")(command)
    command = click.option("--lineinfo", is_flag=True, help="Make line tables.")(command)
    command = click.option("--debug", is_flag=True, help="Make debug information.")(command)
    return click.option("--opt", type=click.IntRange(0, 3), default=3, show_default=True, help="Optimisation level.")(command)


def toolchain(store: Path, *, keep: bool = True) -> Toolchain:
    """The tools, as a build finds them. Facts of them are kept in the store; without `keep` no store is made for them."""
    from scons_gpu.toolchain.tools import discover

    return discover(
        environ=os.environ,
        prefix=sys.prefix,
        facts=store / "tools" if keep else scratch(),
    )


@functools.cache
def scratch() -> Path:
    """A folder for facts of tools that ends with the process."""
    folder = Path(tempfile.mkdtemp(prefix="scons-gpu-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def target(spelled: str) -> Target:
    """The one architecture that is meant."""
    from scons_gpu.toolchain.arch import parse

    found = parse(spelled)
    if len(found) != 1:
        msg = f"--arch {spelled}: one architecture is wanted, these are {len(found)}"
        raise UsageError(msg)
    return found[0]


def lower_options(
    wanted: Target,
    tools: Toolchain,
    *,
    store: Path,
    by: str,
    ptx: int | None,
    **options: Any,  # noqa: ANN401 - its fields
) -> LowerOptions:
    """How to lower; what lowers, and the PTX version, are chosen as a build chooses them."""
    from scons_gpu.lower.choose import choose
    from scons_gpu.lower.options import LowerOptions

    chosen = choose(tools, wanted=by, target=wanted, assembler=tools.ptxas, facts=store / "tools")
    return LowerOptions(ptx=ptx or chosen.ptx, by=chosen.by, **options)


def assemble_options(*, flags: tuple[str, ...], **options: Any) -> AssembleOptions:  # noqa: ANN401 - its fields
    """How to assemble."""
    from scons_gpu.assemble.provider import AssembleOptions

    return AssembleOptions(flags=tuple(flags), **options)


def read(path: str) -> str:
    """A text file. Raises UsageError where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        raise UsageError(msg) from None


def say(text: str) -> None:
    """What a tool said, on stderr."""
    if text.strip():
        click.echo(text.rstrip(), err=True)
