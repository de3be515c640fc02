#!/usr/bin/env python3
"""Writes a project of M modules with K kernels each, to measure how cost grows: generate.py DIR --modules M --kernels K [options].

Every kernel holds a number of its own, so that no two are equal, but for the first `--same` of each module, which are the same in all.
`--work` is the length of a kernel's body: straight-line arithmetic that neither LLVM nor the assembler can shorten.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Shape", "headers", "sconstruct", "write"]

HEAD = """\
target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"
"""
TAIL = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare float @llvm.fma.f32(float, float, float)
"""


@dataclass(frozen=True)
class Shape:
    """What a project looks like."""

    modules: int = 1
    kernels: int = 10
    work: int = 8
    same: int = 0
    """Kernels of each module that stand in all others too."""
    language: str = "ll"
    """`ll` or `cu`."""
    headers: int = 0
    """Headers that each `.cu` includes, itself or through others."""

    def seed(self, module: int, kernel: int) -> int:
        """The number that makes a kernel its own."""
        return kernel if kernel < self.same else (module + 1) * 1_000_003 + kernel

    def name(self, module: int, kernel: int) -> str:
        """Its symbol."""
        return f"common_{kernel}" if kernel < self.same else f"m{module}_k{kernel}"


def write(folder: Path, shape: Shape, *, edit: tuple[int, int] | None = None) -> None:
    """Writes all sources; files that would not change are left alone. `edit` changes one kernel of one module, as a user would."""
    folder.mkdir(parents=True, exist_ok=True)
    kernel = _cuda if shape.language == "cu" else kernel_ir
    for module in range(shape.modules):
        seeds = [shape.seed(module, number) + (500_000_003 if edit == (module, number) else 0) for number in range(shape.kernels)]
        body = "".join(kernel(shape.name(module, number), seed, shape.work) for number, seed in enumerate(seeds))
        head = f'#include "h0.h"\n{body}' if shape.headers else body
        _put(folder / f"m{module}.{shape.language}", head if shape.language == "cu" else HEAD + body + TAIL)
    headers(folder, shape.headers)


def headers(folder: Path, count: int) -> None:
    """`h0.h` reaches all others, half of them through one more step."""
    near = range(1, count, 2)
    for number in range(count):
        far = [number + 1] if number in near and number + 1 < count else list(near) if number == 0 else []
        lines = "".join(f'#include "h{other}.h"\n' for other in far)
        _put(folder / f"h{number}.h", f"#pragma once\n{lines}#define H{number} {number}\n")


def sconstruct(shape: Shape, *, toolpath: str, arch: str = "sm_90", store: str = "#.gpu-store") -> str:
    """All modules below one root."""
    return f"""\
env = Environment(tools=["gpu"], toolpath=[{toolpath!r}], GPU_ARCHS=[{arch!r}], GPU_STORE={store!r})
modules = [env.GpuModule(f"m{{n}}", [f"m{{n}}.{shape.language}"]) for n in range({shape.modules})]
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=modules))
"""


def kernel_ir(name: str, seed: int, work: int) -> str:
    lines = [
        f"\ndefine ptx_kernel void @{name}(ptr addrspace(1) %x, ptr addrspace(1) %y) {{",
        "  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()",
        "  %px = getelementptr float, ptr addrspace(1) %x, i32 %i",
        "  %py = getelementptr float, ptr addrspace(1) %y, i32 %i",
        f"  %own = xor i32 %i, {seed}",
        "  %w = sitofp i32 %own to float",
        "  %v0 = load float, ptr addrspace(1) %px",
        *(f"  %v{k + 1} = call float @llvm.fma.f32(float %v{k}, float {_constant(seed, k)}e+00, float %w)" for k in range(work)),
        f"  store float %v{work}, ptr addrspace(1) %py",
        "  ret void",
        "}",
        "",
    ]
    return "\n".join(lines)


def _cuda(name: str, seed: int, work: int) -> str:
    body = "".join(f"  v = fmaf(v, {_constant(seed, k)}f, w);\n" for k in range(work))
    start = f"  float v = x[threadIdx.x], w = (float)(threadIdx.x ^ {seed});\n"
    return f'\nextern "C" __global__ void {name}(const float* x, float* y) {{\n{start}{body}  y[threadIdx.x] = v;\n}}\n'


def _constant(seed: int, step: int) -> str:
    return f"{(seed * 7919 + step * 104729) % 4093 + 1}.0"


def _put(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def main() -> None:
    """As a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--modules", type=int, default=10)
    parser.add_argument("--kernels", type=int, default=10)
    parser.add_argument("--work", type=int, default=8, help="length of a kernel's body")
    parser.add_argument("--same", type=int, default=0, help="kernels of each module that stand in all others too")
    parser.add_argument("--language", choices=("ll", "cu"), default="ll")
    parser.add_argument("--headers", type=int, default=0, help="headers that each .cu includes")
    parser.add_argument("--edit", nargs=2, type=int, metavar=("MODULE", "KERNEL"), help="change one kernel of one module")
    options = vars(parser.parse_args())
    folder, edit = options.pop("dir"), options.pop("edit")
    write(folder, Shape(**options), edit=tuple(edit) if edit else None)


if __name__ == "__main__":
    main()
