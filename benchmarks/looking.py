#!/usr/bin/env python3
"""What the commands cost that look into a build: wall time, CPU time and memory of each, start of Python included.

`looking.py [--modules 100] [--kernels 100] [--headers 300] [--builds 1] [--times 3]`. The build is laid out (tests/e2e/laid_out.py).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/e2e"))

from laid_out import Built, lay_out

COMMANDS = (
    ("graph",),
    ("graph", "--format", "dot"),
    ("graph", "--format", "json"),
    ("graph", "--format", "graphml"),
    ("graph", "--module", "m1"),
    ("graph", "--kernel", "scale_m1_k9"),
    ("graph", "--depth", "2"),
    ("inputs", "scale_m1_k9"),
    ("inputs", "build/net.json"),
    ("users", "include/h0.h"),
    ("path", "include/h0.h", "build/net.json"),
    ("shared",),
    ("twins",),
    ("trace", "-o", os.devnull),
    ("slowest",),
    ("critical-path",),
)
RUN = "from scons_gpu.cli import main; main()"


def measure(folder: Path, command: tuple[str, ...]) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds, and peak memory in MiB of one run."""
    with (folder / "out").open("wb") as out:
        begun = time.perf_counter()
        started = subprocess.Popen([sys.executable, "-c", RUN, "-C", str(folder), *command], stdout=out)
        _, status, used = os.wait4(started.pid, 0)
        wall = time.perf_counter() - begun
    if status:
        sys.exit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss // 1024


def main() -> None:
    """Prints a table: the least of several runs, as other work only adds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (("modules", 100), ("kernels", 100), ("same", 5), ("twins", 4), ("headers", 300), ("builds", 1), ("times", 3)):
        parser.add_argument(f"--{name}", type=int, default=number)
    asked = vars(parser.parse_args())
    times = asked.pop("times")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_out(folder, Built(**asked))
        log = (folder / ".gpu-store/log.jsonl").stat().st_size / 1e6
        print(f"{asked['modules'] * asked['kernels']} kernels, {asked['headers']} headers a source, a log of {log:.0f} MB")
        print(f"{'command':<28} {'wall s':>7} {'cpu s':>7} {'MiB':>5} {'MB out':>7}")
        for command in COMMANDS:
            runs = [measure(folder, command) for _ in range(times)]
            wall, cpu, memory = (min(column) for column in zip(*runs, strict=True))
            print(f"{' '.join(command):<28} {wall:7.2f} {cpu:7.2f} {memory:5d} {(folder / 'out').stat().st_size / 1e6:7.2f}", flush=True)


if __name__ == "__main__":
    main()
