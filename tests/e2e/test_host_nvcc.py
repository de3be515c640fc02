"""Programs whose `.cu` nvcc compiles, as the user wants it: an object each, and no units."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest
from project import Project

if TYPE_CHECKING:
    from pathlib import Path

SCONSTRUCT = """\
import scons_gpu
env = Environment(
    tools=["default", "compilation_db", "gpu"],
    toolpath=[scons_gpu.TOOLPATH],
    GPU_HOST="nvcc",
    GPU_NVCCFLAGS="-gencode arch=compute_90,code=[sm_90,compute_90] -Iinc -DSCALE=2 --extended-lambda -prec-div=false -Xcompiler -Wall",
    GPU_HOSTFLAGS=['-DGREETING="a, b"'],
    CXXFLAGS=["-std=gnu++17"],
)
part = env.StaticLibrary("build/part", ["part.cu"])
app = env.Program("app", ["main.cpp", "a.cu"], LIBS=[part])
Default(app)
env.CompilationDatabase()
"""
APP = """\
#include <cstdio>
#include "more.h"
template <class F> __global__ void run(F function, float* p) { *p = function(*p * SCALE); }
void part();
void a() {
  run<<<1, 1>>>([=] __device__(float x) { return x / MORE; }, nullptr);
  part();
  std::printf("%s: %d\\n", GREETING, cudaGetLastError() != cudaSuccess);
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("program") / "project")
    project.write("SConstruct", SCONSTRUCT)
    project.write("inc/more.h", "#define MORE 2\n")
    project.write("a.cu", APP)
    project.write("part.cu", "__global__ void fill(float* p) { *p = 1; }\nvoid part() { fill<<<1, 1>>>(nullptr); }\n")
    project.write("main.cpp", "void a();\nint main() { a(); }\n")
    result = project.build("-j2")
    assert "nvcc compiles the .cu of programs in one piece (GPU_HOST=nvcc)" in result.stderr
    assert "prec-div" not in result.stderr, "nvcc is given it, so that nothing is lost"
    return project


def test_the_program_links_starts_and_tells_what_the_driver_says(program: Project) -> None:
    told = subprocess.run([program.path("app")], capture_output=True, text=True, check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert told.stdout == "a, b: 1\n"
    assert program.done() == {"host": 2}
    assert not program.exists("a.o.gpu")


def test_editors_read_what_nvcc_compiles_as_clang_would(program: Project) -> None:
    """With the defines, folders and host flags that nvcc has; the flags that clang lacks are left out."""
    program.build("compile_commands.json")
    entries = json.loads(program.read("compile_commands.json"))
    assert [(entry["file"], entry["output"]) for entry in entries if entry["file"].endswith(".cu")] == [
        ("part.cu", "part.o"),
        ("a.cu", "a.o"),
    ]
    words = shlex.split(entries[-1]["command"])
    assert {"-DSCALE=2", "-Iinc", '-DGREETING="a, b"', "-std=gnu++17", "--offload-arch=sm_90"} <= {*words}
    read = subprocess.run([*words, "-fsyntax-only"], cwd=program.root, capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")


def test_r1_r4_headers_are_watched_and_nothing_else_is_done(program: Project) -> None:
    program.idle()
    program.write("inc/more.h", "#define MORE 4\n")
    program.build()
    assert [record["name"] for record in program.last() if record["stage"] == "host"] == ["a.cu"]
    program.idle()


def test_r2_flags_are_seen(program: Project) -> None:
    shown = program.build(
        "-n", "GPU_HOSTCOMSTR=", "GPU_NVCCFLAGS=-arch=compute_90 -code=sm_90 -Iinc -DSCALE=2 -G -maxrregcount=32 -Xptxas -dlcm=ca"
    ).stdout
    commands = [line for line in shown.splitlines() if "nvcc -x cu -c" in line]
    assert len(commands) == 2
    assert all("code=[sm_90]' -G -maxrregcount=32 -Xptxas -dlcm=ca -DSCALE=2 -Iinc -ccbin " in line for line in commands)


def test_s13_a_mistake_is_told_in_nvccs_words(program: Project, tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("SConstruct", program.read("SConstruct"))
    project.write("a.cu", "__global__ void k(int* p) { *q = 1; }\n")
    assert 'error: a.cu: nvcc: a.cu(1): error: identifier "q" is undefined' in project.fail("a.o").stderr
    assert "GPU_HOST=gcc is not known\n  it is one of clang, nvcc" in project.fail("GPU_HOST=gcc").stderr
