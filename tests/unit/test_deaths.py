from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from scons_gpu.errors import ToolError, ToolKilledError, UnsupportedArchError
from scons_gpu.lower.options import LowerOptions
from scons_gpu.workers.deaths import NEEDS, death
from scons_gpu.workers.output import LIMIT, condense
from scons_gpu.workers.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HALF = "<2 x half> zeroinitializer"
HALVES = "{<2 x half>, <2 x half>, <2 x half>, <2 x half>"
# intrinsic's prefix → (result, call), the last architecture without it, the PTX version at which it exists
CALLS = {
    "llvm.nvvm.barrier.cluster.": ("void", "llvm.nvvm.barrier.cluster.wait()", "sm_80", 80),
    "llvm.nvvm.read.ptx.sreg.cluster": ("i32", "llvm.nvvm.read.ptx.sreg.cluster.ctaid.x()", "sm_80", 80),
    "llvm.nvvm.is_explicit_cluster": ("i1", "llvm.nvvm.is_explicit_cluster()", "sm_80", 80),
    "llvm.nvvm.mapa": ("ptr", "llvm.nvvm.mapa(ptr %p, i32 0)", "sm_80", 80),
    "llvm.nvvm.getctarank": ("i32", "llvm.nvvm.getctarank(ptr %p)", "sm_80", 80),
    "llvm.nvvm.cp.async.bulk.": ("void", "llvm.nvvm.cp.async.bulk.commit.group()", "sm_80", 80),
    "llvm.nvvm.fence.proxy.": ("void", "llvm.nvvm.fence.proxy.tensormap_generic.release.cta()", "sm_80", 83),
    "llvm.nvvm.fence.sc.cluster": ("void", "llvm.nvvm.fence.sc.cluster()", "sm_80", 80),
    "llvm.nvvm.tensormap.replace.": ("void", "llvm.nvvm.tensormap.replace.rank(ptr addrspace(1) %g, i32 1)", "sm_90", 83),
    "llvm.nvvm.elect.sync": ("{i32, i1}", "llvm.nvvm.elect.sync(i32 -1)", "sm_80", 80),
    "llvm.nvvm.griddepcontrol.": ("void", "llvm.nvvm.griddepcontrol.wait()", "sm_80", 80),
    "llvm.nvvm.setmaxnreg.": ("void", "llvm.nvvm.setmaxnreg.inc.sync.aligned.u32(i32 96)", "sm_90", 80),
    "llvm.nvvm.wgmma.": ("void", "llvm.nvvm.wgmma.fence.sync.aligned()", "sm_90", 80),
    "llvm.nvvm.stmatrix.": ("void", "llvm.nvvm.stmatrix.sync.aligned.m8n8.x1.b16.p3(ptr addrspace(3) %s, i32 1)", "sm_80", 80),
    "llvm.nvvm.tcgen05.": ("void", "llvm.nvvm.tcgen05.alloc.shared.cg1(ptr addrspace(3) %s, i32 32)", "sm_90a", 86),
    "llvm.nvvm.clusterlaunchcontrol.": (
        "void",
        "llvm.nvvm.clusterlaunchcontrol.try_cancel.async.shared(ptr addrspace(3) %s, ptr addrspace(3) %s)",
        "sm_90",
        86,
    ),
    "llvm.nvvm.cp.async.": ("void", "llvm.nvvm.cp.async.ca.shared.global.16(ptr addrspace(3) %s, ptr addrspace(1) %g)", "sm_75", 70),
    "llvm.nvvm.mbarrier.": ("void", "llvm.nvvm.mbarrier.init(ptr %p, i32 1)", "sm_75", 70),
    "llvm.nvvm.redux.sync.f": ("float", "llvm.nvvm.redux.sync.fmin(float 1.0, i32 -1)", "sm_90", 86),
    "llvm.nvvm.redux.sync.": ("i32", "llvm.nvvm.redux.sync.add(i32 1, i32 -1)", "sm_75", 70),
    "llvm.nvvm.ldmatrix.": ("i32", "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x1.b16.p3(ptr addrspace(3) %s)", "sm_70", 65),
    "llvm.nvvm.mma.": (HALVES + "}", f"llvm.nvvm.mma.m8n8k4.row.col.f16.f16({', '.join([HALF] * 8)})", "sm_60", 64),
    "llvm.nvvm.wmma.": (f"{HALVES}, {HALVES[1:]}}}", "llvm.nvvm.wmma.m16n16k16.load.a.row.f16.p3(ptr addrspace(3) %s)", "sm_60", 60),
    "llvm.nvvm.match.": ("i32", "llvm.nvvm.match.any.sync.i32(i32 -1, i32 1)", "sm_60", 60),
    "llvm.nvvm.nanosleep": ("void", "llvm.nvvm.nanosleep(i32 1)", "sm_60", 63),
}
LEAST_PTX = {"sm_70": 60, "sm_75": 63, "sm_80": 70, "sm_90": 78, "sm_90a": 80, "sm_100": 86, "sm_100a": 86}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


def calling(prefix: str, folder: Path) -> str:
    result, call, _, _ = CALLS[prefix]
    left, use = ("", "") if result == "void" else ("%v = ", f"  store {result} %v, ptr %p\n")
    text = f"  {left}call {result} @{call}\n{use}  ret void\n"
    (folder / "k.ll").write_text(
        f'target triple = "nvptx64-nvidia-cuda"\ndefine ptx_kernel void @k(ptr %p, ptr addrspace(1) %g, ptr addrspace(3) %s) {{\n{text}}}\n'
    )
    return str(folder / "k.ll")


@pytest.mark.parametrize("need", NEEDS, ids=lambda need: need.instruction)
def test_a4_an_intrinsic_below_its_architecture_names_what_it_needs(need: object, pool: Pool, tmp_path: Path) -> None:
    _, call, below, version = CALLS[need.prefix]
    file = calling(need.prefix, tmp_path)
    with pytest.raises(UnsupportedArchError) as error:
        pool.run("lower", file=file, arch=below, options=LowerOptions(ptx=max(80, version)))
    intrinsic = call.partition("(")[0].removesuffix(".p3")
    assert f"{below}: {intrinsic} ({need.instruction}) needs {need.arch}" in str(error.value)
    newest = max(version, LEAST_PTX[need.arch])
    assert pool.run("lower", file=file, arch=need.arch, options=LowerOptions(ptx=newest))["bytes"]


def test_a4_where_the_architecture_suffices_the_version_is_to_blame(pool: Pool, tmp_path: Path) -> None:
    file = calling("llvm.nvvm.fence.proxy.", tmp_path)
    with pytest.raises(UnsupportedArchError, match="for this architecture and PTX version"):
        pool.run("lower", file=file, arch="sm_90", options=LowerOptions(ptx=78))


def test_a4_other_things_that_are_too_new_keep_llvms_words(pool: Pool, tmp_path: Path) -> None:
    file = tmp_path / "k.ll"
    file.write_text(
        'target triple = "nvptx64-nvidia-cuda"\n'
        "define ptx_kernel void @k(ptr %s) {\n  %v = load i32, ptr %s\n  %b = alloca i8, i32 %v\n  store ptr %b, ptr %s\n  ret void\n}\n"
    )
    with pytest.raises(UnsupportedArchError, match=r"requires target sm_52") as error:
        pool.run("lower", file=str(file), arch="sm_60", options=LowerOptions(ptx=60))
    assert error.value.kernel == "k"
    with pytest.raises(UnsupportedArchError, match=r"Minimum required PTX version is 7\.8"):
        pool.run("lower", file=str(file), arch="sm_90", options=LowerOptions(ptx=70))


def test_l10_a_signal_is_named_with_its_memory() -> None:
    error = death(code=-signal.SIGKILL, said="", peak_kib=2048, arch="sm_90")
    assert isinstance(error, ToolKilledError)
    assert "the LLVM worker was killed by SIGKILL at 2 MiB" in str(error)
    assert "out of memory" in error.hint


def test_l10_a_crash_is_not_taken_for_a_refusal() -> None:
    said = "python: X.cpp:1: void f(): Assertion `x' failed.\n"
    error = death(code=-signal.SIGABRT, said=said, peak_kib=0, arch="sm_90")
    assert isinstance(error, ToolKilledError)
    assert "Assertion `x' failed" in str(error)
    crash = death(code=-signal.SIGSEGV, said="error: something before\n", peak_kib=0, arch="")
    assert isinstance(crash, ToolKilledError)


def test_llvms_other_last_words_are_a_tool_error() -> None:
    error = death(code=-signal.SIGABRT, said="LLVM ERROR: unsupported thing\n", peak_kib=0, arch="sm_90")
    assert type(error) is ToolError
    assert "unsupported thing" in str(error)


def test_t7_a_flood_is_condensed() -> None:
    said = "again\n" * 1000 + "once\n" + "".join(f"line {i}\n" for i in range(100))
    lines = condense(said).splitlines()
    assert lines[:2] == ["again (1000 times)", "once"]
    assert len(lines) == LIMIT + 1
    assert lines[-1] == "... and 82 more lines"
    assert condense("a\n\nb\n") == "a\nb"
    assert condense("") == ""
