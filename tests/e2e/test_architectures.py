"""A: architectures."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from project import CUDA, Project, ll

if TYPE_CHECKING:
    from scons_gpu.toolchain.tools import Toolchain

NET = """
env["GPU_ARCHS"] = {archs!r}
env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))
"""


def build(project: Project, *archs: str, kernels: tuple[str, ...] = ("one=1.0", "two=2.0")) -> None:
    project.write("SConstruct", NET.format(archs=list(archs)))
    project.write("net.ll", ll(*kernels))
    project.build("-j2")


def packed(project: Project, toolchain: Toolchain, module: str = "net") -> list[str]:
    """What the fatbin holds, as cuobjdump lists it."""
    assert toolchain.cuobjdump is not None
    lines = []
    for flag in ("-lelf", "-lptx"):
        argv = [toolchain.cuobjdump.path, flag, str(project.path(f"build/net/{module}.fatbin"))]
        lines += subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split(":")[-1].strip() for line in lines if "sm_" in line or "compute_" in line]


SPELLINGS = {
    "90": ["sm_90"],
    "sm_90a": ["sm_90a"],
    "90a-real": ["sm_90a"],
    "90-virtual": ["compute_90"],
    "compute_90": ["compute_90"],
    "8.6+PTX": ["sm_86", "compute_86"],
    "sm_100f": ["sm_100f"],
    "sm_90;80,90-real": ["sm_90", "sm_80"],
}


def test_a1_spellings_reach_the_manifest_in_order(project: Project) -> None:
    project.write(
        "SConstruct",
        "".join(
            f'env.GpuProgram("build/{number}", env.GpuModule("net", ["net.ll"], GPU_ARCHS={given!r}))\n'
            for number, given in enumerate(SPELLINGS)
        ),
    )
    project.write("net.ll", ll("one"))
    project.build("-j2")
    manifests = [project.manifest(f"build/{number}") for number in range(len(SPELLINGS))]
    assert [manifest["archs"] for manifest in manifests] == list(SPELLINGS.values())
    assert [sorted(manifest["modules"]["net"]["images"]) for manifest in manifests] == [sorted(meant) for meant in SPELLINGS.values()]


def test_a1_a_virtual_one_puts_ptx_into_the_fatbin(project: Project, toolchain: Toolchain) -> None:
    build(project, "sm_80", "compute_90", "80")
    assert len(packed(project, toolchain)) == 2
    assert "sm_80" in packed(project, toolchain)[0]
    assert "sm_90" in packed(project, toolchain)[1]
    ptx = project.read("build/net/net/compute_90.ptx")
    assert ptx.count(".entry") == 2
    assert ".target sm_90" in ptx


def test_a2_adding_one_builds_that_one_only(project: Project) -> None:
    build(project, "sm_80")
    before = project.files("build/net/net/sm_80*")
    build(project, "sm_80", "sm_90")
    assert {record["arch"] for record in project.last() if record["stage"] in ("source", "split", "plan", "lower", "assemble", "link")} == {
        "sm_90"
    }
    assert project.compiled() == ["one", "two"]
    assert project.files("build/net/net/sm_80*") == before
    project.idle()


@pytest.mark.parametrize("archs", [("sm_90", "compute_90"), ("compute_90", "sm_90")])
def test_a2_clang_reads_a_source_once_for_a_gpu_and_its_dialect(project: Project, archs: tuple[str, ...]) -> None:
    project.write("k.cu", "__global__ void k(int* p) { *p = 1; }\n")
    project.write("SConstruct", f'{CUDA}env["GPU_ARCHS"] = {[*archs]}\nenv.GpuProgram("build/net", env.GpuModule("net", ["k.cu"]))\n')
    steps = [line for line in project.build("GPU_SOURCECOMSTR=").lines if "k.cu.sm_90.ll" in line or "k.cu.compute_90.ll" in line]
    made = [line.split()[0] for line in steps]
    assert (made, steps[1].split()[1:]) == (
        ["scons-gpu", "cp"],
        [str(project.path(f"build/net/net/k.cu.{arch}.ll")) for arch in ("sm_90", "compute_90")],
    )
    assert project.done()["source"] == 2
    assert project.read("build/net/net/k.cu.compute_90.ll") == project.read("build/net/net/k.cu.sm_90.ll")
    project.idle()
    project.edit("k.cu", "1", "2")
    project.build()
    assert project.compiled() == ["k(int*)"] * 2


def test_a2_sm_90_and_sm_90a_are_two(project: Project, toolchain: Toolchain) -> None:
    build(project, "sm_90", "sm_90a", kernels=("one",))
    assert project.compiled() == ["one", "one"]
    units = project.manifest()["modules"]["net"]["kernels"]["one"]["archs"]
    assert units["sm_90"]["unit"] != units["sm_90a"]["unit"]
    assert len(packed(project, toolchain)) == 2


@pytest.mark.parametrize("arch", ["compute_90a", "compute_100f"])
def test_a2_ptx_of_one_family_is_not_offered_to_other_gpus(project: Project, arch: str) -> None:
    build(project, arch, kernels=("one",))
    # The driver offers PTX to what its target allows: with the suffix, to that family only.
    assert f".target {arch.replace('compute', 'sm')}" in project.read(f"build/net/net/{arch}.ptx")


@pytest.mark.parametrize("arch", ["sm_77", "sm_9000", "compute_1", "sm_90x", "rtx"])
def test_a3_an_unknown_one_is_an_error_at_read_time_that_names_known_ones(project: Project, arch: str) -> None:
    project.write("SConstruct", NET.format(archs=["sm_80", arch]))
    project.write("net.ll", ll("one"))
    result = project.fail()
    assert arch in result.output
    assert "sm_90" in result.output
    assert "error: " in result.output
    assert not project.exists("build")


def test_a3_none_at_all_is_an_error_with_an_example(project: Project) -> None:
    project.write("SConstruct", NET.format(archs=[]))
    project.write("net.ll", ll("one"))
    result = project.fail()
    assert "GPU_ARCHS" in result.output
    assert 'GPU_ARCHS=["' in result.output


ASM = '  %sum = call i32 asm sideeffect "redux.sync.add.s32 $0, $1, 0xffffffff;", "=r,r"(i32 %index)\n  ret void'
INTRINSIC = "  %sum = call i32 @llvm.nvvm.redux.sync.add(i32 %index, i32 -1)\n  store volatile i32 %sum, ptr addrspace(1) %data\n  ret void"


@pytest.mark.parametrize(
    ("body", "words", "lowered"),
    [(ASM, ["redux", "sm_80"], ["fine", "modern"]), (INTRINSIC, ["redux"], ["fine"])],
    ids=["asm", "intrinsic"],
)
def test_a4_what_the_architecture_lacks_is_named(project: Project, body: str, words: list[str], lowered: list[str]) -> None:
    project.write("SConstruct", NET.format(archs=["sm_75"]))
    text = ll("fine=1.0", "modern=2.0")
    head, tail = text.rsplit("  ret void", 1)
    declared = "" if "asm" in body else "declare i32 @llvm.nvvm.redux.sync.add(i32, i32)\n"
    project.write("net.ll", head + body + tail + declared)
    result = project.fail("-k")
    assert "error: kernel modern of net/net.ll (sm_75)" in result.stderr
    assert [word for word in words if word not in result.stderr] == []
    assert project.compiled() == lowered
    assert not project.exists("build/net/net.fatbin")

    project.edit("SConstruct", "sm_75", "sm_80")
    project.build()
    assert project.kernels("net", "sm_80") == ["fine", "modern"]
