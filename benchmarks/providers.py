#!/usr/bin/env python3
"""Measures providers against ptxas as a process a unit, and a deferred link against parallel assembly; prints one table of ratios.

    providers.py [--units 300] [--work N]... [--jobs 2] [--rounds 3] [--arch sm_90] [--json FILE]

Units are generated, `--work` says how long; they are lowered once, and assembled by everybody from the same PTX. CPU time is that of this
process, of the tools and of the workers. What a worker loads once is no unit's, and is done before. Rounds are interleaved; medians count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "builders"))

from generate import HEAD, TAIL, Shape, kernel_ir

from scons_gpu.assemble.choose import choose
from scons_gpu.assemble.provider import Assembled, AssembleOptions, Linked, LinkInput
from scons_gpu.lower import llvm
from scons_gpu.lower.options import LowerOptions
from scons_gpu.toolchain.arch import parse
from scons_gpu.toolchain.tools import discover
from scons_gpu.workers.isolated import isolated
from scons_gpu.workers.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scons_gpu.assemble.provider import Provider
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Toolchain

REFERENCE = "ptxas"
PROVIDERS = (REFERENCE, "nvptxcompiler+nvlink", "nvjitlink")
OPTIONS = AssembleOptions()


@dataclass(frozen=True)
class Cost:
    """Seconds."""

    cpu: float
    wall: float


@dataclass
class Bench:
    """Units of one length, and what they took in each way: CPU and wall seconds, a round each."""

    tools: Toolchain
    target: Target
    folder: Path
    jobs: int
    pool: Pool
    units: Sequence[str]
    """PTX."""
    costs: dict[str, list[Cost]] = field(default_factory=dict)

    def provider(self, name: str, *, deferred: bool = False) -> Provider:
        """As a build has it: libraries in workers."""
        chosen = choose(
            self.tools,
            wanted=name,
            needs=("relocatable", "link"),
            facts=self.folder / "tools",
            targets=[self.target],
            always_defer=deferred,
        )
        if chosen.making is None:
            raise SystemExit("\n".join(chosen.log))
        return isolated(chosen.making, self.pool.run)

    def round(self) -> None:
        """Everything once, in an order that slow moments of the machine hit alike."""
        for name in PROVIDERS:
            provider = self.provider(name)
            self._warm(provider)
            made = self._timed(f"{name}: assemble", lambda provider=provider: self._assembled(provider))
            inputs = self._written(name, made)
            self._timed(f"{name}: link", lambda provider=provider, inputs=inputs: [self._linked(provider, inputs)])
        provider = self.provider("nvjitlink", deferred=True)
        inputs = self._written("deferred", self._assembled(provider))
        self._timed("nvjitlink, deferred: link", lambda: [self._linked(provider, inputs)])

    def _warm(self, provider: Provider) -> None:
        with ThreadPoolExecutor(self.jobs) as threads:
            list(threads.map(lambda unit: self._object(provider, unit), self.units[: 2 * self.jobs]))

    def _object(self, provider: Provider, unit: str) -> Assembled:
        return provider.compile_relocatable(unit, target=self.target, options=OPTIONS)

    def _assembled(self, provider: Provider) -> Sequence[Assembled]:
        with ThreadPoolExecutor(self.jobs) as threads:
            return list(threads.map(lambda unit: self._object(provider, unit), self.units))

    def _linked(self, provider: Provider, inputs: Sequence[LinkInput]) -> Linked:
        return provider.link(inputs, target=self.target, options=OPTIONS)

    def _written(self, name: str, made: Sequence[Assembled]) -> Sequence[LinkInput]:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        suffix = "dptx" if name == "deferred" else "cubin"
        inputs = [LinkInput(path=folder / f"{number}.{suffix}", label=str(number)) for number in range(len(made))]
        for each, one in zip(inputs, made, strict=True):
            each.path.write_bytes(one.data)
        return inputs

    def _timed(self, what: str, do: Callable[[], Sequence[Assembled | Linked]]) -> Sequence[Assembled]:
        wall, cpu = time.perf_counter(), time.process_time()
        made = do()
        spent = Cost(cpu=time.process_time() - cpu + sum(one.cpu for one in made), wall=time.perf_counter() - wall)
        self.costs.setdefault(what, []).append(spent)
        return [one for one in made if isinstance(one, Assembled)]

    def rows(self) -> Iterator[tuple[str, Cost, Cost]]:
        """Name, cost, and what it is held against."""
        of = {what: _median(costs) for what, costs in self.costs.items()}
        for name in PROVIDERS[1:]:
            yield f"{name}: assemble", of[f"{name}: assemble"], of[f"{REFERENCE}: assemble"]
        whole = _sum(of[f"{REFERENCE}: assemble"], of[f"{REFERENCE}: link"])
        for name in PROVIDERS[1:]:
            yield f"{name}: assemble and link", _sum(of[f"{name}: assemble"], of[f"{name}: link"]), whole
        deferred = of["nvjitlink, deferred: link"]
        yield "nvjitlink, deferred: link", deferred, whole
        yield "the same, after an edit of one unit", deferred, self._edit(of, REFERENCE)

    def _edit(self, of: dict[str, Cost], name: str) -> Cost:
        """One unit of all, and the link."""
        one, link = of[f"{name}: assemble"], of[f"{name}: link"]
        count = len(self.units)
        return Cost(cpu=one.cpu / count + link.cpu, wall=one.wall / count * self.jobs + link.wall)


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(cpu=statistics.median(cost.cpu for cost in costs), wall=statistics.median(cost.wall for cost in costs))


def _sum(one: Cost, other: Cost) -> Cost:
    return Cost(cpu=one.cpu + other.cpu, wall=one.wall + other.wall)


def main() -> int:
    """Measures, and prints the table."""
    arguments = _arguments()
    target = parse(arguments.arch)[0]
    report: dict[str, dict[str, list[float]]] = {}
    pool = Pool()
    with tempfile.TemporaryDirectory(prefix="scons-gpu-providers-") as name:
        folder = Path(name)
        tools = discover(environ=dict(os.environ), prefix=sys.prefix, facts=folder / "tools")
        used = [tool for one in PROVIDERS for part in one.split("+") if (tool := tools.tool(part))]
        print(" ".join(f"{tool.name} {tool.version}" for tool in used), f"· {target.name}")
        for work in arguments.work or [8, 300]:
            units = _units(arguments.units, work, target)
            bench = Bench(tools=tools, target=target, folder=folder, jobs=arguments.jobs, pool=pool, units=units)
            for _ in range(arguments.rounds):
                bench.round()
            rows = list(bench.rows())
            print(_table(bench, work, rows), flush=True)
            report[str(work)] = {what: [mine.cpu, mine.wall, theirs.cpu, theirs.wall] for what, mine, theirs in rows}
    pool.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=300)
    parser.add_argument("--work", type=int, action="append", help="length of a unit's body; 8 and 300 by default")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args()


def _units(count: int, work: int, target: Target) -> list[str]:
    """PTX of so many kernels, no two equal."""
    shape, options = Shape(kernels=count, work=work), LowerOptions(ptx=80)
    texts = (HEAD + kernel_ir(shape.name(0, number), shape.seed(0, number), work) + TAIL for number in range(count))
    return [llvm.lower(text, target=target, options=options).text for text in texts]


def _table(bench: Bench, work: int, rows: Sequence[tuple[str, Cost, Cost]]) -> str:
    each = statistics.median(cost.cpu for cost in bench.costs[f"{REFERENCE}: assemble"]) / len(bench.units)
    lines = [f"{len(bench.units)} units of {work} steps, {each * 1000:.0f} ms of CPU each with {REFERENCE}; -j{bench.jobs}"]
    lines.append(f"{'':40}{'CPU s':>8}{'ptxas':>8}{'ratio':>8}{'wall s':>10}{'ptxas':>8}{'ratio':>8}")
    lines += [f"{what:40}" + _cells(mine.cpu, theirs.cpu) + "  " + _cells(mine.wall, theirs.wall) for what, mine, theirs in rows]
    return "\n".join(lines)


def _cells(mine: float, theirs: float) -> str:
    return f"{mine:8.2f}{theirs:8.2f}{mine / theirs:8.2f}"


if __name__ == "__main__":
    sys.exit(main())
