"""`scons-gpu why`: one project, many edits, and each is explained by what was edited and by nothing else."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from project import CUDA, IMAGE, Project, ll
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
    + IMAGE
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
            self.texts[f"{name}: {each}"] = "\n".join(lines(answers))


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
    s.project.fail("-k", "GPU_PTXASFLAGS=--nonsense")
    s.ask("refused flag", "a", "build/net/plain/sm_90.cubin")


def store(s: Script) -> None:
    s.step("going back", s.edit("two.ll", "fadd float %old, 2.0", "fadd float %old, 1.0"), "c")

    def damage() -> None:
        name = s.project.manifest()["modules"]["plain"]["kernels"]["calls"]["archs"]["sm_90"]["object"]
        (s.store / "object" / name[:2] / f"{name}.rel.cubin").write_bytes(b"short")
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
    s.step("clang", lambda: another(kit.clang, s.toolchain.clang.path, "22.1.8", "22.1.8"), "build/net/cuda/k.cu.sm_90.ll", "k")
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

    s.step("no record", lambda: s.project.path(".sconsign.dblite").unlink(), "build/net/plain/one.ll.sm_90.ll", "c")

    def forget() -> None:
        (s.store / "log.jsonl").unlink()
        s.project.edit("two.ll", "fadd float %old, 6.0", "fadd float %old, 7.0")

    s.step("no log", forget, "c", "calls", "build/net/plain/sm_90.cubin")


EXPECTED = {
    # what was asked → how each answer came out, and its causes
    "first: a": ("compiled", ["build/net/plain/sm_90.plan.json: the first build that the log knows"]),
    "first: build/net.json": ("built", ["build/net.json: the first build that the log knows"]),
    "source text: bee": ("compiled", ["source one.ll changed", "bee is new"]),
    "source text: build/net/plain/sm_90.cubin": ("built", ["source one.ll changed"]),
    "source text: build/net.json": ("built", ["source one.ll changed"]),
    "kernel: c": ("compiled", ["source two.ll changed"]),
    "callee: calls": ("compiled", ["source two.ll changed"]),
    "constant table: calls": ("compiled", ["source two.ll changed"]),
    "struct: calls": ("compiled", ["source two.ll changed"]),
    "header: k": ("compiled", ["header near.h changed"]),
    "header: build/net/cuda.fatbin": ("built", ["header near.h changed"]),
    "header through another: k": ("compiled", ["header far.h changed"]),
    "generated header: k": ("compiled", ["generated header made.h changed"]),
    "included first: k": ("compiled", ["header before.h changed"]),
    "define: k": ("compiled", ["define N: 4 -> 8"]),
    "front end's flag: k": ("compiled", ["flag GPU_CLANGFLAGS -ffp-contract=off added"]),
    "comment: k": ("compiled", ["flag GPU_CLANGFLAGS -ffp-contract=off added"]),  # as it was: a comment compiles nothing
    "comment: build/net/cuda/k.cu.sm_90.ll": ("built", ["source k.cu changed"]),
    **{
        f"{step}: {asked}": ("built" if "/" in asked else "compiled", [cause])
        for step, cause in (
            ("level", "option GPU_OPT: 3 -> 2"),
            ("flush", "option GPU_FTZ: 0 -> 1"),
            ("fast", "option GPU_FAST_MATH: 0 -> 1"),
            ("registers", "option GPU_MAXRREGCOUNT: (none) -> 64"),
            ("assembler's flag", "flag GPU_PTXASFLAGS --def-load-cache=cg added"),
            ("lines", "option GPU_LINEINFO: 0 -> 1"),
            ("debug", "option GPU_DEBUG: 0 -> 1"),
            ("provider", "option GPU_PROVIDER: ptxas -> nvptxcompiler+nvjitlink"),
        )
        for asked in ("a", "c", "build/net/plain/sm_90.cubin", "build/net.json")
    },
    "fast: k": ("compiled", ["option GPU_FAST_MATH: 0 -> 1"]),
    "whole: a": ("reused", ["option GPU_LINK: image -> whole"]),
    "whole: build/net/plain/sm_90.cubin": ("built", ["option GPU_LINK: image -> whole"]),
    "bundle: a": ("compiled", ["option GPU_LINK: whole -> bundle"]),
    "ptxas again: a": ("reused", ["option GPU_PROVIDER: nvptxcompiler+nvjitlink -> ptxas"]),
    "refused flag: a": ("failed", ["flag GPU_PTXASFLAGS --nonsense added"]),
    "refused flag: build/net/plain/sm_90.cubin": ("built", ["option GPU_PROVIDER: nvptxcompiler+nvjitlink -> ptxas"]),
    "going back: c": ("reused", ["source two.ll changed"]),
    "damage: c": ("compiled", ["source two.ll changed"]),
    "lost: c": ("compiled", ["source two.ll changed"]),
    "lost: calls": ("compiled", ["the store no longer had the unit's PTX and object"]),
    "removed: build/net/plain/sm_90.cubin": ("built", ["build/net/plain/sm_90.cubin was not there"]),
    "altered: build/net/plain/sm_90.plan.json": (
        "built",
        ["build/net/plain/sm_90.plan.json was not the file that the build before had made"],
    ),
    "failed: c": ("compiled", ["source two.ll changed"]),
    "failed: build/net/plain/two.ll.sm_90.ll": ("built", ["source two.ll changed"]),
    "moved: a": ("reused", ["moved a: one.ll -> two.ll"]),
    "added kernel: d": ("compiled", ["source one.ll changed", "d is new"]),
    "added source: e": ("compiled", ["source three.ll added", "e is new"]),
    "added source: build/net/plain/sm_90.cubin": ("built", ["source three.ll added"]),
    "removed source: build/net/plain/sm_90.plan.json": ("built", ["source three.ll removed"]),
    "candidates: tuned": ("compiled", ["candidate tuned: as written -> GPU_OPT=1"]),
    "tuning: tuned": ("reused", ["tuning file tuning.json added"]),
    "architecture: build/net/plain.fatbin": ("built", ["architecture GPU_ARCHS: sm_90 -> sm_90 sm_100"]),
    "clang: build/net/cuda/k.cu.sm_90.ll": ("built", ["tool clang: 22.1.8 () -> 22.1.8 ()"]),
    "ptxas: a": ("compiled", ["tool ptxas: 13.5.37 () -> 13.5.30 ()"]),
    "ptxas: build/net/plain/sm_90.cubin": ("built", ["tool ptxas: 13.5.37 () -> 13.5.30 ()"]),
    "libdevice: wave": ("compiled", ["tool libdevice:  -> "]),
    "libdevice: c": ("compiled", ["tool ptxas: 13.5.37 () -> 13.5.30 ()"]),  # it calls nothing of libdevice
    "no record: build/net/plain/one.ll.sm_90.ll": (
        "built",
        ["build/net/plain/one.ll.sm_90.ll: SCons had no record of it (.sconsign.dblite is new, or was removed)"],
    ),
    "no log: c": ("compiled", ["build/net/plain/sm_90.plan.json: the first build that the log knows"]),
    "no log: calls": ("reused", ["build/net/plain/sm_90.plan.json: the first build that the log knows"]),
    "no log: build/net/plain/sm_90.cubin": ("built", ["source two.ll changed"]),
}
HASH = re.compile(r"\b[0-9a-f]{12}\b")


@pytest.mark.parametrize("asked", EXPECTED)
def test_what_was_changed_is_told_and_nothing_else(script: Script, asked: str) -> None:
    outcome, causes = EXPECTED[asked]
    first = script.said[asked][0]
    assert (first.outcome, [HASH.sub("", sentence(cause)) for cause in first.causes]) == (outcome, causes), script.texts[asked]


def test_the_way_goes_from_the_cause_down_to_the_unit(script: Script) -> None:
    [unit] = script.said["header through another: k"]
    [route] = unit.causes[0].routes
    assert [(via.stage, via.name) for via in route] == [("source", "k.cu"), ("split", "k.cu")]
    assert {via.build for via in route} == {unit.build}
    [file] = script.said["header: build/net/cuda.fatbin"]
    assert [via.stage for via in file.causes[0].routes[0]] == ["source", "split", "plan", "link"]


@pytest.mark.parametrize(
    ("asked", "what", "then", "now"),
    [
        ("kernel: c", "kernel c", "%new = fadd float %old, 1.000000e+00", "%new = fadd float %old, 2.000000e+00"),
        ("callee: calls", "function callee", "%z = fadd float %x, %y", "%z = fsub float %x, %y"),
        ("constant table: calls", "constant table", "float 2.000000e+00]", "float 3.000000e+00]"),
        ("struct: calls", "type struct", "{ float, i32 }", "{ float, i64 }"),
        ("header: k", "function helper(float)", "1.000000e+00", "1.000000e+01"),
        ("going back: c", "kernel c", "2.000000e+00", "1.000000e+00"),
    ],
)
def test_what_in_the_text_changed_is_told(script: Script, asked: str, what: str, then: str, now: str) -> None:
    [answer] = script.said[asked]
    [difference] = answer.differences
    assert (f"{difference.what} {difference.name}", difference.change) == (what, "changed")
    assert difference.then.endswith(then)
    assert difference.now.endswith(now)


def test_the_others_are_counted(script: Script) -> None:
    [answer] = script.said["kernel: c"]
    assert (answer.changed, answer.unchanged) == ((), 4)
    first, second = script.said["flush: a"]
    assert (first.module, first.changed, first.unchanged) == ("plain", ("bee", "c", "calls", "wave"), 0)
    assert (second.module, second.changed) == ("again", ("bee", "wave"))
    [image] = script.said["source text: build/net/plain/sm_90.cubin"]
    assert (image.changed, image.unchanged) == (("bee",), 4)


def test_what_was_not_compiled_is_told_by_whom_it_was(script: Script) -> None:
    [back] = script.said["going back: c"]
    assert (back.outcome, back.made_in) == ("reused", script.said["first: a"][0].build)
    shared = script.said["source text: bee"]
    assert [(each.module, each.outcome, each.shared_with) for each in shared] == [
        ("plain", "compiled", ("again",)),
        ("again", "compiled", ("plain",)),
    ]
    owner, late = script.said["added module: e"]
    assert (late.module, late.outcome, late.made_in) == ("more", "reused", owner.build)
    assert [sentence(cause) for cause in late.causes] == ["module more added"]


def test_what_the_store_lost_is_told_by_what_it_was(script: Script) -> None:
    [damaged] = script.said["damage: calls"]
    [cause] = damaged.causes
    size = int(cause.now.split()[4])
    assert size > 1000
    assert (damaged.outcome, cause.kind, cause.now) == ("compiled", "lost", f"it has 5 bytes, {size} by its record")
    assert cause.name.startswith(".gpu-store/object/")


def test_another_architecture_has_an_answer_of_its_own(script: Script) -> None:
    old, new = script.said["architecture: c"]
    assert (old.arch, old.build) == ("sm_90", script.said["failed: c"][0].build)
    assert (new.arch, new.outcome) == ("sm_100", "compiled")
    assert [sentence(cause) for cause in new.causes] == ["architecture GPU_ARCHS: sm_90 -> sm_90 sm_100"]
    assert [sentence(cause) for cause in script.said["lowering: c"][1].causes] == ["option GPU_LOWER: nvvm -> llvm"]


def test_what_a_person_reads(script: Script) -> None:
    answer = script.said["callee: calls"][0]
    assert re.sub(r" \(\d.*? UTC\)", "", script.texts["callee: calls"]).splitlines() == [
        f"calls (plain sm_90): compiled in build {answer.build}; before that in {answer.before}",
        "  source two.ll changed",
        "    -> source two.ll -> split two.ll -> this unit",
        "  in its text:",
        "    function callee changed",
        "      - %z = fadd float %x, %y",
        "      + %z = fsub float %x, %y",
        "  4 other units unchanged",
    ]


def test_the_command(script: Script) -> None:
    told = json.loads(script.project.command("why", "c", "--json").stdout)
    assert (told["schema"], told["asked"]) == ("scons-gpu/why/1", "c")
    assert [(each["symbol"], each["outcome"]) for each in told["answers"]] == [("c", "compiled")]
    old = script.project.command("why", "quiet")
    assert old.returncode == 2
    assert "quiet is older than the log" in old.stderr
    wrong = script.project.command("why", "calling")
    assert wrong.returncode == 2
    assert "did you mean calls" in wrong.stderr
