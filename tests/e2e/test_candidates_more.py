"""M11-M14 with awkward inputs: what two hundred kernels and a few hurried engineers would bring."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from project import CUDA, Project, ll
from test_candidates import FILL, chosen, tuned, tuning
from toolkits import Toolkit

from scons_gpu.tune.dump import read_dump

if TYPE_CHECKING:
    from scons_gpu.toolchain.tools import Toolchain

ONE = 'env.GpuProgram("build/net", env.GpuModule("one", ["k.cu"], candidates={candidates}))\n'
DEFAULT = "#ifndef V\n#define V 1\n#endif\n"
KERNEL = 'extern "C" __global__ void k(float* d) { for (int i = 0; i < V; ++i) d[i] += sqrtf(d[i]); }\n'
SLOW = 'case "$*" in *--version*) ;; *) sleep 0.3; [ "$(ulimit -t)" = unlimited ] || kill -XCPU $$;; esac'
"""Before ptxas: whoever is limited is ended, as if it had taken too long."""


def one(project: Project, source: str, candidates: str) -> Project:
    """A module of one source whose kernel k has candidates."""
    project.write("SConstruct", CUDA + ONE.format(candidates=candidates))
    project.write("k.cu", source)
    return project


@pytest.fixture
def limited(toolchain: Toolchain, tmp_path: Path) -> list[str]:
    """Arguments for a build in which every limit is too low."""
    assert toolchain.ptxas is not None
    toolkit = Toolkit(toolchain, tmp_path / "toolkit")
    toolkit.wrap("ptxas", Path(toolchain.ptxas.path), before=SLOW)
    return ["GPU_CANDIDATE_SECONDS=9", f"GPU_CUDA_PATH={toolkit.root}"]


# what fails


@pytest.mark.parametrize("jobs", ["-j1", "-j2"])
def test_m11_a_limit_holds_for_candidates_alone(project: Project, limited: list[str], jobs: str) -> None:
    """The second module has no candidates, and its kernel is a limited one of the first."""
    one(project, DEFAULT + KERNEL, '{"k": [{"V": 4}, {"V": 1}, {"V": 3}]}')
    project.edit("SConstruct", 'env.GpuProgram("build/net", ', "one = ")
    project.edit("SConstruct", '{"V": 3}]}))', '{"V": 3}]})')
    project.write("SConstruct", project.read("SConstruct") + 'two = env.GpuModule("two", ["k.cu"])\n')
    project.write(
        "SConstruct", project.read("SConstruct") + 'env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[one, two]))\n'
    )
    said = project.build(jobs, *limited).stderr
    assert "V=3 cannot be compiled: ptxas took more CPU time than it may" in said
    assert project.kernels("two") == ["k"]
    assert chosen(project, "one", "k")["of"] == 3


def test_m11_a_first_candidate_has_no_limit_where_a_later_one_comes_to_the_same(project: Project, limited: list[str]) -> None:
    one(project, DEFAULT + KERNEL, '{"k": [{}, {"V": 1}, {"V": 2}]}').build(*limited)
    assert (chosen(project, "one", "k")["candidate"], chosen(project, "one", "k")["failed"]) == ("as written", 1)


def test_m11_a_header_that_is_missing_fails_its_candidate_alone(project: Project) -> None:
    source = DEFAULT + '#if V == 2\n#include "two.h"\n#else\n#define ADD d[1] * sqrtf(d[2]) + sqrtf(d[3])\n#endif\n'
    one(project, source + 'extern "C" __global__ void k(float* d) { d[threadIdx.x] = ADD; }\n', '{"k": [{"V": 1}, {"V": 2}]}').build()
    assert chosen(project, "one", "k")["by"] == "only"
    project.idle()
    project.write("two.h", "#define ADD 1\n")
    project.build()
    assert (project.compiled(), chosen(project, "one", "k")["candidate"]) == (["k [V=2]"], "V=2")
    project.idle()
    project.path("two.h").unlink()
    project.build()
    assert (project.compiled(), chosen(project, "one", "k")["candidate"]) == ([], "V=1")
    project.idle()


def test_m11_what_llvm_refuses_fails_every_candidate_that_is_made_of_it(project: Project) -> None:
    """Two candidates differ for the assembler alone, so one PTX is lacking for both."""
    source = ll("a", "b=3.0").replace("%new = fadd float %old, 1.0", "%new = call float @llvm.nvvm.redux.sync.fmin(float %old, i32 -1)")
    values = '[{"GPU_MAXRREGCOUNT": 32}, {"GPU_MAXRREGCOUNT": 64}]'
    project.write("SConstruct", f'env.GpuProgram("build/net", env.GpuModule("net", ["a.ll"], candidates={{"a": {values}}}))\n')
    project.write("a.ll", source + "declare float @llvm.nvvm.redux.sync.fmin(float, i32)\n")
    for _ in range(2):  # found out, and kept
        said = project.fail().stderr
        assert "kernel a of net (sm_90): none of its 2 candidates can be compiled" in said
        assert said.count("needs sm_100a\n") == 2
        assert "damaged" not in said
