#!/usr/bin/env python3
"""How fast the split reads: MB of printed IR per second of CPU, LLVM included, and peak memory in multiples of the text.

split_rate.py [FOLDER]     generated modules, and with a folder all its .ll files of 100 KB or more

Each module is split in a process of its own, after a small one that loads all code.
`LLVM` is the share that parse, verify and print alone take: what no reader could do without.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HEAD = 'target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"\ntarget triple = "nvptx64-nvidia-cuda"\n'
SHAPES = {
    "300 kernels of 400 lines": (300, 400, 5),
    "3,000 kernels of 20 lines": (3000, 20, 3),
    "100 kernels, 40 helpers each": (100, 200, 40),
}

CHILD = r"""
import json, sys, time
import llvmlite.binding as llvm
from scons_gpu.split import split
from scons_gpu.toolchain.arch import parse

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024

sm_90 = parse("sm_90")[0]
split("define ptx_kernel void @k() {\n  ret void\n}\n", source="k.ll", target=sm_90, form="apart", put=str)
before = peak()
text = open(sys.argv[1]).read()
sizes = []
def put(slice_text):
    sizes.append(len(slice_text))
    return "x"
start = time.process_time()
index = split(text, source="k.ll", target=sm_90, form="apart", put=put)
total = time.process_time() - start
top = peak() - before
start = time.process_time()
with llvm.parse_assembly(text, llvm.create_context()) as module:
    module.verify()
    printed = len(str(module))
alone = time.process_time() - start
print(json.dumps([printed, total, alone, top, len(index.units), sum(sizes)]))
"""


def generated(kernels: int, lines: int, helpers: int) -> str:
    """A module of kernels that differ, sharing a chain of helpers."""
    parts = [HEAD]
    for depth in range(helpers):
        last = depth + 1 == helpers
        inner = "%r = fmul float %a, 3.0" if last else f"%r = call float @helper_{depth + 1}(float %a)"
        parts.append(
            f"define internal float @helper_{depth}(float %v) {{\n  %a = fadd float %v, {depth + 1}.0\n  {inner}\n  ret float %r\n}}\n"
        )
    for kernel in range(kernels):
        body = [f"  %v{k + 1} = call float @llvm.fma.f32(float %v{k}, float {kernel + k + 1}.0, float %v{k})" for k in range(lines)]
        parts += [
            f"define ptx_kernel void @kernel_{kernel}(ptr addrspace(1) %x) {{",
            "  %v0 = load float, ptr addrspace(1) %x, !tbaa !0",
            *body,
        ]
        parts += [f"  %h = call float @helper_0(float %v{lines})", "  store float %h, ptr addrspace(1) %x, !tbaa !0", "  ret void", "}", ""]
    parts.append('declare float @llvm.fma.f32(float, float, float)\n!0 = !{!1, !1, i64 0}\n!1 = !{!"float", !2, i64 0}\n!2 = !{!"root"}\n')
    return "\n".join(parts)


def measure(path: Path) -> str:
    """One row of the table."""
    done = subprocess.run([sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    printed, total, alone, top, units, out = json.loads(done.stdout)
    size = f"{printed / 1e6:6.2f} MB {units:5} units {out / printed:5.2f}x out"
    return f"{size} {printed / total / 1e6:6.1f} MB/s   LLVM {alone / total:4.0%}   memory {top / printed:5.1f}x"


def main() -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in SHAPES.items():
            path = Path(folder, "k.ll")
            path.write_text(generated(*shape))
            print(f"{name:45} {measure(path)}")
    for path in sorted(Path(sys.argv[1]).glob("*.ll")) if len(sys.argv) > 1 else ():
        if path.stat().st_size >= 100_000:
            print(f"{path.name[-45:]:45} {measure(path)}")


if __name__ == "__main__":
    main()
