#!/usr/bin/env python3
"""Has clangd read the CUDA sources of programs as their compilation databases tell it to, and says which it reads without an error.

    editors.py DIR [--limit N] [--clangd PATH]

DIR is the --work of programs.py, which left a SConstruct for each program there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "builders"
TOOLS = ('tools=["default", "gpu"]', 'tools=["default", "compilation_db", "gpu"]')
DATABASE = "\nenv.CompilationDatabase()\n"


@dataclass(frozen=True)
class Read:
    """What clangd says of one file."""

    file: str
    error: str
    """The first; empty where there is none."""


def main() -> int:
    """Reads, and prints a line for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=None, help="so many programs")
    parser.add_argument("--clangd", default=str(Path(sys.executable).with_name("clangd")))
    arguments = parser.parse_args()
    found = sorted(path.parent for path in arguments.folder.glob("programs/*/ours/*/SConstruct"))[: arguments.limit]
    with ThreadPoolExecutor(2) as pool:
        reads = [read for reads in pool.map(lambda folder: _program(folder, arguments.clangd), found) for read in reads]
    for read in reads:
        print(f"{read.file:50} {read.error or 'clean'}")
    print(f"{sum(not read.error for read in reads)} of {len(reads)} files are clean")
    return 0


def _program(folder: Path, clangd: str) -> list[Read]:
    script = folder / "SConstruct"
    text = script.read_text()
    if DATABASE not in text:
        script.write_text(text.replace(*TOOLS) + DATABASE)
    environ = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    command = [sys.executable, "-m", "SCons", "-s", "compile_commands.json"]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        return [Read(folder.name, f"no database: {done.stderr.strip()[:200]}")]
    entries = json.loads((folder / "compile_commands.json").read_text())
    files = dict.fromkeys(entry["file"] for entry in entries if entry["file"].endswith(".cu"))
    return [Read(f"{folder.name}/{file}", _error(folder, file, clangd)) for file in files]


def _error(folder: Path, file: str, clangd: str) -> str:
    command = [clangd, f"--check={file}", "--check-locations=0", "--compile-commands-dir=."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    errors = re.findall(r"^E\[[\d:.]+\] (.*)", done.stderr, re.MULTILINE)
    return errors[0] if errors else "" if done.returncode == 0 else f"clangd ended with {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
