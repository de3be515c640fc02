"""`scons-gpu why`: one project, many edits, and each is explained by what was edited and by nothing else."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from project import CUDA, Project, ll
from toolkits import Toolkit, write

from scons_gpu.inspect.ask import ask, lines
from scons_gpu.inspect.causes import sentence

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scons_gpu.inspect.why import Answer
    from scons_gpu.toolchain.tools import Toolchain

SCONSTRUCT = (
    """\
import scons_gpu
env = Environment(tools=["gpu"], toolpath=[scons_gpu.TOOLPATH], GPU_ARCHS=["sm_90"])
"""
    + CUDA
    + """\
env.Append(GPU_CLANGFLAGS=["-include", "before.h"])
env.Command("made.h", "made.txt", Copy("$TARGET", "$SOURCE"))
cuda = env.GpuModule("cuda", ["k.cu"], CPPPATH=["."], CPPDEFINES={"N": 4})
plain = env.GpuModule("plain", ["one.ll", "two.ll"])
again = env.GpuModule("again", ["one.ll"])
tuned = env.GpuModule("tuned", ["tuned.ll"], GPU_LINK="image", candidates={"tuned": [{}, {"GPU_MAXRREGCOUNT": 32}]})
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[cuda, plain, again, tuned]))
"""
)
CU = """\
#include "near.h"
#include "made.h"
struct Pair { float a; int b; };
__constant__ const float weights[4] = {1, 2, 3, 4};
__device__ __noinline__ float helper(float x) { return x + NEAR + FAR; }
extern "C" __global__ void k(float* p, Pair pair) { p[threadIdx.x] = helper(p[0]) * N + MADE + BEFORE + pair.b + weights[threadIdx.x & 3]; }
extern "C" __global__ void quiet(float* p) { p[threadIdx.x] = 1; }
"""
LIBDEVICE = """
declare float @__nv_sinf(float)
define ptx_kernel void @wave(ptr addrspace(1) %data) {
  %old = load float, ptr addrspace(1) %data, align 4
  %new = call float @__nv_sinf(float %old)
  store float %new, ptr addrspace(1) %data, align 4
  ret void
}
"""
CALLED = """
%pair = type { float, i32 }
@table = internal constant [2 x float] [float 1.0, float 2.0]
define internal float @callee(float %x, i32 %i) noinline {
  %place = getelementptr [2 x float], ptr @table, i32 0, i32 %i
  %y = load float, ptr %place
  %z = fadd float %x, %y
  ret float %z
}
define ptx_kernel void @calls(ptr addrspace(1) %data, ptr byval(%pair) %given) {
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %x = load float, ptr %given
  %z = call float @callee(float %x, i32 %i)
  store float %z, ptr addrspace(1) %data, align 4
  ret void
}
"""


ENTRY = {
    "arch": "sm_90",
    "candidates": 2,
    "device": {"capability": "9.0", "driver": "580.1", "name": "NVIDIA H200"},
    "spread": 0.02,
    "time_us": 12.5,
    "tools": {"llvm": "22.1.0", "ptxas": "13.5.37"},
}


@dataclass
class Script:
    """A project that is edited and built, and what `why` said after each build."""

    project: Project
    toolchain: Toolchain
    args: list[str] = field(default_factory=list)
    said: dict[str, list[Answer]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def store(self) -> Path:
        return self.project.path(".gpu-store")

    def edit(self, path: str, old: str, new: str) -> Callable[[], object]:
        return lambda: self.project.edit(path, old, new)

    def step(self, name: str, change: Callable[[], object], *asked: str, args: tuple[str, ...] = ()) -> None:
        """Does `change`, builds, and asks. Arguments stay for all later builds."""
        change()
        self.args += args
        self.project.build(*self.args)
        self.ask(name, *asked)

    def ask(self, name: str, *asked: str) -> None:
        for each in asked:
            answers = ask(self.store, str(self.project.path(each)) if "/" in each else each)
            self.said[f"{name}: {each}"] = list(answers)
            self.texts[f"{name}: {each}"] = "\n".join(lines(answers, self.store))


def another(path: Path, real: str, version: str, told: str) -> None:
    """Puts the tool behind a script that tells another version, and that nobody can follow."""
    place = path.with_name(f"{path.name}.real")
    place.write_text(real)
    write(
        path,
        f'#!/bin/sh\nreal=$(cat {place})\ncase "$*" in *--version*) "$real" "$@" | sed s/{version}/{told}/; exit;; esac\nexec "$real" "$@"\n',
    )


def nothing() -> None:
    """A step that changes no file."""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory, toolchain: Toolchain) -> Script:
    root = tmp_path_factory.mktemp("why")
    project, kit = Project(root / "project"), Toolkit(toolchain, root / "kit")
    for name, text in (("near", "#define NEAR 1\n#include <far.h>\n"), ("far", "#define FAR 2\n"), ("before", "#define BEFORE 3\n")):
        project.write(f"{name}.h", text)
    project.write("made.txt", "#define MADE 4\n")
    project.write("k.cu", CU)
    project.write("one.ll", ll("a", "b") + LIBDEVICE)
    project.write("two.ll", ll("c") + CALLED)
    project.write("tuned.ll", ll("tuned"))
    project.write("SConstruct", SCONSTRUCT)
    s = Script(project, toolchain)
    s.step("first", nothing, "a", "build/net.json", "k")
    sources(s)
    options(s)
    store(s)
    structure(s)
    tools(s, kit)
    return s


def sources(s: Script) -> None:
    s.step("source text", s.edit("one.ll", "@b(", "@bee("), "bee", "a", "build/net/plain/sm_90.cubin", "build/net.json")
    s.step("kernel", s.edit("two.ll", "fadd float %old, 1.0", "fadd float %old, 2.0"), "c", "calls")
    s.step("callee", s.edit("two.ll", "fadd float %x, %y", "fsub float %x, %y"), "calls", "c")
    s.step("constant table", s.edit("two.ll", "float 1.0, float 2.0", "float 1.0, float 3.0"), "calls")
    s.step("struct", s.edit("two.ll", "type { float, i32 }", "type { float, i64 }"), "calls")
    s.step("header", s.edit("near.h", "NEAR 1", "NEAR 10"), "k", "quiet", "build/net/cuda.fatbin")
    s.step("header through another", s.edit("far.h", "FAR 2", "FAR 20"), "k")
    s.step("generated header", s.edit("made.txt", "MADE 4", "MADE 40"), "k")
    s.step("included first", s.edit("before.h", "BEFORE 3", "BEFORE 30"), "k")
    s.step("define", s.edit("SConstruct", '{"N": 4}', '{"N": 8}'), "k", "quiet")
    s.step("front end's flag", s.edit("SConstruct", '["-include", "before.h"]', '["-include", "before.h", "-ffp-contract=off"]'), "k")
    s.step("comment", s.edit("k.cu", "struct Pair", "// a pair\nstruct Pair"), "k", "build/net/cuda/k.cu.sm_90.ll")


def options(s: Script) -> None:
    asked = ("a", "c", "build/net/plain/sm_90.cubin", "build/net.json")
    s.step("level", nothing, *asked, args=("GPU_OPT=2",))
    s.step("flush", nothing, *asked, args=("GPU_FTZ=1",))
    s.step("fast", nothing, *asked, "k", args=("GPU_FAST_MATH=1",))
    s.step("registers", nothing, *asked, args=("GPU_MAXRREGCOUNT=64",))
    s.step("assembler's flag", nothing, *asked, args=("GPU_PTXASFLAGS=--def-load-cache=cg",))
    s.step("lines", nothing, *asked, args=("GPU_LINEINFO=1",))
    s.step("debug", nothing, *asked, args=("GPU_DEBUG=1",))
    s.args = []
    s.step("defaults again", nothing, *asked)
    s.step("whole", nothing, *asked, args=("GPU_LINK=whole",))
    s.step("bundle", nothing, "a", "build/net/plain.gpubundle", args=("GPU_LINK=bundle",))
    s.args = []
    s.step("image again", nothing)
    s.step("provider", nothing, *asked, args=("GPU_PROVIDER=nvptxcompiler+nvjitlink",))
    s.args = []
    s.step("ptxas again", nothing, "a")


def store(s: Script) -> None:
    s.step("going back", s.edit("two.ll", "fadd float %old, 2.0", "fadd float %old, 1.0"), "c")

    def damage() -> None:
        name = s.project.manifest()["modules"]["plain"]["kernels"]["calls"]["archs"]["sm_90"]["object"]
        (s.store / "object" / name[:2] / name).write_bytes(b"short")
        s.project.edit("two.ll", "fadd float %old, 1.0", "fadd float %old, 4.0")

    s.step("damage", damage, "calls", "c")

    def lose() -> None:
        for kind in ("ptx", "object"):
            shutil.rmtree(s.store / kind)
        s.project.edit("two.ll", "fadd float %old, 4.0", "fadd float %old, 5.0")

    s.step("lost", lose, "calls", "c")
    s.step("removed", lambda: s.project.path("build/net/plain/sm_90.cubin").unlink(), "build/net/plain/sm_90.cubin", "c")
    s.step("altered", lambda: s.project.path("build/net/plain/sm_90.plan.json").write_text("{}"), "build/net/plain/sm_90.plan.json")

    def fail() -> None:
        s.project.edit("two.ll", "fadd float %old, 5.0", "fadd float %gone, 5.0")
        s.project.fail()
        s.project.edit("two.ll", "fadd float %gone, 5.0", "fadd float %old, 6.0")

    s.step("failed", fail, "c", "build/net/plain/two.ll.sm_90.ll")


def structure(s: Script) -> None:
    def move() -> None:
        whole = s.project.read("one.ll")
        start = whole.index("\ndefine ptx_kernel void @a(")
        end = whole.index("}\n", start) + 2
        s.project.write("one.ll", whole[:start] + whole[end:])
        s.project.write("two.ll", s.project.read("two.ll") + whole[start:end])

    s.step("moved", move, "a")
    s.step("added kernel", lambda: s.project.write("one.ll", s.project.read("one.ll") + ll("d").partition("tid.x()\n")[2]), "d", "bee")
    s.project.write("three.ll", ll("e"))
    s.step("added source", s.edit("SConstruct", '"two.ll"]', '"two.ll", "three.ll"]'), "e", "c", "build/net/plain/sm_90.cubin")
    s.step("added module", s.edit("SConstruct", "tuned])", 'tuned, env.GpuModule("more", ["three.ll"])])'), "e", "build/net.json")
    s.step("removed source", s.edit("SConstruct", ', "three.ll"]', "]"), "build/net/plain/sm_90.plan.json", "c")
    s.step("candidates", s.edit("SConstruct", '[{}, {"GPU_MAXRREGCOUNT": 32}]', '[{"GPU_OPT": 1}, {"GPU_MAXRREGCOUNT": 32}]'), "tuned")
    told = {"kernel": "tuned", "keys": {}, "values": {"GPU_MAXRREGCOUNT": "32"}, **ENTRY}
    text = json.dumps({"schema": "scons-gpu/tuning/1", "entries": [told]})
    s.step("tuning", lambda: s.project.write("tuning.json", text), "tuned", args=("GPU_TUNING=tuning.json",))
    s.step("architecture", s.edit("SConstruct", '["sm_90"]', '["sm_90", "sm_100"]'), "c", "build/net/plain.fatbin")
    s.step("lowering", nothing, "c", args=("GPU_LOWER=llvm",))


def tools(s: Script, kit: Toolkit) -> None:
    """The rest of the script: other tools, and a log that is gone."""
    s.args = []
    s.project.edit("SConstruct", '["sm_90", "sm_100"]', '["sm_90"]')
    s.step("toolkit", nothing, "a", args=(f"GPU_CUDA_PATH={kit.root}", f"GPU_CLANG={kit.clang}"))
    s.step("clang", lambda: another(kit.clang, s.toolchain.clang.path, "22.1.8", "22.1.7"), "build/net/cuda/k.cu.sm_90.ll", "k")
    s.step(
        "ptxas",
        lambda: another(kit.root / "bin/ptxas", s.toolchain.ptxas.path, "V13.5.37", "V13.5.30"),
        "a",
        "c",
        "build/net/plain/sm_90.cubin",
    )

    def other_libdevice() -> None:
        import llvmlite.binding as llvm  # noqa: PLC0415 - takes a while

        path = kit.root / "nvvm/libdevice/libdevice.10.bc"
        module = llvm.parse_bitcode(path.read_bytes(), context=llvm.create_context())
        module.name = "another"
        path.unlink()
        path.write_bytes(module.as_bitcode())

    s.step("libdevice", other_libdevice, "wave", "c")
    s.ask("at last", "k")

    def forget() -> None:
        (s.store / "log.jsonl").unlink()
        s.project.edit("two.ll", "fadd float %old, 6.0", "fadd float %old, 7.0")

    s.step("no log", forget, "c", "calls", "build/net/plain/sm_90.cubin")
    s.step("no record", lambda: s.project.path(".sconsign.dblite").unlink(), "build/net/plain/one.ll.sm_90.ll", "c")


def test_show(script: Script) -> None:
    for name, text in script.texts.items():
        print("=====", name)
        print(text)
