"""Commands that look at what there is: doctor, stats, kernels, compare, gc."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scons_gpu.cli import tools as given
from scons_gpu.errors import GpuError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.cli.program import Place
    from scons_gpu.inspect.compare import Report
    from scons_gpu.inspect.tables import Cell
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.model import Tool
    from scons_gpu.toolchain.tools import Toolchain

__all__ = ["COMMANDS"]

_existing = click.Path(exists=True, dir_okay=False)


@click.command()
@click.option("--arch", "archs", multiple=True, help="Check these architectures too.", metavar="ARCH")
@given.as_json
@click.pass_context
def doctor(ctx: click.Context, archs: tuple[str, ...], as_json: bool) -> None:
    """The tools, where they were looked for, and what they can build."""
    from scons_gpu.inspect import doctor as examine
    from scons_gpu.toolchain.arch import parse
    from scons_gpu.toolchain.bindings import bindings

    place: Place = ctx.obj
    found = given.toolchain(place.store, keep=place.store.is_dir())
    targets = parse(list(archs)) if archs else ()
    provider = _provider(found, targets, place)
    lowering = _lowering(found, targets, place, assembler=provider.get("assembler"))
    report = examine.report(
        found,
        targets,
        **provider,
        lowering=lowering,
        merging=_merging(found, targets, place),
        front_end=_front_end(found, place),
        bindings=bindings("nvjitlink"),
    )
    if as_json:
        _print_json(report)
    else:
        _show_doctor(report)
    if report["problems"]:
        ctx.exit(1)


def _provider(found: Toolchain, targets: Sequence[Target], place: Place) -> dict[str, Any]:
    """What makes and links images here, what it can do, and how it was chosen; for want of one, why not."""
    from dataclasses import asdict

    from scons_gpu.assemble.choose import choose

    facts = place.store / "tools" if place.store.is_dir() else given.scratch()
    try:
        choice = choose(found, needs=["relocatable", "link"], targets=targets, facts=facts)
    except GpuError as error:
        return {"choice": tuple(str(error).splitlines())}
    if choice.making is None:
        return {"choice": choice.log}
    return {
        "capabilities": asdict(choice.provider.capabilities),
        "choice": choice.log,
        "assembler": choice.making.compiler,
        "linker": choice.making.linker,
    }


def _lowering(found: Toolchain, targets: Sequence[Target], place: Place, *, assembler: Tool | None) -> list[dict[str, Any]]:
    """What `auto` comes to for these architectures, or for all that can be built for; what cannot be is told elsewhere."""
    from scons_gpu.lower.choose import choose
    from scons_gpu.toolchain.arch import parse
    from scons_gpu.toolchain.versions import supported

    numbers = supported(found) if found.llvm else ()
    facts = place.store / "tools" if place.store.is_dir() else given.scratch()
    lines = []
    for target in targets or (parse(f"sm_{number}")[0] for number in numbers):
        with contextlib.suppress(GpuError):
            chosen = choose(found, target=target, assembler=assembler or found.ptxas, facts=facts)
            lines.append({"arch": target.name, "by": chosen.by, "ptx": f"{chosen.ptx // 10}.{chosen.ptx % 10}", "why": chosen.why})
    return lines


def _merging(found: Toolchain, targets: Sequence[Target], place: Place) -> list[dict[str, str]]:
    """For which of these architectures GPU_LINK=auto merges, and why not for the others. Tried where nobody knows."""
    from scons_gpu.assemble.choose import choose
    from scons_gpu.link.proven import unproven

    facts = place.store / "tools" if place.store.is_dir() else given.scratch()
    lines = []
    for target in targets:
        if not target.real:
            continue
        with contextlib.suppress(GpuError):
            choice = choose(found, needs=["compile"], targets=[target], facts=facts)
            if choice.making:
                why = unproven(choice.provider, target, tool=choice.making.compiler.path, facts=facts)
                lines.append({"arch": target.name, "by": choice.name, "unproven": why})
    return lines


def _front_end(found: Toolchain, place: Place) -> str:
    """What `auto` comes to for `.cu`; for want of one, why not."""
    import os

    from scons_gpu.toolchain.frontends import choose

    facts = place.store / "tools" if place.store.is_dir() else given.scratch()
    try:
        front = choose(found, wanted="auto", environ=os.environ, facts=facts)
    except GpuError as error:
        return error.what
    return f"{front.name} {front.tool.version} ({front.tool.path})"


def _show_doctor(report: dict[str, Any]) -> None:
    from scons_gpu.inspect import doctor as examine
    from scons_gpu.inspect.tables import show

    show(("tool", "version", "origin", "path", "identity"), examine.rows(report))
    show(("what", "result", "origin", "where"), examine.looks(report), title="looked at")
    for line in report["choice"]:
        click.echo(f"provider: {line}")
    click.echo(f"front end of .cu: {report['front_end']}")
    for line in examine.lowerings(report):
        click.echo(f"lowering: {line}")
    for each in report["merging"]:
        click.echo(f"merging: {each['arch']} with {each['by']}: {each['unproven'] or 'proven'}")
    for target in report["targets"]:
        click.echo("target: " + " ".join(f"{name}={value}" for name, value in target.items()))
    for kind in ("warnings", "problems"):
        for line in report[kind]:
            click.echo(f"{kind.removesuffix('s')}: {line}")


@click.command()
@given.as_json
@click.pass_obj
def stats(place: Place, as_json: bool) -> None:
    """What a build made, reused and shared, and what took the time."""
    from scons_gpu.inspect.tables import show
    from scons_gpu.store.log import read
    from scons_gpu.store.stats import no_build
    from scons_gpu.store.stats import stats as count

    counted = count(read(place.store / "log.jsonl"), build=place.build)
    if not counted.build:
        raise no_build(place.store, place.build)
    data = counted.to_json()
    if as_json:
        _print_json(data)
        return
    seconds = data.pop("cpu_seconds")
    data.pop("schema")
    show(("what", "value"), [(name.replace("_", " "), _cell(value)) for name, value in data.items()])
    if seconds:
        show(("stage", "cpu seconds"), [(stage, float(spent)) for stage, spent in seconds.items()])


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


@click.command()
@click.argument("manifest", type=_existing)
@given.as_json
def kernels(manifest: str, as_json: bool) -> None:
    """The kernels of a program, with what each takes of a GPU."""
    from scons_gpu.inspect import kernels as listed
    from scons_gpu.inspect.tables import show
    from scons_gpu.link.manifest import from_text

    read = from_text(given.read(manifest), path=manifest)
    if as_json:
        _print_json(listed.to_json(read))
    else:
        show(listed.COLUMNS, listed.rows(read))


@click.command()
@click.argument("manifest", type=_existing)
@click.option("--arch", default="", help="This architecture alone.", metavar="ARCH")
@click.option("--kernel", default="", help="This kernel alone: its symbol, or a part of its readable name.", metavar="NAME")
@given.as_json
@click.pass_context
def compare(ctx: click.Context, manifest: str, arch: str, kernel: str, as_json: bool) -> None:
    """Holds a build against the undivided one, kernel by kernel. Exit code 1 if a kernel is "different"."""
    from scons_gpu.inspect.compare import compare as compared
    from scons_gpu.inspect.reference import Tools

    place: Place = ctx.obj
    found = given.toolchain(place.store, keep=place.store.is_dir())
    report = compared(Path(manifest), tools=Tools.of(found), arch=given.target(arch).name if arch else "", kernel=kernel)
    if as_json:
        _print_json(report.to_json())
    else:
        _show_comparison(report)
    if report.different:
        ctx.exit(1)


def _show_comparison(report: Report) -> None:
    from scons_gpu.inspect.compare import CLASSES
    from scons_gpu.inspect.tables import show

    show(
        ("module", "arch", "kernel", "class", "registers", "spills", "instructions", "why"),
        [(one.module, one.arch, one.readable, one.verdict.kind, *_changes(one.verdict), one.verdict.cause) for one in report.kernels],
    )
    modules = sorted({one.module for one in report.kernels})
    totals: list[tuple[Cell, ...]] = [(name, *report.counts(name).values()) for name in modules]
    totals.append(("all", *report.counts().values()))
    show(("module", *CLASSES), totals, title="kernels by class")
    for note in report.notes:
        click.echo(note)


def _changes(verdict: Any) -> tuple[str, ...]:  # noqa: ANN401 - loaded where it is used
    """Undivided figures, and the build's where they are others."""
    pairs = []
    for name in ("registers", "spill_bytes", "instructions"):
        before, after = (getattr(side, name) if side else None for side in (verdict.undivided, verdict.built))
        texts = ["-" if value is None else str(value) for value in (before, after)]
        pairs.append(texts[0] if texts[0] == texts[1] else " -> ".join(texts))
    return tuple(pairs)


@click.command()
@click.option("--keep", type=click.IntRange(1), default=10, show_default=True, help="How many builds of each program count.", metavar="N")
@click.option("--older-than", type=click.FloatRange(0), default=3600.0, show_default=True, help="Younger entries stay.", metavar="SECONDS")
@given.as_json
@click.pass_obj
def gc(place: Place, keep: int, older_than: float, as_json: bool) -> None:
    """Takes out of the store what no recent build names. Makes nothing stale."""
    from dataclasses import asdict

    from scons_gpu.store import builds
    from scons_gpu.store.gc import gc as collect

    if not place.store.is_dir():
        msg = f"there is no store {place.store}"
        raise UsageError(msg, hint="name it before the command, with --store, or its folder with -C")
    kept = builds.kept(place.store, last=keep)
    result = collect(place.store, keep=kept, older_than=older_than, now=time.time())
    builds.forget(place.store, last=keep)
    if as_json:
        _print_json({"schema": "scons-gpu/gc/1", **asdict(result)})
        return
    click.echo(f"removed {result.removed} entries ({_size(result.removed_bytes)}), kept {result.kept} ({_size(result.kept_bytes)})")


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count} bytes"


def _print_json(data: dict[str, Any]) -> None:
    click.echo(json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False))


COMMANDS = (doctor, stats, kernels, compare, gc)
