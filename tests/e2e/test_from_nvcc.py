"""A project comes from nvcc with the flags that it had: docs/from-nvcc.md is its guide."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from host_parts import make_runtime, said
from project import CUDA, Project

from scons_gpu.toolchain.frontends import choose

if TYPE_CHECKING:
    from scons_gpu.toolchain.tools import Toolchain

GUIDE = (Path(__file__).parents[2] / "docs/from-nvcc.md").read_text(encoding="utf-8")
BLUR = """\
#include <tile.h>
template <int N> __global__ void blur(const float* in, float* out) { out[threadIdx.x] = in[threadIdx.x] * WEIGHT + in[N]; }
template __global__ void blur<TILE>(const float*, float*);
"""
SCAN = """\
#ifdef EXTRA
extern "C" __global__ void extra(float* p) { *p = EXTRA; }
#endif
extern "C" __global__ void scan(int* p) { if constexpr (TILE > 0) atomicAdd(p, TILE); }
"""


def block(after: str) -> str:
    """The guide's code that comes next."""
    found = re.search(r"```python\n(.*?)```", GUIDE[GUIDE.index(after) :], re.DOTALL)
    assert found
    return found[1]


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The guide's project, as it is afterwards."""
    project = Project(tmp_path_factory.mktemp("moved") / "project")
    project.write("src/blur.cu", BLUR)
    project.write("src/scan.cu", SCAN)
    project.write("src/tile.h", "#define WEIGHT 0.5f\n")
    project.write("SConstruct", block("After:").replace("modules =", f"{CUDA}modules ="))
    project.build()
    return project


def test_the_guides_project_has_the_kernels_that_nvcc_made(moved: Project, toolchain: Toolchain) -> None:
    flags = re.search(r'NVCCFLAGS="(.*?)"', block("Before, with an `env.NvccFatbin`"))
    assert flags
    nvcc = choose(toolchain, wanted="nvcc", environ={"PATH": os.environ["PATH"]}, facts=moved.path("facts")).tool.path
    for name in ("blur", "scan"):
        moved.path(f"before/{name}").mkdir(parents=True)
        argv = [nvcc, *shlex.split(flags[1]), "-cubin", "-o", f"before/{name}/sm_90.cubin", f"src/{name}.cu"]
        subprocess.run(argv, cwd=moved.root, check=True, capture_output=True)
        assert moved.kernels(name) == moved.kernels(name, stem="before") != []
        assert moved.exists(f"build/net/{name}.fatbin")
    assert list(moved.manifest()["archs"]) == ["sm_90"]


def test_r2_r4_what_the_flags_name_is_watched(moved: Project) -> None:
    moved.idle()
    moved.write("src/tile.h", "#define WEIGHT 0.25f\n")
    moved.build()
    assert moved.compiled() == ["blur<64>(float const*, float*)"]
    moved.idle()


def test_each_flag_reaches_what_it_is_for(moved: Project) -> None:
    moved.edit(
        "SConstruct", '[f"src/{name}.cu"]', '[env.GpuSource(f"src/{name}.cu", GPU_NVCCFLAGS="-DTILE=32 -DEXTRA=1 -Isrc -fmad=false")]'
    )
    result = moved.build("GPU_NVCCFLAGS=-arch=compute_90 -code=sm_90 -lineinfo -maxrregcount=24 -Xptxas -O1 -restrict", "GPU_DUMP=seen")
    assert "-restrict of GPU_NVCCFLAGS is left out: clang has no such flag: write __restrict__" in result.stderr
    assert moved.compiled() == ["blur<32>(float const*, float*)", "extra", "scan"]
    [blur] = [text.decode() for name, text in moved.files("seen/**/*.ptx").items() if "blur" in name]
    assert ".loc" in blur
    assert "mul.rn.f32" in blur
    assert "fma" not in blur
    keys = [text.decode() for text in moved.files(".gpu-store/object/**/*.json").values()]
    assert len([key for key in keys if "-maxrregcount=24" in key and "-O1" in key]) == 3


def test_the_guides_program_is_built_by_clang_and_by_nvcc(project: Project) -> None:
    project.write("src/main.cpp", "void blur();\nint main() { blur(); }\n")
    project.write(
        "src/blur.cu", "template <int N> __global__ void blur(float* p) { *p = N; }\nvoid blur() { blur<TILE><<<1, 1>>>(nullptr); }\n"
    )
    make_runtime(project)
    quick = 'env.Append(LIBS=["cudart"], LIBPATH=["#runtime"], RPATH=[Dir("#runtime").abspath], GPU_CLANGFLAGS=["-nocudainc", "-include", "launch.h"])\n'
    project.write("SConstruct", block("After, with the same line of flags").replace("env.Program", f"{quick}env.Program"))
    shown = project.build("GPU_HOSTCOMSTR=").stdout
    assert re.search(r"clang-?\d* .* -std=c\+\+17 .* -DTILE=64 -Isrc -O3 -Wall ", shown)
    assert said(project.path("app")) == ["fatbin 1", "kernel _Z4blurILi64EEvPf", "launch _Z4blurILi64EEvPf 1,1,1 1,1,1 0"]
    shown = project.build("GPU_HOST=nvcc", "GPU_HOSTCOMSTR=", "-n").stdout
    assert re.search(r"nvcc -x cu -c .*code=\[sm_90\]' .*-DTILE=64 -Isrc .*-Xcompiler=-O3 -Xcompiler=-Wall --std=c\+\+17 ", shown)


def test_what_was_set_by_name_goes_before_a_flag(project: Project) -> None:
    project.write("SConstruct", 'env["GPU_NVCCFLAGS"] = "-arch=sm_80 -G -O3"\nenv.GpuProgram("build/net", env.GpuModule("net", []))\n')
    told = project.build("GPU_DEBUG=0", "-n").stderr
    assert "scons-gpu: GPU_ARCHS=sm_90 goes before -arch=sm_80 of GPU_NVCCFLAGS\n" in told
    assert "goes before -G" not in told, "the command line is nearer"
    assert "GPU_ARCHS" not in project.build("GPU_NVCCFLAGS=-arch=compute_90 -code=sm_90", "-n").stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('env["GPU_NVCCFLAGS"] = "-Wall -lineinf -ptx"', "error: GPU_NVCCFLAGS: 3 flags cannot be taken over\n    -Wall: nvcc has no such flag"),
        ('env["GPU_NVCCFLAGS"] = ["-maxregcount=32"]', "error: GPU_NVCCFLAGS: -maxregcount=32: nvcc has no such flag; is -maxrregcount or"),
        ('env["GPU_NVCCFLAGS"] = "-I$(CUDA)/include"', "error: GPU_NVCCFLAGS: $(CUDA) is a variable of make's"),
        ('env.GpuSource("k.cu", GPU_NVCCFLAGS="-DX -lineinfo")', "error: GpuSource(k.cu) at SConstruct:3: -lineinfo of GPU_NVCCFLAGS is GPU_LINEINFO, which"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_over_is_told_at_once(project: Project, line: str, words: str) -> None:
    project.write("SConstruct", f'{line}\nenv.GpuProgram("build/net", env.GpuModule("net", []))\n')
    assert words in project.fail().stderr
