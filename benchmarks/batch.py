#!/usr/bin/env python3
"""Measures what sharing costs: 50 modules of 60 kernels, 40 of them the same in all, against one module of all the different ones.

    batch.py [--modules 50] [--kernels 60] [--same 40] [--work LINES] [--dir DIR]

Both are built from nothing at -j2 by the same tools; calls of ptxas are counted by a wrapper. Prints compiles and different kernels, which
must be equal, and the ratio of CPU time, which is to be 1.1 at most.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from budgets import ARCH, ENVIRON, clean, cost
from generate import HEAD, TAIL, Shape, kernel_ir, sconstruct, write

import scons_gpu
from scons_gpu.toolchain.tools import discover


def toolkit(folder: Path) -> Path:
    """The real tools; ptxas notes each assembly."""
    tools = discover(environ=ENVIRON, prefix=sys.prefix, facts=folder / "facts")
    assert tools.ptxas is not None  # noqa: S101 - a benchmark's precondition
    assert tools.libdevice is not None  # noqa: S101 - the same
    binaries = Path(tools.ptxas.path).parent
    (folder / "bin").mkdir(parents=True)
    (folder / "nvvm/libdevice").mkdir(parents=True)
    (folder / "nvvm/libdevice/libdevice.10.bc").symlink_to(tools.libdevice.path)
    for name in ("nvlink", "fatbinary"):
        (folder / "bin" / name).symlink_to(binaries / name)
    script = folder / "bin/ptxas"
    script.write_text(f'#!/bin/sh\ncase "$*" in *unit.ptx*) echo x >> {folder}/calls;; esac\nexec {binaries}/ptxas "$@"\n')
    script.chmod(0o755)
    return folder


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=int, default=50)
    parser.add_argument("--kernels", type=int, default=60)
    parser.add_argument("--same", type=int, default=40)
    parser.add_argument("--work", type=int, default=300, help="lines of a kernel's body")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--dir", type=Path, help="folder to build in; kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scons-gpu-batch-") as temporary:
        work = (options.dir or Path(temporary)).resolve()
        tools = toolkit(work / "toolkit")
        shape = Shape(modules=options.modules, kernels=options.kernels, same=options.same, work=options.work)
        many, one = work / "many", work / "one"
        write(many, shape)
        (many / "SConstruct").write_text(sconstruct(shape, toolpath=scons_gpu.TOOLPATH, arch=ARCH))
        different = {
            shape.seed(module, number): shape.name(module, number) for module in range(shape.modules) for number in range(shape.kernels)
        }
        one.mkdir(parents=True, exist_ok=True)
        (one / "m0.ll").write_text(HEAD + "".join(kernel_ir(name, seed, shape.work) for seed, name in different.items()) + TAIL)
        (one / "SConstruct").write_text(sconstruct(Shape(), toolpath=scons_gpu.TOOLPATH, arch=ARCH))
        ratios, calls = [], 0
        for _ in range(options.runs):
            spent = []
            for folder in (one, many):
                shutil.rmtree(folder / ".gpu-store", ignore_errors=True)
                clean(folder)
                (tools / "calls").unlink(missing_ok=True)
                argv = [sys.executable, "-m", "SCons", "-s", "-j2", f"GPU_CUDA_PATH={tools}"]
                spent.append(cost(argv, cwd=folder).cpu)
                calls = len((tools / "calls").read_text().split())
            ratios.append(spent[1] / spent[0])
        print(
            json.dumps(
                {
                    "references": shape.modules * shape.kernels,
                    "different": len(different),
                    "compiled": calls,
                    "cpu_ratio": statistics.median(ratios),
                }
            )
        )
        return 0 if calls == len(different) else 1


if __name__ == "__main__":
    sys.exit(main())
