"""T10: nothing around a build shows in what it makes. All artefacts, from IR to manifest, have equal bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from project import HEAD, Project, ll

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MODULES = """\
env = env.Clone(GPU_ARCHS=["sm_90", "compute_90"], CPPPATH=["include"])
ops = env.GpuModule("ops", ["ops.cu", "net.ll"])
lined = env.GpuModule("lined", ["ops.cu"], GPU_LINEINFO=1, GPU_ARCHS="sm_90")
loose = env.GpuModule("loose", ["loose.ll"], GPU_LINK="bundle", GPU_ARCHS="sm_90")
net = env.GpuModule("net", ["net.ll"], submodules=[{submodules}])
env.GpuProgram("build/net", net)
"""
ALL = ("ops", "lined", "loose")
CUDA = """\
#include "value.h"
#include <cassert>
struct Pair { float first, second; };
static __device__ float memo;
__constant__ float weights[16];
template <int N> __global__ void scale(Pair* data) { assert(data); data[threadIdx.x].first *= N + VALUE; }
template __global__ void scale<2>(Pair*);
__global__ void wave(float* data) { memo += *data; *data = sinf(*data) * weights[threadIdx.x]; }
__global__ void named(const char** text) { *text = __FILE__ __DATE__ __TIME__; }
"""
ARTEFACTS = {".ll", ".json", ".ptx", ".cubin", ".fatbin", ".gpubundle"}


def tree(root: Path, *, submodules: tuple[str, ...] = ALL, environ: Mapping[str, str] | None = None) -> Project:
    """A program with all that a build can make."""
    project = Project(root, environ=environ)
    project.write("SConstruct", HEAD + MODULES.format(submodules=", ".join(submodules)))
    project.write("include/value.h", "#define VALUE 1\n")
    project.write("ops.cu", CUDA)
    project.write("net.ll", ll("one=1.0", "two=2.0"))
    project.write("loose.ll", ll("two=2.0", "three=3.0"))
    return project


def artefacts(project: Project) -> dict[str, bytes]:
    """All that the build folder holds, and the store's slices, PTX and objects."""
    made = project.files("build/**/*")
    assert {os.path.splitext(name)[1] for name in made} == {*ARTEFACTS, ".d"}  # noqa: PTH122 - a name, not a path
    kept = {
        name: data for name, data in project.files(".gpu-store/*/*/*").items() if name.endswith((".ptx", ".cubin")) or "/slice/" in name
    }
    assert len(kept) > 12
    return {**made, **kept}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a plain build makes."""
    project = tree(tmp_path_factory.mktemp("plain") / "project")
    project.build("-j1")
    return artefacts(project)


def differences(found: dict[str, bytes], plain: dict[str, bytes]) -> list[str]:
    return [name for name in sorted({*found, *plain}) if found.get(name) != plain.get(name)]


def same(project: Project, plain: dict[str, bytes], *args: str) -> None:
    project.build(*args)
    assert differences(artefacts(project), plain) == []


def test_t10_another_folder_another_order_of_modules_and_more_jobs(tmp_path: Path, plain: dict[str, bytes]) -> None:
    same(tree(tmp_path / ("long" * 20) / "with a space", submodules=ALL[::-1]), plain, "-j2")


def test_t10_another_environment_umask_and_number_of_cpus(tmp_path: Path, plain: dict[str, bytes]) -> None:
    home = tmp_path / "home"
    home.mkdir()
    changed = {
        "HOME": str(home),
        "TZ": "Pacific/Kiritimati",
        "LC_ALL": "tr_TR.UTF-8",
        "LANG": "de_DE.UTF-8",
        "PYTHONHASHSEED": "4242",
        "USER": "somebody",
        "TMPDIR": str(home),
        "CPATH": "/nowhere",
        "COLUMNS": "20",
        "CLICOLOR_FORCE": "1",
        "SOURCE_DATE_EPOCH": "1234567890",
    }
    project = tree(tmp_path / "project", environ={**os.environ, **changed})
    argv = ["bash", "-c", f"umask 077; exec taskset -c {min(os.sched_getaffinity(0))} {sys.executable} -m SCons -j2"]
    done = subprocess.run(argv, cwd=project.root, env=project.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert project.path("build/net.json").stat().st_mode & 0o777 == 0o600
    assert differences(artefacts(project), plain) == []


@pytest.mark.slow
def test_t10_a_warm_store(tmp_path: Path, plain: dict[str, bytes]) -> None:
    """Filled by another history: other kernels first, then each source in a version that is edited."""
    project = tree(tmp_path / "project")
    project.edit("ops.cu", "N + VALUE", "N - VALUE")
    project.edit("net.ll", "2.0", "2.5")
    project.edit("SConstruct", '"ops.cu", "net.ll"', '"net.ll"')
    project.build("-j2")
    project.edit("SConstruct", '"ops", ["net.ll"]', '"ops", ["ops.cu", "net.ll"]')
    project.edit("ops.cu", "N - VALUE", "N + VALUE")
    project.edit("net.ll", "2.5", "2.0")
    project.build()
    found = artefacts(project)
    assert differences({name: found[name] for name in plain if name in found}, plain) == []


@pytest.mark.slow
def test_t10_steps_in_processes_of_their_own(tmp_path: Path, plain: dict[str, bytes]) -> None:
    """Each artefact asked for by name, in a build of its own."""
    project = tree(tmp_path / "project")
    for name in ("build/net/loose.gpubundle", "build/net/ops/sm_90.cubin", "build/net/ops/ops.cu.compute_90.index.json"):
        project.build(name)
    same(project, plain)
