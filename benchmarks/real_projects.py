#!/usr/bin/env python3
"""Builds each .cu file below a folder as a module of its own, in every mode of modes.py, and compares some with the undivided build.

    real_projects.py FOLDER --work DIR [--list FILE] [--limit N] [--seconds S] [--batch N] [--jobs N] [--arch sm_90] [--json FILE]
                     [--mode M]... [--compare M]...

HeCBench, for example: git archive HEAD src | tar x -C /tmp/hecbench, then FOLDER is /tmp/hecbench/src. A file that fails is a row with its
message. What was done is kept in DIR/rows and not done again, so that a run can be stopped at any time; a table is printed at the end.
Every mode but the image takes the IR that the front end wrote for the image's: the front end runs once a file, and equal units are
lowered once.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "builders"
sys.path.insert(0, str(PACKAGE))

import modes  # noqa: E402 - it needs the package

from scons_gpu.errors import GpuError  # noqa: E402 - the tree's own package, whatever else is installed
from scons_gpu.inspect import compare  # noqa: E402 - behind the path that finds it
from scons_gpu.inspect.reference import Reference, Tools  # noqa: E402 - behind the path that finds it
from scons_gpu.store import log  # noqa: E402 - behind the path that finds it
from scons_gpu.toolchain.tools import Toolchain, discover  # noqa: E402 - behind the path that finds it

COMPARED = ("image", "bundle", "whole", "uncloned")
KERNEL = re.compile(r"\b__global__\b")

SCONSTRUCT = """\
import sys
sys.path.insert(0, {package!r})
import scons_gpu
env = Environment(tools=["gpu"], toolpath=[scons_gpu.TOOLPATH], GPU_ARCHS=[{arch!r}], GPU_STORE={store!r})
env["GPU_CLANGFLAGS"] = {flags!r}
for name, source, folders in {files!r}:
    env.GpuProgram(name + "/image", env.GpuModule(name + "_image", [source], CPPPATH=folders))
    written = f"{{name}}/image/{{name}}_image/{{source.rpartition('/')[2]}}.{arch}.ll"
    for mode, overrides in {modes!r}.items():
        env.GpuProgram(f"{{name}}/{{mode}}", env.GpuModule(f"{{name}}_{{mode}}", [written], **overrides))
"""


@dataclass(frozen=True)
class Work:
    """One source and where it is built."""

    source: Path
    name: str
    """Of its module and of its folder: made from the path, so that a message tells which file it is about."""
    shown: str


def main() -> int:
    """Runs, and prints the table."""
    arguments = _arguments()
    rows = arguments.work / "rows"
    rows.mkdir(parents=True, exist_ok=True)
    found = discover(environ=dict(os.environ), prefix=sys.prefix, facts=arguments.work / "store" / "tools")
    works = [_work(source, arguments.folder) for source in _sources(arguments)]
    begun = time.monotonic()
    todo = [work for work in works if not (rows / f"{work.name}.json").exists()]
    with ThreadPoolExecutor(arguments.jobs) as pool:  # one batch is built while those before are compared
        for number in range(0, len(todo), arguments.batch):
            if time.monotonic() - begun > arguments.seconds:
                break
            _batch(todo[number : number + arguments.batch], Tools.of(found), arguments, pool=pool)
    done = [json.loads(path.read_text()) for work in works if (path := rows / f"{work.name}.json").exists()]
    report = {"tools": _tools(found), "arch": arguments.arch, "totals": _totals(done), "rows": done}
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1, sort_keys=True))
    print(_table(report))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="where it builds, and keeps what was done")
    parser.add_argument(
        "--list", type=Path, default=None, help="a file of paths below FOLDER, in the order to take; else all that have a kernel"
    )
    parser.add_argument("--limit", type=int, default=None, help="so many files")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further batch after so long")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for the build of one batch")
    parser.add_argument("--batch", type=int, default=10, help="files to one SConstruct")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--mode", action="append", choices=modes.MODES, help="one mode besides image; else all")
    parser.add_argument("--compare", action="append", choices=COMPARED, help="one mode that is compared; else all that can be")
    parser.add_argument("--uncompared", action="store_true", help="compare nothing")
    parser.add_argument("--flag", action="append", default=[], help="one of GPU_CLANGFLAGS")
    parser.add_argument("--json", type=Path, default=None, help="the whole report")
    arguments = parser.parse_args()
    arguments.folder, arguments.work = arguments.folder.resolve(), arguments.work.resolve()
    arguments.modes = {"image": {}, **{mode: modes.MODES[mode] for mode in arguments.mode or modes.MODES}}
    wanted = [] if arguments.uncompared else arguments.compare or COMPARED
    arguments.compared = [mode for mode in arguments.modes if mode in wanted]
    return arguments


def _sources(arguments: argparse.Namespace) -> list[Path]:
    if arguments.list:
        return [arguments.folder / line for line in arguments.list.read_text().split("\n") if line][: arguments.limit]
    there = sorted(path for path in arguments.folder.rglob("*.cu") if path.is_file())
    return [path for path in there if KERNEL.search(path.read_text(errors="replace"))][: arguments.limit]


def _work(source: Path, folder: Path) -> Work:
    shown = str(source.relative_to(folder))
    return Work(source=source, name=f"f{hashlib.sha256(shown.encode()).hexdigest()[:10]}", shown=shown)


def _batch(works: list[Work], tools: Tools, arguments: argparse.Namespace, *, pool: ThreadPoolExecutor) -> None:
    """Some files built by one SConstruct; what compares each, counts it and keeps its row is put into the pool."""
    folder = arguments.work / "batches" / works[0].name
    folder.mkdir(parents=True, exist_ok=True)
    files = [(work.name, str(work.source), _folders(work.source)) for work in works]
    further = {mode: overrides for mode, overrides in arguments.modes.items() if mode != "image"}
    text = SCONSTRUCT.format(
        package=str(PACKAGE), arch=arguments.arch, store=str(arguments.work / "store"), flags=arguments.flag, files=files, modes=further
    )
    (folder / "SConstruct").write_text(text)
    begun = time.monotonic()
    said = _build(folder, arguments)
    seconds = round((time.monotonic() - begun) / len(works), 2)

    def row(work: Work) -> None:
        try:
            made = {"build_seconds": seconds, **_row(work, folder, said, tools, arguments)}
        except Exception:  # noqa: BLE001 - a fault of ours is a row like any other
            made = {"build_seconds": seconds, "source": work.shown, "failed": traceback.format_exc(limit=-3), "modes": {}}
        kept = arguments.work / "rows" / f"{work.name}.json"
        kept.with_suffix(".new").write_text(json.dumps(made, indent=1))
        kept.with_suffix(".new").replace(kept)  # whole, whenever the run is stopped
        print(_line(made), flush=True)

    for work in works:
        pool.submit(row, work)


def _folders(source: Path) -> list[str]:
    """Where the file's own build would look for headers, by the custom of such collections."""
    above = (source.parent, source.parent.parent, source.parent / "include", *(up / "include" for up in source.parents[1:3]))
    return [str(path) for path in above if path.is_dir()]


def _build(folder: Path, arguments: argparse.Namespace) -> str:
    command = [sys.executable, "-m", "SCons", "-k", f"-j{arguments.jobs}"]
    environ = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environ, timeout=arguments.timeout, capture_output=True, text=True, errors="replace", check=False
        )
    except subprocess.TimeoutExpired:
        return f"error: took longer than {arguments.timeout:.0f} s"
    said = done.stdout + done.stderr
    (folder / "said").write_text(said)
    if done.returncode < 0 or "scons: Build interrupted." in said:  # what is not built then is no failure of the file
        sys.exit("the build was stopped; run this again to go on from here")
    return said


def _row(work: Work, folder: Path, said: str, tools: Tools, arguments: argparse.Namespace) -> dict[str, Any]:
    """One file: counted, compared."""
    row: dict[str, Any] = {"source": work.shown, "modes": {}}
    messages = _messages(work, said)
    done = list(log.read(arguments.work / "store" / "log.jsonl"))
    references: dict[object, Reference] = {}
    for mode in arguments.modes:
        module, manifest = f"{work.name}_{mode}", folder / work.name / f"{mode}.json"
        if not manifest.exists():
            own = [text for text in messages if module in text]
            row["modes"][mode] = {"failed": (own or messages or ["error: no manifest, and no message"])[0]}
            row.setdefault("failed", row["modes"][mode]["failed"])
            continue
        found = _counts(manifest.with_suffix("") / module / f"{arguments.arch}.plan.json")
        found |= {"held": modes.held(manifest, module, arguments.arch), "cpu": modes.cpu(done, module)}
        if found["kernels"] and mode in arguments.compared:
            found |= _compared(manifest, tools, references)
        row["modes"][mode] = found
    return row


def _messages(work: Work, said: str) -> list[str]:
    """The errors that are about this file, each with the lines that belong to it."""
    found = re.findall(r"^(?:scons: \*\*\* )?(?:error: |Traceback).*(?:\n(?:[ \t]|note|hint).*)*", said, re.MULTILINE)
    names = (work.name, str(work.source), f"{work.shown}")
    return [text for text in found if any(name in text for name in names) or "Traceback" in text]


def _compared(manifest: Path, tools: Tools, references: dict[object, Reference]) -> dict[str, Any]:
    """The classes of one build."""
    begun = time.monotonic()
    try:
        report = compare.compare(manifest, tools=tools, references=references).to_json()
    except GpuError as error:
        return {"compare_failed": str(error)}
    causes = Counter(f"{one['kind']}: {_cause(one['cause'])}" for one in report["kernels"] if one["cause"])
    return {
        "compare_seconds": round(time.monotonic() - begun, 2),
        "classes": report["counts"],
        "causes": dict(causes),
        "different": [one for one in report["kernels"] if one["kind"] == "different"],
        "undivided": _figures([one["undivided"] for one in report["kernels"]]),
        "built": _figures([one["built"] for one in report["kernels"]]),
    }


def _figures(found: list[dict[str, int] | None]) -> dict[str, int]:
    return {name: sum(one[name] for one in found if one) for name in ("registers", "instructions")}


def _counts(plan: Path) -> dict[str, Any]:
    units = [part for part in json.loads(plan.read_text())["parts"] if part["role"] == "unit"] if plan.exists() else []
    digests = {part["digest"] for part in units}
    bodies = Counter(part["body"] for part in units)
    return {
        "kernels": sum(len(part["kernels"]) for part in units),
        "units": len(units),
        "shared": len(units) - len(digests),
        "twins": sum(count - 1 for body, count in bodies.items() if body),
        "joined": dict(Counter(part["joined"] for part in units if part["joined"])),
        "joined_kernels": sum(len(part["kernels"]) for part in units if part["joined"]),
        "largest": max((len(part["kernels"]) for part in units), default=0),
        "digests": sorted(digests),
    }


def _cause(text: str) -> str:
    """A cause without what is particular to one kernel."""
    parts = [re.sub(r"which .* can be seen", "which private state can be seen", part) for part in text.split("; ")]
    return "; ".join(re.sub(r" -?\d+ -> \d+", " change", part) for part in parts)


def _line(row: dict[str, Any]) -> str:
    parts = []
    for mode, found in row["modes"].items():
        classes = ", ".join(f"{count} {name}" for name, count in found.get("classes", {}).items() if count)
        told = _kind(found["failed"]) if "failed" in found else f"{len(found['held'])} kernels, {found['cpu']:.1f} s"
        parts.append(f"{mode}: {told}" + (f", {classes}" if classes else ""))
    return f"{row['source']}: " + ("; ".join(parts) or row["failed"])


def _tools(found: Toolchain) -> dict[str, str]:
    names = ("clang", "ptxas", "nvlink", "fatbinary", "nvdisasm", "libdevice")
    versions = {name: getattr(found, name).version for name in names if getattr(found, name)}
    return {**versions, "llvm": found.llvm.split()[0]}


def _totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    failed = Counter(_kind(row["failed"]) for row in rows if "failed" in row)
    totals: dict[str, Any] = {"files": len(rows), "built": sum("failed" not in row for row in rows), "failures": dict(failed.most_common())}
    totals["build_seconds"] = round(sum(row["build_seconds"] for row in rows), 1)
    totals["modes"] = {mode: _total(rows, mode) for mode in modes.MODES if any(mode in row["modes"] for row in rows)}
    return totals


def _total(rows: list[dict[str, Any]], mode: str) -> dict[str, Any]:
    found = [one for row in rows if "failed" not in (one := row["modes"].get(mode, {"failed": ""}))]
    total: dict[str, Any] = {name: sum(one[name] for one in found) for name in ("units", "joined_kernels", "twins")}
    total |= modes.add(rows, mode)
    for name in ("joined", "classes", "causes", "undivided", "built"):
        total[name] = dict(sum((Counter(one.get(name, {})) for one in found), Counter()))
    total["largest"] = max((one["largest"] for one in found), default=0)
    total["shared"] = total["units"] - len({digest for one in found for digest in one["digests"]})
    total["compared"] = sum(sum(one.get("classes", {}).values()) for one in found)
    total["uncompared"] = sum("compare_failed" in one for one in found)
    total["compare_seconds"] = round(sum(one.get("compare_seconds", 0.0) for one in found), 1)
    return total


def _kind(message: str) -> str:
    """What kind of failure it is: the compiler's first error, else the message, without places."""
    lines = message.splitlines()
    inner = next((line.partition("error: ")[2] for line in lines[1:] if "error: " in line), "")
    return (inner or re.sub(r"^error: .*?\(sm_\w+\): ", "", lines[0]))[:90]


COUNTS = (
    *("files", "refused", "kernels", "units", "joined_kernels", "shared", "twins", "largest", "cpu"),
    *("registers", "more registers", "fewer registers", "stack_bytes", "shared_bytes", "code_bytes"),
    *("compared", "uncompared", "compare_seconds"),
)


def _table(report: dict[str, Any]) -> str:
    totals = report["totals"]
    built = totals["modes"]
    lines = [
        " ".join(f"{name} {version}" for name, version in report["tools"].items()) + f" · {report['arch']}",
        f"files {totals['files']}, built in every mode {totals['built']}, {totals['build_seconds']} s",
        _cells("", list(built)),
    ]
    lines += [_cells(name.replace("_", " "), [round(total.get(name, 0), 1) for total in built.values()]) for name in COUNTS]
    for group in ("joined", "classes", "causes", "undivided", "built"):
        names = compare.CLASSES if group == "classes" else sorted({name for total in built.values() for name in total[group]})
        lines += [_cells(f"  {group} {name}", [total[group].get(name, 0) for total in built.values()]) for name in names]
    lines += [f"  {count} x {kind}" for kind, count in totals["failures"].items()]
    return "\n".join(lines)


def _cells(name: str, values: list[Any]) -> str:
    return f"{name[:60]:60}" + "".join(f"{value:>14}" for value in values)


if __name__ == "__main__":
    sys.exit(main())
