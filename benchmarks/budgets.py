#!/usr/bin/env python3
"""Measures what the design promises, as ratios within one run.

    budgets.py [SECTION...] [--work DIR] [--json FILE]

Sections: split, cold, edit, null, unit, second; all of them without a name. A ratio compares CPU time (user and system, children
included) unless its row says wall: other work on the machine then changes both sides and not the ratio. Where a side is quick it is
measured several times and the median counts. The reference of `cold` is the module in one piece, by the same LLVM and the same
assembler in one process (`inspect/undivided.py`, then ptxas once). Nothing is asserted: a row says whether it keeps its budget.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from generate import Shape, sconstruct, write
from rich.console import Console
from rich.table import Table
from split_rate import CHILD, generated

import scons_gpu
from scons_gpu.store import log
from scons_gpu.toolchain.tools import Toolchain, discover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BUILDERS = str(Path(scons_gpu.__file__).parents[1])
ARCH = "sm_90"
# As a user's: the tools may keep what they compiled of themselves.
ENVIRON = {**{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}, "PYTHONPATH": BUILDERS}

UNDIVIDED = """
import json, subprocess, sys, tempfile
from pathlib import Path
from scons_gpu.inspect import undivided
request = json.loads(sys.argv[1])
ptxas, _ = request.pop("ptxas"), request.pop("nvlink")
with tempfile.TemporaryDirectory() as folder:
    ptx = undivided._lower(undivided.Request(**{**request, "sources": tuple(request["sources"])}))
    Path(folder, "m.ptx").write_text(ptx)
    subprocess.run([ptxas, "-arch=" + request["cpu"], "m.ptx", "-o", "m.cubin"], cwd=folder, check=True)
"""
"""One lowering of a whole module and one ptxas, in one process."""

PLAIN = """
import json, subprocess, sys, tempfile
from pathlib import Path
from scons_gpu.lower import llvm
from scons_gpu.lower.options import LowerOptions
from scons_gpu.split import split
from scons_gpu.toolchain.arch import parse
request = json.loads(sys.argv[1])
target, slices = parse(request["cpu"])[0], []
def put(text):
    slices.append(text)
    return str(len(slices))
source, = request["sources"]
split(Path(source).read_text(), source=source, target=target, form="apart", put=put)
with tempfile.TemporaryDirectory() as folder:
    arch, names = "-arch=" + request["cpu"], [str(number) for number in range(len(slices))]
    for name, text in zip(names, slices):
        ptx = llvm.lower(text, target=target, options=LowerOptions(ptx=request["ptx"]), libdevice=request["libdevice"]).text
        Path(folder, name + ".ptx").write_text(ptx)
        subprocess.run([request["ptxas"], "-c", arch, name + ".ptx", "-o", name + ".cubin"], cwd=folder, check=True)
    subprocess.run([request["nvlink"], arch, "-o", "m.cubin", *(name + ".cubin" for name in names)], cwd=folder, check=True)
"""
"""The least that a divided build takes: split, a lowering and a ptxas for each unit, one link, in one process and without a graph, a store
or records. What it takes on a machine is the machine's and the tools'; what a build takes besides is ours."""

COUNTED = """
import sys, time
from pathlib import Path
from SCons.Script import main
from scons_gpu.scons import images, packing, units
from scons_gpu.scons.steps import Outcome
units.LowerJob.work = units.AssembleJob.work = images.ImageJob.work = lambda job, node: Outcome()
packing.PackJob.work = packing.ManifestJob.work = lambda job, node: Outcome()
sys.argv = ["scons", *sys.argv[1:]]
main()
"""
"""SCons with this tool, where making a unit takes no time: what is left is what a unit costs as a node."""

SPLIT_SHAPES = {"300 kernels": (300, 400, 5), "3,000 small kernels": (3000, 20, 3), "100 kernels, 40 helpers": (100, 200, 40)}
UNITS = {"0.3 s": (0.3, 48), "0.1 s": (0.1, 100), "15 ms": (0.015, 300)}
"""Name → CPU seconds of a unit in the undivided build, and how many there are in the module."""
CPU_BUDGET = {"0.3 s": 1.05, "0.1 s": 1.25, "15 ms": 1.75}
WALL_BUDGET = {"0.3 s": 0.55, "0.1 s": 0.65, "15 ms": 1.0}
SYSTEM_HEADERS = 180
"""About how many of clang's, the C++ library's and CUDA's headers every .cu reads."""


@dataclass(frozen=True)
class Row:
    """One promise."""

    what: str
    measured: float
    budget: float
    unit: str = "x"
    note: str = ""
    least: bool = False
    """Whether the budget is the least and not the most."""

    @property
    def ok(self) -> bool:
        """Whether it is kept."""
        return self.measured >= self.budget if self.least else self.measured <= self.budget


@dataclass(frozen=True)
class Cost:
    """What a command took, in seconds."""

    cpu: float
    wall: float
    own: float = 0.0
    """Of `cpu`, what the process itself took, without its children."""


def cost(argv: Sequence[str], *, cwd: Path) -> Cost:
    """Runs a command, which must succeed."""
    with tempfile.TemporaryFile() as said:
        begun = time.perf_counter()
        process = subprocess.Popen(argv, cwd=cwd, env=ENVIRON, stdout=said, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            sys.exit(f"{' '.join(argv)} in {cwd} failed:\n{said.read().decode(errors='replace')}")
    return Cost(cpu=usage.ru_utime + usage.ru_stime, wall=wall)


def scons(folder: Path, *args: str) -> Cost:
    """A build."""
    return cost([sys.executable, "-m", "SCons", "-s", *args], cwd=folder)


def project(folder: Path, shape: Shape, *, store: str = "#.gpu-store") -> Path:
    """A project of that shape, in a folder of its own."""
    write(folder, shape)
    (folder / "SConstruct").write_text(sconstruct(shape, toolpath=scons_gpu.TOOLPATH, arch=ARCH, store=store), encoding="utf-8")
    return folder


def clean(folder: Path) -> None:
    """Back to the sources. What was learned of the tools stays: only the very first build on a machine asks them."""
    shutil.rmtree(folder / "build", ignore_errors=True)
    for kind in ("slice", "ptx", "object", "builds"):
        shutil.rmtree(folder / ".gpu-store" / kind, ignore_errors=True)
    for name in (".sconsign.dblite", ".gpu-store/times.json"):
        (folder / name).unlink(missing_ok=True)


# sections


def split(work: Path, tools: Toolchain) -> Iterator[Row]:  # noqa: ARG001 - a section's signature
    """How fast printed IR becomes slices and an index; how much memory that takes."""
    memory = 0.0
    for name, shape in SPLIT_SHAPES.items():
        path = work / "split.ll"
        path.write_text(generated(*shape), encoding="utf-8")
        runs = [_split_once(path) for _ in range(3)]
        memory = max(memory, *(top / printed for printed, _, _, top, *_ in runs))
        rate = statistics.median(printed / total / 1e6 for printed, total, *_ in runs)
        alone = statistics.median(total / alone for _, total, alone, *_ in runs)
        yield Row(f"split: {name}", rate, 10.0, "MB/s", f"{alone:.1f} times LLVM's parse, verify and print", least=True)
    yield Row("split: memory against the text", memory, 12.0, "x")


def _split_once(path: Path) -> list[float]:
    done = subprocess.run([sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, check=True, env=ENVIRON)
    found: list[float] = json.loads(done.stdout)
    return found


def cold(work: Path, tools: Toolchain) -> Iterator[Row]:
    """A build from nothing against the module in one piece."""
    second_of_work = lines_a_second(work, tools)
    for name, (seconds, kernels) in UNITS.items():
        folder = project(work / f"cold-{kernels}", Shape(kernels=kernels, work=round(seconds * second_of_work)))
        scons(folder)
        runs = []
        for _ in range(3):
            reference, least = (in_one_process(program, folder / "m0.ll", tools) for program in (UNDIVIDED, PLAIN))
            clean(folder)
            one = scons(folder, "-j1")
            clean(folder)
            runs.append((reference, least, one, scons(folder, "-j2")))
        unit = f"units of {1000 * statistics.median(reference.cpu for reference, *_ in runs) / kernels:.0f} ms undivided"
        plain = statistics.median(least.cpu / reference.cpu for reference, least, _, _ in runs)
        at1 = statistics.median(one.cpu / reference.cpu for reference, _, one, _ in runs)
        at2 = statistics.median(two.cpu / reference.cpu for reference, _, _, two in runs)
        wall1 = statistics.median(one.wall / reference.wall for reference, _, one, _ in runs)
        wall2 = statistics.median(two.wall / reference.wall for reference, _, _, two in runs)
        note = f"{unit}; {plain:.2f}x without SCons, store and records; wall {wall1:.2f}x"
        yield Row(f"cold, {name}: CPU at -j1", at1, CPU_BUDGET[name], note=note)
        yield Row(f"cold, {name}: CPU at -j2", at2, CPU_BUDGET[name])
        yield Row(f"cold, {name}: wall at -j2", wall2, WALL_BUDGET[name], note="wall: only an idle machine of 2 cores or more can show it")


def lines_a_second(work: Path, tools: Toolchain) -> float:
    """How long a kernel takes here depends on the machine: lines of a body for a CPU second."""
    lines, kernels = 300, 40
    write(work / "lines", Shape(kernels=kernels, work=lines))
    write(work / "none", Shape(kernels=1, work=1))
    spent = [
        in_one_process(UNDIVIDED, work / "lines" / "m0.ll", tools).cpu - in_one_process(UNDIVIDED, work / "none" / "m0.ll", tools).cpu
        for _ in range(3)
    ]
    return lines * kernels / statistics.median(spent)


def in_one_process(program: str, source: Path, tools: Toolchain) -> Cost:
    """What `UNDIVIDED` or `PLAIN` takes for a source."""
    assert tools.ptxas is not None  # noqa: S101 - without it no build went through
    assert tools.nvlink is not None  # noqa: S101 - the same
    libdevice = tools.libdevice.path if tools.libdevice else ""
    request = {
        "sources": [str(source)],
        "cpu": ARCH,
        "ptx": 88,
        "libdevice": libdevice,
        "ptxas": tools.ptxas.path,
        "nvlink": tools.nvlink.path,
    }
    return cost([sys.executable, "-c", program, json.dumps(request)], cwd=source.parent)


def edit(work: Path, tools: Toolchain) -> Iterator[Row]:  # noqa: ARG001 - a section's signature
    """One kernel of 300 edited, in IR and in CUDA: what the build takes besides front end and split."""
    for language in ("ll", "cu"):
        shape = Shape(kernels=300, work=40, language=language)
        folder = project(work / f"edit-{language}", shape)
        scons(folder, "-j2")
        spent = []
        for turn in range(5):
            write(folder, shape, edit=(0, turn))
            whole = scons(folder)
            stages = last_stages(folder)
            spent.append((whole.cpu - stages["source"] - stages["split"], whole.wall))
        rest = statistics.median(cpu for cpu, _ in spent)
        wall = statistics.median(wall for _, wall in spent)
        yield Row(f"edit one .{language} kernel of 300", rest, 0.35, "s", f"CPU besides front end and split; wall of all {wall:.2f} s")


def last_stages(folder: Path) -> dict[str, float]:
    """Stage → CPU seconds in the last build."""
    records = list(log.read(folder / ".gpu-store" / "log.jsonl"))
    spent = dict.fromkeys(("source", "split"), 0.0)
    for record in records:
        if record["type"] == "action" and record["build"] == records[-1]["build"]:
            spent[record["stage"]] = spent.get(record["stage"], 0.0) + record["cpu"]
    return spent


def null(work: Path, tools: Toolchain) -> Iterator[Row]:  # noqa: ARG001 - a section's signature
    """Nothing to do, against SCons over an empty SConstruct."""
    # Kernels that all modules share build quickly, and cost a build with nothing to do what others do.
    lls = project(work / "null-ll", Shape(modules=100, kernels=100, same=100, work=4))
    cus = project(work / "null-cu", Shape(modules=100, kernels=1, same=1, language="cu", headers=300 - SYSTEM_HEADERS))
    empty = work / "empty"
    empty.mkdir(exist_ok=True)
    (empty / "SConstruct").write_text("")
    for folder in (lls, cus):
        scons(folder, "-j2")
    runs = [(scons(empty), scons(lls), scons(cus)) for _ in range(9)]
    bare = f"empty: {1000 * statistics.median(one.cpu for one, _, _ in runs):.0f} ms of CPU"
    of = {"CPU": lambda taken: taken.cpu, "wall": lambda taken: taken.wall}
    for kind, get in of.items():
        note = bare if kind == "CPU" else ""
        yield Row(f"nothing to do, 10,000 kernels: {kind}", statistics.median(get(two) / get(one) for one, two, _ in runs), 3.0, note=note)
        yield Row(f"nothing to do, 100 .cu, 300 headers: {kind}", statistics.median(get(two) / get(one) for one, _, two in runs), 5.0)


def unit(work: Path, tools: Toolchain) -> Iterator[Row]:  # noqa: ARG001 - a section's signature
    """What a unit costs as a node, where making it takes no time."""
    few, many = (project(work / f"unit-{kernels}", Shape(kernels=kernels, work=1)) for kernels in (50, 1050))
    runs = []
    for _ in range(5):
        taken = []
        for folder in (few, many):
            clean(folder)
            scons(folder, "build/net/m0/sm_90.plan.json")
            taken.append(cost([sys.executable, "-c", COUNTED, "-s", "-j1"], cwd=folder))
        runs.append((taken[1].cpu - taken[0].cpu) / 1000)
    note = "two nodes each, lowered and assembled; with plan, store look-ups and log"
    yield Row("SCons per unit built", 1000 * statistics.median(runs), 1.0, "ms", note)


def second(work: Path, tools: Toolchain) -> Iterator[Row]:
    """A second module that holds the kernels of the first: what it adds to a build of one."""
    seconds, kernels = UNITS["0.1 s"]
    length = round(seconds * lines_a_second(work, tools))
    bare = project(work / "second-0", Shape(kernels=0))
    one = project(work / "second-1", Shape(kernels=kernels, work=length, same=kernels))
    two = project(work / "second-2", Shape(modules=2, kernels=kernels, work=length, same=kernels))
    runs = []
    for folder in (bare, one, two):
        scons(folder)
    for _ in range(3):
        for folder in (bare, one, two):
            clean(folder)
        nothing, first, both = scons(bare), scons(one), scons(two)
        runs.append((both.cpu - first.cpu) / (first.cpu - nothing.cpu))
    yield Row("a second module of the same kernels", 100 * statistics.median(runs), 5.0, "%", f"{kernels} kernels of about 0.1 s")


SECTIONS: dict[str, Callable[[Path, Toolchain], Iterator[Row]]] = {
    "split": split,
    "cold": cold,
    "edit": edit,
    "null": null,
    "unit": unit,
    "second": second,
}


def machine(tools: Toolchain) -> dict[str, str]:
    """What was measured on, and with."""
    names = ("ptxas", "nvlink", "fatbinary", "clang")
    found = {name: getattr(tools, name).version for name in names if getattr(tools, name)}
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), ""
    )
    from SCons import __version__ as scons_version  # noqa: PLC0415 - not at the top, where it would look like a measured import

    python = platform.python_version()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": f"{model}, {os.cpu_count()} cores",
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": python,
        "scons": scons_version,
        "llvm": tools.llvm.partition(" ")[0],
        **found,
    }


def show(rows: Sequence[Row], facts: dict[str, str]) -> None:
    """The table."""
    table = Table(title="  ".join(f"{name} {value}" for name, value in facts.items()), title_justify="left")
    for column, justify in (("what", "left"), ("measured", "right"), ("budget", "right"), ("ok", "left"), ("note", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for row in rows:
        bound = f"{'≥' if row.least else '≤'} {row.budget:g} {row.unit}"
        table.add_row(row.what, f"{row.measured:.2f} {row.unit}", bound, "yes" if row.ok else "NO", row.note)
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def main() -> int:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--work", type=Path, help="folder to build in; kept (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="file for the rows")
    options = parser.parse_args()
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}: there are {', '.join(SECTIONS)}")
    with tempfile.TemporaryDirectory(prefix="scons-gpu-budgets-") as temporary:
        work = (options.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        tools = discover(environ=ENVIRON, prefix=sys.prefix, facts=work / "facts")
        facts, rows = machine(tools), []
        for name in options.sections or SECTIONS:
            for row in SECTIONS[name](work, tools):
                rows.append(row)
                print(f"{row.what}: {row.measured:.2f} {row.unit}", file=sys.stderr, flush=True)
    show(rows, facts)
    if options.json:
        data = {"machine": facts, "rows": [{**asdict(row), "ok": row.ok} for row in rows]}
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
