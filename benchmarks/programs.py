#!/usr/bin/env python3
"""Builds programs as their Makefiles say, by this tool and by nvcc, and tells what each build costs: cold, after edits, with nothing to do.

    programs.py FOLDER --work DIR [--list FILE] [--limit N] [--arch sm_90] [--jobs N] [--timeout S] [--json FILE]
                [--nvcc-include DIR]...

HeCBench, for example: git archive HEAD src | tar x -C /tmp/hecbench, then FOLDER is /tmp/hecbench/src, and each of its *-cuda a program.
Of each Makefile `make -n` is asked for sources, flags and libraries. This tool gets a SConstruct with the same flags in GPU_NVCCFLAGS, nvcc
one call for each source that an edit concerns, and one for the link. Both get a copy of the folder, and the same edits: a statement
more in a kernel, then one in a function of the host's. CPU is user and system time of all processes of a build. What objects register is
held side by side. A row is kept in DIR/rows and not done again, so that a run can be stopped; the table is printed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "builders"
sys.path.insert(0, str(PACKAGE))

import makefiles  # noqa: E402 - it lies beside this file

from scons_gpu.host import registered  # noqa: E402 - the tree's own package, whatever else is installed
from scons_gpu.source.depfile import read_depfile  # noqa: E402 - behind the path that finds it
from scons_gpu.source.nvcc import environ  # noqa: E402 - behind the path that finds it
from scons_gpu.store import log  # noqa: E402 - behind the path that finds it
from scons_gpu.toolchain import frontends  # noqa: E402 - behind the path that finds it
from scons_gpu.toolchain.runtime import find  # noqa: E402 - behind the path that finds it
from scons_gpu.toolchain.tools import Tool, Toolchain, discover  # noqa: E402 - behind the path that finds it

if TYPE_CHECKING:
    from collections.abc import Iterable

FACTS = Path(tempfile.gettempdir(), "scons-gpu-programs-facts")
STAGES = ("cold", "kernel", "host", "nothing")
SOURCES = ("*.cu", "*.cuh", "*.h", "*.hpp", "*.cpp", "*.cc", "*.c", "*.inl")
EDIT_KERNEL = " if (threadIdx.x == 4095u) __trap(); "
EDIT_HOST = " static volatile int edited_by_hand = 1; edited_by_hand = 2; "
KERNEL = re.compile(r"__global__[^;{}()]*(?:__launch_bounds__\s*\([^;{}]*?\)\s*)?[^;{}()]*\([^;{}]*?\)\s*\{")
MAIN = re.compile(r"\bint\s+main\s*\([^;{}]*\)\s*\{")

SCONSTRUCT = """\
import sys
sys.path.insert(0, {package!r})
import scons_gpu
env = Environment(tools=["default", "gpu"], toolpath=[scons_gpu.TOOLPATH], GPU_STORE={store!r})
env.Append(LIBS={libs!r}, LIBPATH={libpath!r}, LINKFLAGS={linkflags!r})
objects = []
for name, source, flags in {cuda!r}:
    objects += env.Object(name, source, GPU_NVCCFLAGS=flags)
for name, source, flags in {host!r}:
    objects += env.Object(name, source, CCFLAGS=flags, CPPPATH=[{headers!r}])
env.Program({program!r}, objects)
"""


@dataclass(frozen=True)
class Done:
    """One process, or several as one."""

    status: int
    said: str
    cpu: float


@dataclass(frozen=True)
class Task:
    """One program, and where it is built."""

    folder: Path
    work: Path
    program: makefiles.Program
    arch: str
    jobs: int
    timeout: float
    tools: Toolchain
    nvcc_includes: tuple[str, ...]

    def copy(self, who: str) -> Path:
        """Where `who` builds it."""
        return self.work / who / self.folder.name


def main() -> int:
    """Runs, and prints the table."""
    arguments = _arguments()
    (arguments.work / "rows").mkdir(parents=True, exist_ok=True)
    facts = arguments.work / "facts" / "tools"
    tools = discover(environ=dict(os.environ), prefix=sys.prefix, facts=facts)
    rows = []
    for folder in _folders(arguments):
        kept = arguments.work / "rows" / f"{folder.name}.json"
        if not kept.exists():
            try:
                row = _row(folder, arguments, tools)
            except Exception:  # noqa: BLE001 - a fault of this script is a row like any other
                row = {"program": folder.name, "why": f"script: {traceback.format_exc(limit=-3)}"}
            kept.with_suffix(".new").write_text(json.dumps(row, indent=1))
            kept.with_suffix(".new").replace(kept)
        rows.append(json.loads(kept.read_text()))
        print(_line(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    print(_table(rows))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="where it builds, and keeps what was done")
    parser.add_argument("--list", type=Path, default=None, help="a file of folders' names; else all with a Makefile, smallest first")
    parser.add_argument("--limit", type=int, default=None, help="so many programs")
    parser.add_argument("--arch", default="sm_90", help="what both are given as -arch, in place of the Makefile's")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one build")
    parser.add_argument(
        "--nvcc-include", action="append", default=[], help="where nvcc finds Thrust and CUB, which no wheel of the tools brings"
    )
    parser.add_argument("--json", type=Path, default=None, help="all rows")
    arguments = parser.parse_args()
    arguments.folder, arguments.work = arguments.folder.resolve(), arguments.work.resolve()
    return arguments


def _folders(arguments: argparse.Namespace) -> list[Path]:
    if arguments.list:
        return [arguments.folder / name for name in arguments.list.read_text().split()][: arguments.limit]
    there = [path.parent for path in arguments.folder.glob("*/Makefile")]
    return sorted(there, key=lambda path: (_bytes(path), path.name))[: arguments.limit]


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for pattern in SOURCES for path in folder.glob(pattern))


def _row(folder: Path, arguments: argparse.Namespace, tools: Toolchain) -> dict[str, Any]:
    """One program, by both."""
    said = subprocess.run(["/usr/bin/env", "make", "-nB", "-C", str(folder)], capture_output=True, text=True, errors="replace", check=False)
    program = makefiles.read(said.stdout)
    row: dict[str, Any] = {"program": folder.name, "sources": len(program.sources)}
    if program.relocatable:
        return {**row, "why": "rdc: its device code is linked across sources"}
    if not any(source.cuda for source in program.sources):
        return {**row, "why": f"Makefile: no source that nvcc compiles is named (make said {said.stderr.strip()[:200]!r})"}
    task = Task(
        folder=folder,
        work=arguments.work / "programs" / folder.name,
        program=program,
        arch=arguments.arch,
        jobs=arguments.jobs,
        timeout=arguments.timeout,
        tools=tools,
        nvcc_includes=tuple(arguments.nvcc_include),
    )
    shutil.rmtree(task.work, ignore_errors=True)
    _copy(task)
    row["nvcc"] = _by_nvcc(task)
    row["ours"] = _by_scons(task, arguments.work / "facts")
    if row["ours"].get("linked") and row["nvcc"].get("linked"):
        row["registered"] = _registered(task)
    return row


def _copy(task: Task) -> None:
    """The folder for each, and what its files name in folders beside it."""
    for who in ("nvcc", "ours"):
        shutil.copytree(task.folder, task.copy(who), symlinks=False, ignore_dangling_symlinks=True)
        beside = {"include"}
        for path in (*task.copy(who).rglob("Makefile"), *(path for pattern in SOURCES for path in task.copy(who).rglob(pattern))):
            beside |= set(re.findall(r"\.\./([\w.-]+)/", path.read_text(errors="replace")))
        for name in beside:
            there, here = task.folder.parent / name, task.copy(who).parent / name
            if there.is_dir() and not here.exists():
                here.symlink_to(there)


def _run(argv: list[str], task: Task, *, who: str, env: dict[str, str]) -> Done:
    """One process to its end, with the CPU of all that it waited for."""
    output = task.work / f"{who}.said"
    with output.open("wb") as file:
        process = subprocess.Popen(argv, cwd=task.copy(who), env=env, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    limit = threading.Timer(task.timeout, process.kill)
    limit.start()
    _, status, usage = os.wait4(process.pid, 0)
    limit.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    said = output.read_text(errors="replace") + (f"\nerror: ended after {task.timeout} s\n" if process.returncode < 0 else "")
    return Done(process.returncode, said, usage.ru_utime + usage.ru_stime)


# ours


def _by_scons(task: Task, facts: Path) -> dict[str, Any]:
    """What each build of a SConstruct with the Makefile's flags takes."""
    store = task.copy("ours") / ".gpu-store"
    _learned(facts / "tools", store / "tools")  # what is known of tools, as in a tree that has built before
    (task.copy("ours") / "SConstruct").write_text(_sconstruct(task))
    row: dict[str, Any] = {"cpu": {}}
    for stage in STAGES:
        if stage in ("kernel", "host") and not _edit(task, "ours", stage):
            continue
        done = _run([sys.executable, "-m", "SCons", f"-j{task.jobs}"], task, who="ours", env=dict(os.environ))
        if done.status:
            return {**row, "why": _first_error(done.said), "stage": stage}
        row["cpu"][stage] = round(done.cpu, 2)
        row["linked"] = True
        if stage == "kernel":
            row["compiled"] = _compiled(store)
        if stage == "nothing":
            row["idle"] = "nothing to do" in done.said
        if stage == "cold":
            _learned(store / "tools", facts / "tools")
    return row


def _learned(there: Path, here: Path) -> None:
    """Takes over facts of tools."""
    for path in there.glob("??/*.json"):
        (here / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, here / path.parent.name / path.name)


def _sconstruct(task: Task) -> str:
    cuda, host = [], []
    for number, source in enumerate(task.program.sources):
        name = _object(number, source)
        if source.cuda:
            cuda.append((name, source.path, shlex.join((*source.flags, *makefiles.arch_flags(task.arch)))))
        else:
            host.append((name, source.path, makefiles.host_flags(source.flags)))
    libraries = [word.removeprefix("-l") for word in task.program.libraries if word.startswith("-l")]
    return SCONSTRUCT.format(
        package=str(PACKAGE),
        store="#.gpu-store",
        libs=libraries,
        libpath=[word.removeprefix("-L") for word in task.program.libraries if word.startswith("-L") and len(word) > 2],
        linkflags=["-fopenmp"] if task.program.openmp else [],
        cuda=cuda,
        host=host,
        headers=f"{task.tools.headers}/include",
        program=f"made/{task.program.name}",
    )


def _object(number: int, source: makefiles.Source) -> str:
    return f"made/{number}_{Path(source.path).stem}.o"


def _compiled(store: Path) -> int:
    """Units that the last build lowered."""
    records = list(log.read(store / "log.jsonl"))
    last = [record["build"] for record in records if record["type"] == "end"][-1]
    return sum(record["type"] == "action" and record["stage"] == "lower" and record["build"] == last for record in records)


def _first_error(said: str) -> str:
    begins = r"error: |scons: \*\*\* |Traceback|.*: error: |.*undefined reference|.*cannot find "
    found = re.search(rf"^(?:{begins}).*(?:\n[ \t].*){{0,6}}", said, re.MULTILINE)
    return found[0] if found else said[-400:]


# nvcc


def _by_nvcc(task: Task) -> dict[str, Any]:
    """What make-like builds by nvcc take: a call for each source that is concerned, and one for the link."""
    (task.copy("nvcc") / "made").mkdir(exist_ok=True)
    row: dict[str, Any] = {"cpu": {}}
    for stage in STAGES[:-1]:
        edited = _edit(task, "nvcc", stage) if stage != "cold" else None
        if stage != "cold" and edited is None:
            continue
        done = _make(task, edited)
        if done.status:
            return {**row, "why": _first_error(done.said), "stage": stage}
        row["cpu"][stage] = round(done.cpu, 2)
        row["linked"] = True
    return row


def _make(task: Task, edited: Path | None) -> Done:
    """Compiles all, or what read the edited file, and links."""
    cpu = 0.0
    for number, source in enumerate(task.program.sources):
        if edited is None or edited.resolve() in _read_by(task, number, source):
            done = _call(task, _compilation(task, number, source))
            cpu += done.cpu
            if done.status:
                return done
    objects = [_object(number, source) for number, source in enumerate(task.program.sources)]
    openmp = ["-Xcompiler", "-fopenmp"] if task.program.openmp else []
    command = [*makefiles.arch_flags(task.arch), *objects, "-o", f"made/{task.program.name}", *openmp, *task.program.libraries]
    done = _call(task, [_nvcc(task.tools).path, *command, *_runtime(task.tools)])
    return Done(done.status, done.said, cpu + done.cpu)


def _compilation(task: Task, number: int, source: makefiles.Source) -> list[str]:
    """As the Makefile has it; `-MD` besides tells which headers an edit concerns."""
    path = _object(number, source)
    written = ("-c", source.path, "-o", path, "-MD", "-MF", f"{path}.d")
    if source.compiler != "nvcc":
        return [source.compiler, *source.flags, *written]
    named = [*source.flags, *makefiles.arch_flags(task.arch), *(f"-I{folder}" for folder in task.nvcc_includes)]
    return [_nvcc(task.tools).path, *(("-x", "cu") if source.cuda else ()), *named, *written]


def _nvcc(tools: Toolchain) -> Tool:
    """Raises ToolMissingError."""
    return frontends.choose(tools, wanted="nvcc", environ=os.environ, facts=FACTS).tool


def _runtime(tools: Toolchain) -> list[str]:
    """Where nvcc's own runtime lies, if not where nvcc itself looks: wheels have it in `lib`."""
    library = find(str(Path(_nvcc(tools).path).resolve().parent.parent))
    return [f"-L{library.parent}"] if library else []


def _call(task: Task, argv: list[str]) -> Done:
    return _run(argv, task, who="nvcc", env=environ(_nvcc(task.tools)))


def _read_by(task: Task, number: int, source: makefiles.Source) -> set[Path]:
    top = task.copy("nvcc")
    depfile = top / f"{_object(number, source)}.d"
    return {(top / path).resolve() for path in read_depfile(depfile.read_text(errors="surrogateescape"), top=str(top))} | {
        (top / source.path).resolve()
    }


# edits and registrations


def _edit(task: Task, who: str, stage: str) -> Path | None:
    """Puts one statement more into a kernel, or into `main`; None where there is none to be found. The file that was edited."""
    pattern, text = (KERNEL, EDIT_KERNEL) if stage == "kernel" else (MAIN, EDIT_HOST)
    for path in _own(task, who):
        content = path.read_text(errors="surrogateescape")
        if match := _found(pattern, content):
            path.write_text(content[: match.end()] + text + content[match.end() :], errors="surrogateescape")
            return path
    return None


def _own(task: Task, who: str) -> list[Path]:
    """What may be edited, sources first: files that were copied. What a build put there may be links to what is not ours."""
    top = task.copy(who)
    copied = sorted(path.relative_to(task.folder) for kind in SOURCES for path in task.folder.rglob(kind))
    named = [Path(source.path) for source in task.program.sources]
    paths = [top / path for path in dict.fromkeys((*named, *copied))]
    return [path for path in paths if path.is_file() and not path.is_symlink() and path.resolve().is_relative_to(top.resolve())]


def _found(pattern: re.Pattern[str], content: str) -> re.Match[str] | None:
    """The first place that is not in a comment of its own line."""
    matches = (match for match in pattern.finditer(content))
    return next((match for match in matches if "//" not in content[content.rfind("\n", 0, match.start()) : match.start()]), None)


def _registered(task: Task) -> dict[str, Any]:
    """What objects of both register: counts, and the names that only one has.

    Variables that are private to a source nvcc registers all; clang, those that host code names: they are counted apart.
    """
    counts: Counter[str] = Counter()
    unlike: list[str] = []
    for number, source in enumerate(task.program.sources):
        if source.cuda:
            ours, theirs = (_names(task.copy(who) / _object(number, source)) for who in ("ours", "nvcc"))
            counts += Counter({"kernels": ours.kernels.total(), "variables": ours.variables.total()})
            unlike += [f"ours {name}" for name in (*(ours.kernels - theirs.kernels), *(ours.variables - theirs.variables))]
            unlike += [f"nvcc {name}" for name in theirs.kernels - ours.kernels]
            only = [name for name in theirs.variables - ours.variables if name not in theirs.private]
            unlike += [f"nvcc {name}" for name in only]
            counts["private"] += (theirs.variables - ours.variables).total() - len(only)
    return {**counts, "unlike": sorted(unlike)}


@dataclass(frozen=True)
class Names:
    """What one object registers, as often as it does."""

    kernels: Counter[str]
    variables: Counter[str]
    private: set[str]
    """Those of the variables that no other source sees."""


_PRIVATE = re.compile(r"_GLOBAL__N_[_\w]*?_[0-9a-f]{8}(?:_\d+)?|\d+_INTERNAL_\w+?_[0-9a-f]{8}(?:_\d+)?")


def _names(path: Path) -> Names:
    data = path.read_bytes()
    found = registered.read(data, path=path.name)
    kernels, variables = (Counter(map(_public, names)) for names in (found.kernels, found.variables))
    hidden = {name for name in found.variables if "_INTERNAL_" in name or f"_ZL{len(name)}{name}\0".encode() in data}
    return Names(kernels=kernels, variables=variables, private=set(map(_public, hidden)))


def _public(name: str) -> str:
    """A name without what is made of its file's path, and variables as nvcc calls private ones."""
    private = re.fullmatch(r"_ZL(\d+)(\w+)", name)
    return private[2][: int(private[1])] if private and len(private[2]) == int(private[1]) else _PRIVATE.sub("_GLOBAL__N_1", name)


# the table


def _line(row: dict[str, Any]) -> str:
    ours, nvcc = row.get("ours", {}), row.get("nvcc", {})
    if row.get("why") or not (ours.get("linked") and nvcc.get("linked")):
        why = row.get("why") or f"ours: {ours.get('why', 'links')} | nvcc: {nvcc.get('why', 'links')}"
        return f"{row['program']:30} {' '.join(why.split())[:300]}"
    cells = [f"{stage} {ours['cpu'].get(stage, '-')}/{nvcc['cpu'].get(stage, '-')}" for stage in STAGES]
    failed = f"  then {ours['why'][:200]!r}" if "why" in ours else ""
    return f"{row['program']:30} {'  '.join(cells)}  unlike {row.get('registered', {}).get('unlike', [])[:4]}{failed}"


def _table(rows: list[dict[str, Any]]) -> str:
    both = [row for row in rows if row.get("ours", {}).get("linked") and row.get("nvcc", {}).get("linked")]
    lines = [f"{len(rows)} programs: {sum(bool(row.get('ours', {}).get('linked')) for row in rows)} link by this tool, "]
    lines[0] += f"{sum(bool(row.get('nvcc', {}).get('linked')) for row in rows)} by nvcc, {len(both)} by both"
    for stage in STAGES[:-1]:
        pairs = [
            (row["ours"]["cpu"][stage], row["nvcc"]["cpu"][stage])
            for row in both
            if stage in row["ours"]["cpu"] and stage in row["nvcc"]["cpu"]
        ]
        lines.append(_ratios(stage, pairs))
    idle = [row["ours"]["cpu"]["nothing"] for row in both if "nothing" in row["ours"]["cpu"]]
    if idle:
        lines.append(f"nothing: {median(idle):.2f} s of CPU in the middle, at most {max(idle):.2f}")
    counted = Counter[str]()
    for row in both:
        counted += Counter({name: row["registered"].get(name, 0) for name in ("kernels", "variables", "private")})
    lines.append(
        f"registered: {counted['kernels']} kernels, {counted['variables']} variables, by nvcc alone {counted['private']} private ones"
    )
    lines.append(f"unlike nvcc's: {_unlike(both)}")
    return "\n".join(lines)


def _unlike(rows: Iterable[dict[str, Any]]) -> str:
    return ", ".join(row["program"] for row in rows if row["registered"]["unlike"]) or "none"


def _ratios(stage: str, pairs: list[tuple[float, float]]) -> str:
    if not pairs:
        return f"{stage}: none"
    ratios = sorted(ours / theirs for ours, theirs in pairs)
    sums = [sum(side) for side in zip(*pairs, strict=True)]
    return (
        f"{stage}: {len(pairs)} programs, ours {sums[0]:.1f} s, nvcc {sums[1]:.1f} s, ratio {sums[0] / sums[1]:.2f}; "
        f"middle {median(ratios):.2f}, from {ratios[0]:.2f} to {ratios[-1]:.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
