"""CUDA C++ through nvcc and NVRTC: what is made, what is read, and what is said."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from project import Project

if TYPE_CHECKING:
    from scons_gpu.toolchain.tools import Toolchain

NET = 'env.GpuProgram("build/net", env.GpuModule("net", ["src/k.cu"]))\n'
SOURCE = """\
#include "scale.h"
static __device__ int calls;
template <int N> __global__ void scale(float* p) { p[threadIdx.x] *= FACTOR * N; }
template __global__ void scale<32>(float*);
extern "C" __global__ void count(int* p) { *p = atomicAdd(&calls, 1); }
#ifdef MORE
extern "C" __global__ void more(int* p) { *p = MORE; }
#endif
"""
BOTH = pytest.mark.parametrize("name", ["nvcc", "nvrtc"])


def prepare(project: Project, name: str, more: str = "") -> None:
    project.write("src/k.cu", SOURCE)
    project.write("src/scale.h", "#include <number.h>\n#define FACTOR NUMBER\n")
    project.write("inc/number.h", "#define NUMBER 3.f\n")
    project.write("SConstruct", f'env["GPU_FRONTEND"] = "{name}"\nenv["CPPPATH"] = ["#inc"]\n{more}' + NET)


@BOTH
def test_a_source_becomes_ptx_and_its_kernels_units(project: Project, name: str) -> None:
    prepare(project, name)
    result = project.build()
    assert f"lowered in one piece by {name}" in result.stderr
    assert project.kernels("net") == ["_Z5scaleILi32EEvPf", "count"]
    assert project.variables("net") == ["calls"]
    manifest = project.manifest()
    assert {one["archs"]["sm_90"]["lowered_by"] for one in manifest["modules"]["net"]["kernels"].values()} == {None}
    assert name in manifest["tools"]
    assert "clang" not in manifest["tools"]
    project.idle()


@BOTH
def test_r1_a_header_behind_a_header_is_read_again(project: Project, name: str) -> None:
    prepare(project, name)
    project.build()
    project.write("inc/number.h", "#define NUMBER 4.f\n")
    project.build()
    assert project.compiled() == ["scale<32>(float*)"]
    project.write("src/k.cu", "// said\n" + SOURCE)
    project.build()
    assert (project.done()["source"], project.compiled()) == (1, [])
    project.idle()


@BOTH
def test_r2_a_define_and_the_flags_are_seen(project: Project, name: str) -> None:
    prepare(project, name, 'env["CPPDEFINES"] = {"MORE": 7}\n')
    project.build()
    assert "more" in project.kernels("net")
    project.edit("SConstruct", '"MORE": 7', '"MORE": 8')
    project.build()
    assert project.compiled() == ["more"]
    project.build("GPU_LINEINFO=1", "GPU_NVCCFLAGS=-DUNUSED")
    assert ".loc" in project.read("build/net/net/k.cu.sm_90.ptx")
    project.idle("GPU_LINEINFO=1", "GPU_NVCCFLAGS=-DUNUSED")


@BOTH
def test_t10_it_does_not_matter_where_the_tree_lies(tmp_path: Path, name: str) -> None:
    trees = [Project(tmp_path / "a"), Project(tmp_path / "elsewhere" / "longer")]
    for tree in trees:
        prepare(tree, name)
        tree.build("GPU_LINEINFO=1")
    one, two = (tree.bytes("build/net/net/k.cu.sm_90.ptx") for tree in trees)
    assert one == two
    assert b'"src/k.cu"' in one


@BOTH
def test_s13_a_source_that_does_not_compile_is_told_in_the_compilers_words(project: Project, name: str) -> None:
    prepare(project, name)
    project.edit("src/k.cu", "*p = atomicAdd", "*q = atomicAdd")
    result = project.fail()
    assert 'identifier "q" is undefined' in result.output
    assert "src/k.cu" in result.output
    assert not project.exists("build/net/net/k.cu.sm_90.ptx")
    project.edit("src/k.cu", "*q = atomicAdd", "*p = atomicAdd")
    project.build()


def test_both_make_the_same_units(project: Project, toolchain: Toolchain) -> None:
    prepare(project, "nvcc")
    project.build()
    project.build("GPU_FRONTEND=nvrtc")
    assert project.compiled() == []
    check_builtins(project, toolchain)


def check_builtins(project: Project, toolchain: Toolchain) -> None:
    """R2: NVRTC opens a second library by itself. The same files elsewhere make nothing stale, another one of that does."""
    found = toolchain.library("nvrtc")
    assert found is not None
    real, toolkit = Path(found.path).parent.parent, project.path("toolkit")
    (toolkit / "lib").mkdir(parents=True)
    for path in (real / "bin", real / "nvvm", *real.glob("lib/libnv*")):
        (toolkit / path.relative_to(real)).symlink_to(path)
    arguments = ("-q", "GPU_FRONTEND=nvrtc", f"GPU_CUDA_PATH={toolkit}")
    assert project.run(*arguments).returncode == 0
    (builtins,) = toolkit.glob("lib/libnvrtc-builtins*")
    data = builtins.read_bytes()
    builtins.unlink()
    builtins.write_bytes(data + b"\0")
    assert project.run(*arguments).returncode == 1


def test_by_hand(project: Project) -> None:
    prepare(project, "nvrtc")
    for name in ("nvcc", "nvrtc"):
        made = project.command("source", "src/k.cu", "--arch", "sm_90", "-I", "inc", f"--frontend={name}", "-o", f"{name}.ptx")
        assert made.returncode == 0, made.output
        assert ".visible .entry count(" in project.read(f"{name}.ptx")


def test_an_unknown_front_end_is_refused(project: Project) -> None:
    prepare(project, "gcc")
    assert "GPU_FRONTEND=gcc is not known" in project.fail().output


def test_the_doctor_says_what_auto_comes_to(project: Project) -> None:
    told = project.command("doctor")
    assert [line for line in told.stdout.splitlines() if line.startswith("front end of .cu: clang 2")]
