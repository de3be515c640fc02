#!/usr/bin/env python3
"""Builds every .cu file below a folder as a module of its own, as image and as bundle, and compares both with the undivided build.

    real_projects.py FOLDER --work DIR [--limit N] [--seconds S] [--arch sm_90] [--json FILE]

HeCBench, for example: git archive HEAD src | tar x -C /tmp/hecbench, then FOLDER is /tmp/hecbench/src. A file that fails is a row with its
message. What was done is kept in DIR/rows and not done again, so that a run can be stopped at any time; a table is printed at the end.
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
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "builders"
LINKS = ("image", "bundle")
CLASSES = ("identical", "constant placement", "other schedule", "private state made visible", "different")

SCONSTRUCT = """\
import sys
sys.path.insert(0, {package!r})
import scons_gpu
env = Environment(tools=["gpu"], toolpath=[scons_gpu.TOOLPATH], GPU_ARCHS=[{arch!r}], GPU_STORE={store!r})
for link in {links!r}:
    env.GpuProgram(link, env.GpuModule("m", [{source!r}], GPU_LINK=link, CPPPATH={folders!r}))
"""


def main() -> int:
    """Runs, and prints the table."""
    arguments = _arguments()
    sources = sorted(path for path in arguments.folder.rglob("*.cu") if path.is_file())
    rows = arguments.work / "rows"
    rows.mkdir(parents=True, exist_ok=True)
    begun, done = time.monotonic(), []
    for source in sources[: arguments.limit]:
        kept = rows / f"{hashlib.sha256(str(source).encode()).hexdigest()[:16]}.json"
        if not kept.exists():
            if time.monotonic() - begun > arguments.seconds:
                continue
            row = _row(source, arguments)
            kept.write_text(json.dumps(row, indent=1))
            print(_line(row), flush=True)
        done.append(json.loads(kept.read_text()))
    report = {"tools": _tools(arguments), "arch": arguments.arch, "totals": _totals(done), "rows": done}
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1, sort_keys=True))
    print(_table(report))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="where it builds, and keeps what was done")
    parser.add_argument("--limit", type=int, default=None, help="so many files, in order of path")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further file after so long")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one build or comparison")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--json", type=Path, default=None, help="the whole report")
    arguments = parser.parse_args()
    arguments.folder, arguments.work = arguments.folder.resolve(), arguments.work.resolve()
    return arguments


def _row(source: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """One file: built, counted, compared."""
    folder = arguments.work / "files" / hashlib.sha256(str(source).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    roots = [source.parent, source.parent.parent, *(source.parent / name for name in ("include", "../include", "../../include"))]
    text = SCONSTRUCT.format(
        package=str(PACKAGE),
        arch=arguments.arch,
        store=str(arguments.work / "store"),
        source=str(source),
        folders=[str(path.resolve()) for path in roots if path.is_dir()],
        links=LINKS,
    )
    (folder / "SConstruct").write_text(text)
    row: dict[str, Any] = {"source": str(source.relative_to(arguments.folder))}
    code, said, seconds = _run([sys.executable, "-m", "SCons", "-Q", "-k", "-j2", "image.json", "bundle.json"], folder, arguments.timeout)
    row["build_seconds"] = round(seconds, 2)
    if code:
        row["failed"] = _message(said, code)
    for link in LINKS:
        row[link] = _compared(folder / f"{link}.json", folder, link, arguments)
    return row


def _compared(manifest: Path, folder: Path, link: str, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Counts of one build and its classes; None where it failed."""
    if not manifest.exists():
        return None
    found = _counts(folder / link / "m" / f"{arguments.arch}.plan.json")
    if not found["kernels"]:
        return found
    command = [sys.executable, "-c", "from scons_gpu.cli import main; main()", "compare", str(manifest), "--json"]
    code, said, seconds = _run(command, folder, arguments.timeout)
    found["compare_seconds"] = round(seconds, 2)
    if code not in {0, 1} or not said.startswith("{"):
        found["compare_failed"] = _message(said, code)
        return found
    report = json.loads(said)
    found["classes"] = report["counts"]
    found["causes"] = dict(Counter(_cause(kernel["cause"]) for kernel in report["kernels"] if kernel["kind"] == "different"))
    found["different"] = [kernel for kernel in report["kernels"] if kernel["kind"] == "different"]
    return found


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
        "largest": max((len(part["kernels"]) for part in units), default=0),
    }


def _cause(text: str) -> str:
    """A cause without what is particular to one kernel."""
    known = ("relocatable assembly", "they change what is inlined", "the same PTX", "can be seen", "promised", "lacks", "not explained")
    return next((one for one in known if one in text), text)


def _run(command: list[str], folder: Path, timeout: float) -> tuple[int, str, float]:
    options: dict[str, Any] = {"cwd": folder, "timeout": timeout, "env": {**os.environ, "PYTHONPATH": str(PACKAGE)}}
    begun = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, **options)
    except subprocess.TimeoutExpired:
        return 124, f"error: took longer than {timeout:.0f} s", time.monotonic() - begun
    return done.returncode, done.stdout + (done.stderr if done.returncode else ""), time.monotonic() - begun


def _message(said: str, code: int) -> str:
    """The first error with the lines that belong to it."""
    lines = said.splitlines()
    first = next((place for place, line in enumerate(lines) if line.startswith("error: ") or "Traceback" in line), None)
    return "\n".join(lines[first : first + 6]) if first is not None else f"exit status {code}: " + "\n".join(lines[-3:])


def _line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['source']}: {row['failed'].splitlines()[0]}"
    parts = []
    for link in LINKS:
        found = row[link] or {}
        classes = ", ".join(f"{count} {name}" for name, count in found.get("classes", {}).items() if count)
        parts.append(f"{link}: {found.get('units', 0)} units, {classes or found.get('compare_failed', 'no kernels')}")
    return f"{row['source']}: " + "; ".join(parts)


def _tools(arguments: argparse.Namespace) -> dict[str, str]:
    store = str(arguments.work / "store")
    command = [sys.executable, "-c", "from scons_gpu.cli import main; main()", "--store", store, "doctor", "--json"]
    _, said, _ = _run(command, arguments.work, arguments.timeout)
    tools = json.loads(said)["tools"] if said.startswith("{") else {}
    return {name: tool["version"] for name, tool in sorted(tools.items()) if tool}


def _totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    failed = Counter(_kind(row["failed"]) for row in rows if "failed" in row)
    totals: dict[str, Any] = {"files": len(rows), "built": sum("failed" not in row for row in rows), "failures": dict(failed.most_common())}
    totals["build_seconds"] = round(sum(row["build_seconds"] for row in rows), 1)
    for link in LINKS:
        found = [row[link] for row in rows if row.get(link)]
        total: dict[str, Any] = {name: sum(one[name] for one in found) for name in ("kernels", "units", "shared", "twins")}
        for name in ("joined", "classes", "causes"):
            total[name] = dict(sum((Counter(one.get(name, {})) for one in found), Counter()))
        total["largest"] = max((one["largest"] for one in found), default=0)
        total["files"] = sum(one["kernels"] > 0 for one in found)
        total["uncompared"] = sum("compare_failed" in one for one in found)
        total["compare_seconds"] = round(sum(one.get("compare_seconds", 0.0) for one in found), 1)
        totals[link] = total
    return totals


def _kind(message: str) -> str:
    """What kind of failure it is: the compiler's first error, else the message, without places."""
    lines = message.splitlines()
    inner = next((line.partition("error: ")[2] for line in lines[1:] if "error: " in line), "")
    return (inner or re.sub(r"^error: .*?\(sm_\w+\): ", "", lines[0]))[:90]


def _table(report: dict[str, Any]) -> str:
    totals = report["totals"]
    lines = [
        " ".join(f"{name} {version}" for name, version in report["tools"].items()) + f" · {report['arch']}",
        f"files {totals['files']}, built {totals['built']}, {totals['build_seconds']} s",
        f"{'':30}{'image':>10}{'bundle':>10}",
    ]
    counts = ("files", "kernels", "units", "shared", "twins", "largest", "uncompared", "compare_seconds")
    lines += [_cells(name.replace("_", " "), [totals[link][name] for link in LINKS]) for name in counts]
    for group in ("joined", "classes", "causes"):
        names = CLASSES if group == "classes" else sorted({name for link in LINKS for name in totals[link][group]})
        lines += [_cells(f"  {name}", [totals[link][group].get(name, 0) for link in LINKS]) for name in names]
    lines += [f"  {count} x {kind}" for kind, count in totals["failures"].items()]
    return "\n".join(lines)


def _cells(name: str, values: list[Any]) -> str:
    return f"{name[:30]:30}" + "".join(f"{value:>10}" for value in values)


if __name__ == "__main__":
    sys.exit(main())
