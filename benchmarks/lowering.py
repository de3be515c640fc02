#!/usr/bin/env python3
"""Lowers the units of plans with LLVM and with libNVVM, assembles both results as whole programs, and prints one table of ratios.

    lowering.py FOLDER... --store DIR [--arch sm_100] [--limit N] [--seconds S] [--opt N] [--json FILE]

FOLDER holds what a build left: `<arch>.plan.json` of its modules; DIR is its store. Plans alone will do, objects are not looked at:
`scons build/net/ops/sm_100.plan.json` makes one. Each slice counts once. One core is used.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "builders"))

from scons_gpu.assemble.provider import AssembleOptions
from scons_gpu.assemble.ptxas import PtxasProvider
from scons_gpu.errors import GpuError
from scons_gpu.lower.choose import choose, library
from scons_gpu.lower.options import LowerOptions
from scons_gpu.plan import from_text
from scons_gpu.toolchain.arch import parse
from scons_gpu.toolchain.tools import discover
from scons_gpu.toolchain.versions import require
from scons_gpu.workers.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scons_gpu.plan import Part
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Toolchain

SIDES = ("llvm", "nvvm")


@dataclasses.dataclass(frozen=True)
class Bench:
    """What every measurement needs."""

    tools: Toolchain
    target: Target
    store: Path
    opt: int
    pool: Pool

    @property
    def facts(self) -> Path:
        """Where facts about tools are kept."""
        return self.store / "tools"

    def measure(self, part: Part, by: str) -> dict[str, Any]:
        """One unit on one side: CPU seconds, bytes of PTX, registers, bytes of spills; or why it failed."""
        how = choose(self.tools, wanted=by, target=self.target, assembler=self.tools.ptxas, facts=self.facts)
        options = LowerOptions(ptx=how.ptx, opt=self.opt, by=how.by)
        libdevice, nvvm = self.tools.libdevice, library(self.tools, options)
        where = {"slice": part.slice, "roots": [str(self.store)], "renames": [list(pair) for pair in part.renames]}
        where |= {"libdevice": libdevice.path if libdevice else "", "nvvm": nvvm.path if nvvm else ""}
        assembler = PtxasProvider(ptxas=require(self.tools, "ptxas"), nvlink=self.tools.nvlink, facts=self.facts)
        try:
            made = self.pool.run("lower", arch=self.target.name, options=options, **where)
            whole = assembler.compile_relocatable if part.uses else assembler.compile
            done = whole(made["ptx"], target=self.target, options=AssembleOptions(opt=self.opt))
        except GpuError as error:
            return {"failed": str(error)}
        return {
            "lower": made["cpu"],
            "bytes": len(made["ptx"]),
            "ptxas": done.cpu,
            "registers": sum(each.registers or 0 for each in done.resources),
            "spills": sum((each.spill_stores or 0) + (each.spill_loads or 0) for each in done.resources),
            "stack": sum(each.stack_bytes or 0 for each in done.resources),
        }


def main() -> int:
    """Measures, and prints the table."""
    arguments = _arguments()
    target = parse(arguments.arch)[0]
    tools = discover(environ=dict(os.environ), prefix=sys.prefix, facts=arguments.store / "tools")
    bench = Bench(tools=tools, target=target, store=arguments.store, opt=arguments.opt, pool=Pool())
    rows = list(_rows(bench, _parts(arguments, target), arguments.seconds))
    bench.pool.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    print(_versions(tools), f"· {target.name} · -O{arguments.opt}")
    print(_table(rows))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--arch", default="sm_100")
    parser.add_argument("--limit", type=int, default=None, help="so many units, of all lengths alike")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further unit after so long")
    parser.add_argument("--opt", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None, help="every unit's figures")
    return parser.parse_args()


def _parts(arguments: argparse.Namespace, target: Target) -> Sequence[Part]:
    """One unit of each slice, a spread over all lengths where there is a limit."""
    paths = sorted(path for folder in arguments.folders for path in folder.rglob(f"{target.name}.plan.json"))
    plans = [from_text(path.read_text(), path=str(path)) for path in paths]
    units = {part.slice: part for plan in plans for part in plan.units if not part.refused}
    ordered = sorted(units.values(), key=lambda part: (part.bytes, part.slice))
    step = max(1, len(ordered) // (arguments.limit or len(ordered) or 1))
    return ordered[::step][: arguments.limit]


def _rows(bench: Bench, parts: Sequence[Part], seconds: float) -> Iterator[dict[str, Any]]:
    begun = time.monotonic()
    for side in SIDES if parts else ():
        bench.measure(parts[0], side)  # what a worker loads once is no unit's
    for part in parts:
        if time.monotonic() - begun > seconds:
            return
        row = {"name": part.readable, "source": part.source, "length": part.bytes, **{side: bench.measure(part, side) for side in SIDES}}
        for side in SIDES:
            if "failed" in row[side]:
                print(f"{side}: {row[side]['failed'].splitlines()[0]}", file=sys.stderr)
        yield row


def _versions(tools: Toolchain) -> str:
    library = tools.library("nvvm")
    found = {
        "LLVM": tools.llvm.partition(" ")[0],
        "libNVVM": library.version if library else "",
        "ptxas": tools.ptxas and tools.ptxas.version,
    }
    return " ".join(f"{name} {version}" for name, version in found.items())


def _table(rows: Sequence[dict[str, Any]]) -> str:
    good = [row for row in rows if not any("failed" in row[side] for side in SIDES)]
    failed = Counter(side for row in rows for side in SIDES if "failed" in row[side])
    lines = [f"units {len(rows)}, both sides made {len(good)}; failed: LLVM {failed['llvm']}, libNVVM {failed['nvvm']}"]
    lines.append(f"{'':22}{'LLVM':>12}{'libNVVM':>12}{'ratio':>8}{'median':>8}{'less':>7}{'equal':>7}{'more':>7}")
    lines += [_line(name, [(of(row["llvm"]), of(row["nvvm"])) for row in good]) for name, of in _MEASURES.items()]
    return "\n".join(lines)


_MEASURES: dict[str, Callable[[dict[str, Any]], float]] = {
    "lowering, CPU s": lambda side: side["lower"],
    "PTX, kB": lambda side: side["bytes"] / 1000,
    "ptxas, CPU s": lambda side: side["ptxas"],
    "both steps, CPU s": lambda side: side["lower"] + side["ptxas"],
    "registers": lambda side: side["registers"],
    "spills, bytes": lambda side: side["spills"],
    "stack, bytes": lambda side: side["stack"],
}


def _line(name: str, pairs: Sequence[tuple[float, float]]) -> str:
    """Sums, their ratio, the median of the units' ratios, and how many units have less with libNVVM."""
    one, other = (sum(pair[side] for pair in pairs) for side in (0, 1))
    ratios = [b / a for a, b in pairs if a]
    less, more = (sum(1 for a, b in pairs if better(a, b)) for better in (lambda a, b: b < a, lambda a, b: b > a))
    ratio = f"{other / one:8.2f}" if one else f"{'':8}"
    median = f"{statistics.median(ratios):8.2f}" if ratios else f"{'':8}"
    return f"{name:22}{one:12.1f}{other:12.1f}{ratio}{median}{less:7}{len(pairs) - less - more:7}{more:7}"


if __name__ == "__main__":
    sys.exit(main())
