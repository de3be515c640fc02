"""M1-M10 for module trees however they are spelled: SConscripts, loops, long chains, wide roots; and the example of docs/tuning.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from project import CUDA, HEAD, Project, ll

DOCS = Path(__file__).parents[2] / "docs"


def test_m1_a_third_branch_that_comes_later_compiles_nothing(project: Project) -> None:
    project.write(
        "SConstruct",
        'modules = [env.GpuModule(name, [f"{name}.ll"]) for name in ("then", "else")]\nenv.GpuProgram("build/net", env.GpuModule("net", [], submodules=modules))\n',
    )
    for name in ("then", "else", "third"):
        project.write(f"{name}.ll", ll("relu=0.5"))
    project.build()
    counts = project.stats()
    assert (counts["compiled"], counts["reused"], counts["linked"]) == (1, 0, 2)
    project.edit("SConstruct", '("then", "else")', '("then", "else", "third")')
    project.build()
    counts = project.stats()
    assert (counts["compiled"], counts["reused"], counts["needed"], counts["linked"]) == (0, 1, 1, 1)


def test_m2_a_chain_of_two_hundred_modules_in_sconscripts(project: Project) -> None:
    """Each module in an SConscript of its own folder, with the module behind it as its submodule; one of four has an image."""
    project.write(
        "SConstruct",
        HEAD
        + 'previous = []\nfor n in range(200):\n    previous = SConscript(f"m{n}/SConscript", exports="env n previous")\nenv.GpuProgram("build/net", previous)\n',
    )
    for number in range(200):
        project.write(
            f"m{number}/SConscript",
            'Import("env", "n", "previous")\nmade = env.GpuModule(f"m{n}", ["k.ll"], submodules=previous, bypass=n % 4 != 0)\nReturn("made")\n',
        )
        project.write(f"m{number}/k.ll", ll(f"k={number % 3 + 1}.0"))
    project.build("-j2")
    counts = project.stats()
    assert (counts["modules"], counts["references"], counts["unique"], counts["compiled"], counts["linked"]) == (50, 50, 3, 3, 50)
    modules = project.manifest()["modules"]
    assert len(modules) == 200
    assert modules["m9"]["bypass"]
    assert modules["m9"]["kernels"] == {}
    assert modules["m9"]["submodules"] == ["m8"]
    assert modules["m8"]["kernels"]["k"]["source"] == "m8/k.ll"
    project.build("build/net/m4.fatbin")
    project.idle()
    project.edit("m100/k.ll", ll("k=2.0"), ll("k=7.0"))
    project.build()
    assert project.done() == {"source": 1, "split": 1, "plan": 1, "lower": 1, "assemble": 1, "link": 1, "pack": 1, "manifest": 1}


def test_m7_a_root_of_five_hundred_modules_declared_in_a_loop(project: Project) -> None:
    """One of five has an image."""
    project.write(
        "SConstruct",
        'modules = [env.GpuModule(f"m{n}", [f"k{n % 4}.ll"], bypass=n % 5 != 0) for n in range(500)]\nenv.GpuProgram("build/net", env.GpuModule("net", ["root.ll"], submodules=modules + modules[:5]))\n',
    )
    project.write("root.ll", ll("root=9.0"))
    for number in range(4):
        project.write(f"k{number}.ll", ll(f"k{number}={number + 1}.0", "common=0.5"))
    result = project.build("-j2")
    counts = project.stats()
    assert (counts["modules"], counts["references"], counts["unique"], counts["compiled"], counts["linked"]) == (101, 201, 6, 6, 101)
    assert "units 201: 6 compiled, 195 shared · 101 images" in result.stdout
    project.idle()


def test_the_worked_example_of_the_docs_runs(project: Project) -> None:
    """The first block of docs/tuning.md, with sources as it describes them."""
    block = re.search(r"```python\n(.*?)```", (DOCS / "tuning.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    text = (
        block[1]
        .replace('tools=["default", "gpu"], ', 'tools=["gpu"], toolpath=[scons_gpu.TOOLPATH], ')
        .replace("fills =", f"{CUDA}fills =", 1)
    )
    assert "toolpath" in text
    project.write("SConstruct", f"import scons_gpu\n{text}")
    project.write(
        "gemm.cu",
        """
#ifndef TILE
#define TILE 8
#endif
__global__ void gemm(const float* a, float* c) {
    __shared__ float tile[TILE * TILE];
    for (int i = threadIdx.x; i < TILE * TILE; i += 32) tile[i] = a[i];
    float sum = 0;
    for (int i = 0; i < TILE; ++i) sum += tile[(threadIdx.x * i) % (TILE * TILE)];
    c[threadIdx.x] = sum;
}
""",
    )
    project.write("fill.cu", 'extern "C" __global__ void fill(float* data) { data[threadIdx.x] = 0; }\n')
    project.write("net.cu", "__global__ void net(float* data) { data[threadIdx.x] += 1; }\n")
    said = project.build("-j2").stderr
    assert "TILE=256 cannot be compiled: its 262144 bytes of __shared__ variables are more than the 49152" in said
    ops = project.manifest()["modules"]["ops"]["kernels"]["_Z4gemmPKfPf"]["archs"]
    for arch in ("sm_80", "sm_90"):
        assert ops[arch]["chosen"]["by"] == "resources"
        assert (ops[arch]["chosen"]["of"], ops[arch]["chosen"]["failed"]) == (4, 1)
    assert json.loads(project.command("compare", "build/net.json", "--json").stdout)["counts"]["different"] == 0


@pytest.mark.parametrize("folder", ["variant", ""])
def test_m9_candidates_in_a_variant_folder(project: Project, folder: str) -> None:
    where = f'variant_dir="{folder}", duplicate=0, ' if folder else ""
    project.write("SConstruct", HEAD + CUDA + f'SConscript("src/SConscript", {where}exports="env")\n')
    project.write(
        "src/SConscript",
        'Import("env")\nops = env.GpuModule("ops", ["k.cu"], candidates={"k": [{"TIMES": 3}, {"TIMES": 2}]})\nother = env.GpuModule("other", ["o.ll"])\n'
        'env.GpuProgram("net", env.GpuModule("net", [], submodules=[ops, other]))\n',
    )
    project.write(
        "src/k.cu",
        "#ifndef TIMES\n#define TIMES 1\n#endif\n"
        'extern "C" __global__ void k(float* data) { for (int i = 0; i < TIMES; ++i) data[i] = i; }\n',
    )
    project.write("src/o.ll", ll("o"))
    place = f"{folder or 'src'}/net"
    project.build(f"{place}/ops.fatbin")
    assert project.compiled() == ["k [TIMES=2]", "k [TIMES=3]"]
    project.build(f"{place}.json")
    assert project.compiled() == ["o"]
    assert project.manifest(place)["modules"]["ops"]["kernels"]["k"]["archs"]["sm_90"]["chosen"]["candidate"] == "TIMES=2"
