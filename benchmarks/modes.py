#!/usr/bin/env python3
"""Holds link modes against one another and against the module in one piece, in one run: builds from nothing, and edits of one kernel.

    modes.py [MODE...] [--kernels N] [--seconds S] [--rounds N] [--work DIR] [--json FILE]

The modes are `merge`, `image` and `whole` without a name. S is the CPU time that a kernel takes in the undivided build. The reference is
that of `budgets.py`: one lowering and one ptxas, in one process, which has one core. Modes take turns, and medians count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from budgets import ENVIRON, UNDIVIDED, Cost, clean, in_one_process, last_stages, lines_a_second, machine, project, scons
from generate import Shape, write
from rich.console import Console
from rich.table import Table

from scons_gpu.store import log
from scons_gpu.toolchain.tools import discover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.toolchain.tools import Toolchain

MODES = ("merge", "image", "whole")


@dataclass
class Mode:
    """What was measured of one."""

    name: str
    folder: Path
    cold: list[tuple[Cost, Cost]] = field(default_factory=list)
    """The build, and the reference of that round."""
    edits: list[tuple[Cost, float, float]] = field(default_factory=list)
    """The build, its CPU seconds besides front end and split, and how long its link took."""

    def build(self) -> Cost:
        """With two jobs."""
        return scons(self.folder, "-j2", f"GPU_LINK={self.name}")

    def row(self) -> dict[str, float]:
        """Medians."""
        median = statistics.median
        return {
            "cold CPU": median(own.cpu / one.cpu for own, one in self.cold),
            "cold wall": median(own.wall / one.wall for own, one in self.cold),
            "edit wall": median(own.wall for own, _, _ in self.edits),
            "edit CPU": median(rest for _, rest, _ in self.edits),
            "edit link": median(link for _, _, link in self.edits),
        }


def measured(modes: Sequence[Mode], shape: Shape, tools: Toolchain, *, rounds: int) -> list[Cost]:
    """Fills the modes; the references' own costs."""
    references = []
    for mode in modes:
        project(mode.folder, shape)
        mode.build()  # which asks the tools what they are
    for _ in range(rounds):
        reference = in_one_process(UNDIVIDED, modes[0].folder / "m0.ll", tools)
        references.append(reference)
        for mode in modes:
            clean(mode.folder)
            mode.cold.append((mode.build(), reference))
    for turn in range(2 * rounds + 1):
        for mode in modes:
            write(mode.folder, shape, edit=(0, turn))
            taken = mode.build()
            stages = last_stages(mode.folder)
            mode.edits.append((taken, taken.cpu - stages["source"] - stages["split"], _link(mode.folder)))
    return references


def _link(folder: Path) -> float:
    """Seconds that the last link took, by the clock."""
    links = [record for record in log.read(folder / ".gpu-store" / "log.jsonl") if record.get("stage") == "link"]
    return float(links[-1]["end"] - links[-1]["start"])


def show(rows: dict[str, dict[str, float]], title: str) -> None:
    """The table."""
    table = Table(title=title, title_justify="left")
    for column in ("mode", "cold, CPU", "cold, wall", "edit, wall", "edit, CPU besides front end and split", "edit, link"):
        table.add_column(column, justify="left" if column == "mode" else "right")
    for name, row in rows.items():
        told = (f"{row['cold CPU']:.2f}x", f"{row['cold wall']:.2f}x", f"{row['edit wall']:.2f} s", f"{row['edit CPU']:.2f} s")
        table.add_row(name, *told, f"{1000 * row['edit link']:.0f} ms")
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def main() -> int:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modes", nargs="*", metavar="MODE", default=MODES)
    parser.add_argument("--kernels", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=0.015)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="folder to build in; kept (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="file for the rows")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scons-gpu-modes-") as temporary:
        work = (options.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        tools = discover(environ=ENVIRON, prefix=sys.prefix, facts=work / "facts")
        shape = Shape(kernels=options.kernels, work=round(options.seconds * lines_a_second(work, tools)))
        modes = [Mode(name, work / name) for name in options.modes]
        references = measured(modes, shape, tools, rounds=options.rounds)
        facts = machine(tools)
    rows = {mode.name: mode.row() for mode in modes}
    one = statistics.median(each.cpu for each in references)
    title = f"{options.kernels} kernels of {1000 * one / options.kernels:.0f} ms, {one:.1f} s in one piece"
    show(rows, "  ".join((title, *(f"{name} {value}" for name, value in facts.items()))))
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "undivided": one, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
