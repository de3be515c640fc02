"""The command that measures a dump on a GPU and writes what it found into a tuning file."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scons_gpu.cli import tools as given
from scons_gpu.errors import GpuError, UsageError

if TYPE_CHECKING:
    from scons_gpu.inspect.tables import Cell
    from scons_gpu.tune.bench import Bench
    from scons_gpu.tune.solution import Device, Solution

__all__ = ["COMMANDS"]


@click.command()
@click.argument("dump", type=click.Path(exists=True))
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False), help="The tuning file to write or to add to.", metavar="FILE"
)
@click.option("--device", "index", type=click.IntRange(0), default=0, show_default=True, help="Which GPU.", metavar="N")
@click.option(
    "--seconds", type=click.FloatRange(0), default=5.0, show_default=True, help="The longest that a candidate is run for.", metavar="S"
)
@click.option(
    "--tolerance", type=click.FloatRange(0), help="How far results may differ, relatively; each type has its own by default.", metavar="T"
)
@click.option("--kernel", default="", help="These problems alone: a kernel's symbol, readable name or a pattern.", metavar="PATTERN")
@given.as_json
@click.pass_context
def bench(ctx: click.Context, /, dump: str, output: str, *, as_json: bool, index: int, **choices: Any) -> None:  # noqa: ANN401 - options
    """Measures a dump's candidates on a GPU. Exit code 1 if a problem has none that runs.

    DUMP is what `scons gpu-dump` wrote, or the folder that it was unpacked to.
    """
    from scons_gpu.tune.device import connect
    from scons_gpu.tune.dump import read_dump

    known = _known(Path(output))  # a file that cannot be added to is found before an hour of measuring
    read = read_dump(Path(dump))
    with closing(connect(index)) as device:
        from scons_gpu.tune.bench import bench as measure  # needs numpy, which the device's process has found

        click.echo(f"{device.facts.name} ({device.facts.capability}), CUDA {device.facts.driver}", err=True)
        result = measure(read, device, say=lambda line: click.echo(line, err=True), **choices)
        facts = device.facts
    if result.solutions:
        _write(Path(output), result.solutions, known)
    if as_json:
        click.echo(json.dumps({**result.to_json(), "device": vars(facts)}, indent=1, sort_keys=True, ensure_ascii=False))
    else:
        _show(result, facts, output)
    if not result.solutions:
        raise GpuError(_nothing(result), hint=f"{output} is as it was")
    if result.unsolved:
        ctx.exit(1)


def _known(path: Path) -> tuple[Solution, ...]:
    """What the file holds already."""
    from scons_gpu.tune.tuning import read

    if path.exists():
        return read(path).solutions
    if path.parent.exists() and not path.parent.is_dir():
        msg = f"cannot write {path}: {path.parent} is no folder"
        raise UsageError(msg)
    return ()


def _write(path: Path, found: tuple[Solution, ...], known: tuple[Solution, ...]) -> None:
    """A problem that was measured again has its new solution; what others wrote in the meantime is not lost."""
    from scons_gpu.tune.tuning import write

    write(path, (*found, *_known(path), *known))


def _nothing(result: Bench) -> str:
    if not result.problems:
        return "nothing was measured: the dump has no problems"
    why = next((each.skipped for each in result.problems if each.skipped), "no candidate ran")
    return f"nothing was measured: {why}"


def _show(result: Bench, facts: Device, output: str) -> None:
    from scons_gpu.inspect.tables import show

    rows: list[tuple[Cell, ...]] = []
    for each in result.problems:
        if each.skipped:
            rows.append((each.problem, None, None, None, "skipped"))
        for candidate in each.candidates:
            timing = candidate.timing
            figures = (timing.time_us, f"{timing.spread:.1%}") if timing else (None, None)
            best = each.solution is not None and each.solution.label == candidate.label
            rows.append((each.problem, candidate.label, *figures, "left out" if not timing else "fastest" if best else ""))
    show(("problem", "candidate", "us", "spread", "result"), rows, title=f"{facts.name} ({facts.capability})")
    if result.solutions:
        count = len(result.solutions)
        click.echo(f"{output}: {count} problem{'' if count == 1 else 's'} measured")


COMMANDS = (bench,)
