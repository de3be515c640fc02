"""M11-M14 with awkward inputs: what two hundred kernels and a few hurried engineers would bring."""

from __future__ import annotations

import shlex
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from project import CUDA, IMAGE, Project, Result, ll
from test_candidates import FILL, chosen, tuned, tuning

from scons_gpu.tune.dump import read_dump

if TYPE_CHECKING:
    from toolkits import Toolkit

    from scons_gpu.toolchain.tools import Toolchain

ONE = 'env.GpuProgram("build/net", env.GpuModule("one", ["k.cu"], candidates={candidates}))\n'
DEFAULT = "#ifndef V\n#define V 1\n#endif\n"
KERNEL = 'extern "C" __global__ void k(float* d) { for (int i = 0; i < V; ++i) d[i] += sqrtf(d[i]); }\n'
LATE = """
late = env.Command("late.cu", "k.cu", ["sleep 6", Copy("$TARGET", "$SOURCE")])
one = env.GpuModule("one", ["k.cu"], candidates={"k": [{"V": 4}, {"V": 1}, {"V": 3}]})
others = [env.GpuModule("two", late), env.GpuModule("three", late, candidates={"k": [{"V": 3}]})]
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[one, *others]))
"""
SLOW = 'case "$*" in *--version*) ;; *) sleep 0.3; [ "$(ulimit -t)" = unlimited ] || kill -XCPU $$;; esac'
"""Before ptxas: whoever is limited is ended, as if it had taken too long."""


def one(project: Project, source: str, candidates: str) -> Project:
    """A module of one source whose kernel k has candidates."""
    project.write("SConstruct", CUDA + ONE.format(candidates=candidates))
    project.write("k.cu", source)
    return project


@pytest.fixture
def limited(toolchain: Toolchain, toolkit: Toolkit) -> list[str]:
    """Arguments for a build in which every limit is too low."""
    assert toolchain.ptxas is not None
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


def test_m11_what_a_limit_ended_is_made_for_a_module_that_comes_later(project: Project, limited: list[str]) -> None:
    """The other modules' source is made while the first one's candidates are ended: of them one has no candidates, and one has it as its first."""
    project.write("SConstruct", CUDA + LATE)
    project.write("k.cu", DEFAULT + KERNEL)
    said = project.build("-j2", *limited).stderr
    assert "V=1 cannot be compiled: ptxas took more CPU time than it may" in said
    assert project.kernels("two") == ["k"]
    assert (chosen(project, "one", "k")["candidate"], chosen(project, "one", "k")["failed"]) == ("V=4", 2)
    assert (chosen(project, "three", "k")["candidate"], chosen(project, "three", "k")["failed"]) == ("V=3", 0)


def test_m11_another_limit_is_another_choice(project: Project, limited: list[str]) -> None:
    one(project, DEFAULT + KERNEL, '{"k": [{"V": 4}, {"V": 1}]}').build(*limited)
    assert (chosen(project, "one", "k")["by"], chosen(project, "one", "k")["failed"]) == ("only", 1)
    project.idle(*limited)
    project.build(limited[1])
    assert (chosen(project, "one", "k")["candidate"], chosen(project, "one", "k")["failed"]) == ("V=1", 0)


def test_m11_a_first_candidate_has_no_limit_where_a_later_one_comes_to_the_same(project: Project, limited: list[str]) -> None:
    one(project, DEFAULT + KERNEL, '{"k": [{}, {"V": 1}, {"V": 2}]}').build(*limited)
    assert (chosen(project, "one", "k")["candidate"], chosen(project, "one", "k")["failed"]) == ("as written", 1)
    assert [record["name"] for record in project.last() if record["result"] == "refused"] == ["k [V=2]"]


def test_m13_the_limit_holds_where_a_solution_fails_and_the_others_are_compiled_after_all(project: Project, limited: list[str]) -> None:
    one(project, DEFAULT + KERNEL, '{"k": [{"V": 4}, {"V": 1}, {"V": 2}]}')
    tuning(project, {"V": "2"}, kernel="k")
    project.build("GPU_TUNING=tuning.json", *limited)
    assert (chosen(project, "one", "k")["candidate"], chosen(project, "one", "k")["failed"]) == ("V=4", 2)


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


def test_m11_a_candidate_is_looked_at_again_when_its_header_changes(project: Project) -> None:
    """Headers that one candidate reads: the edit of one, and one that makes a failing candidate compile."""
    source = (
        DEFAULT + '#if V == 2\n#include "two.h"\n#elif V == 3\n#include "three.h"\n#else\n#define ADD sqrtf(d[1] * sqrtf(d[2]))\n#endif\n'
    )
    one(project, source + 'extern "C" __global__ void k(float* d) { d[threadIdx.x] = ADD; }\n', '{"k": [{"V": 1}, {"V": 2}, {"V": 3}]}')
    project.write("two.h", "#define ADD sqrtf(d[1])\n")
    project.write("three.h", "#error later\n")
    project.build()
    assert chosen(project, "one", "k")["candidate"] == "V=2"
    project.write("two.h", "#define ADD sqrtf(d[2])\n")
    project.build()
    assert project.compiled() == ["k [V=2]"]
    project.write("three.h", "#define ADD 3\n")
    project.build()
    assert (project.compiled(), chosen(project, "one", "k")["candidate"]) == (["k [V=3]"], "V=3")
    project.edit("SConstruct", ', {"V": 3}', "")
    project.build()
    assert (project.compiled(), chosen(project, "one", "k")["candidate"], chosen(project, "one", "k")["of"]) == ([], "V=2", 2)
    project.idle()


@pytest.mark.parametrize("place", ["data", "record"])
@pytest.mark.parametrize("text", ["", "{}"])
def test_m11_a_damaged_failure_is_found_out_again(project: Project, place: str, text: str) -> None:
    source = KERNEL.replace("{ for", '{\n#if V == 2\n  asm volatile("wgmma.fence.sync.aligned;");\n#endif\n  for')  # sm_90a's alone
    one(project, DEFAULT + source, '{"k": [{"V": 1}, {"V": 2}]}').build()
    (data,) = project.path(".gpu-store").glob("failure/*/*.failure")
    (data if place == "data" else data.with_name(data.name + ".json")).write_text(text)
    project.path("build/net/one/sm_90.plan.json").unlink()
    said = project.build().stderr
    assert "it is made again" in said
    assert "V=2 cannot be compiled: wgmma.fence" in said
    assert chosen(project, "one", "k")["by"] == "only"
    project.idle()


def test_m11_one_architecture_alone_lacks_a_candidate(project: Project) -> None:
    source = KERNEL.replace("{ for", '{\n#if V == 2 && __CUDA_ARCH__ < 900\n  asm volatile("griddepcontrol.wait;");\n#endif\n  for')
    one(project, DEFAULT + source, '{"k": [{"V": 2}, {"V": 1}]}')
    project.edit("SConstruct", "env.GpuProgram", 'env["GPU_ARCHS"] = ["sm_90", "compute_90", "sm_80"]\nenv.GpuProgram')
    project.build("-j2", "gpu-dump", ".")
    archs = project.manifest()["modules"]["one"]["kernels"]["k"]["archs"]
    assert {arch: (each["chosen"]["candidate"], each["chosen"]["failed"]) for arch, each in archs.items()} == {
        "sm_90": ("V=1", 0),
        "compute_90": ("V=2", 0),  # nobody knows what its assembler will say: the first
        "sm_80": ("V=1", 1),
    }
    found = read_dump(project.path("build/net.gpudump")).problems
    assert [(each.problem.arch, [bool(one.image) for one in each.candidates]) for each in found] == [
        ("compute_90", [True, True]),
        ("sm_80", [False, True]),
        ("sm_90", [True, True]),
    ]
    project.idle("gpu-dump", ".")


def test_m11_k_finishes_the_modules_that_can_be_chosen_for(project: Project) -> None:
    one(project, DEFAULT + "#if V == 13\n#error unlucky\n#endif\n" + KERNEL, "{}")
    project.write(
        "SConstruct",
        CUDA
        + """
bad = env.GpuModule("bad", ["k.cu"], candidates={"k": [{"V": 13}]})
good = env.GpuModule("good", ["k.cu"], candidates={"k": [{"V": 13}, {"V": 2}]})
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[bad, good]))
""",
    )
    said = project.fail("-k", "-j2").stderr
    assert "kernel k of bad (sm_90): its only candidate cannot be compiled" in said
    assert "error: unlucky" in said
    assert project.kernels("good") == ["k"]
    assert not project.exists("build/net.json")
    assert not project.exists("build/net/bad.fatbin")


def test_m11_what_no_gpu_takes_is_no_candidate_where_nothing_assembles(project: Project) -> None:
    """The others are taken in their order: their figures nobody knows."""
    said = tuned(project, '[{"TIMES": 512}, {"TIMES": 4}, {"TIMES": 2}]').build("GPU_PROVIDER=none").stderr
    assert "TIMES=512 cannot be compiled: its 131072 bytes of __shared__ variables are more than the 49152" in said
    assert (chosen(project)["candidate"], chosen(project)["failed"]) == ("TIMES=4", 1)


# what is chosen


def test_m13_shared_twins_are_chosen_by_what_the_assembler_reports(project: Project) -> None:
    """Their objects call the kernel by no name of its own."""
    one(project, DEFAULT + KERNEL, '{"k": [{"V": 2}, {"V": 1}]}').build("GPU_LINK=bundle", "GPU_SHARE_TWINS=1")
    assert chosen(project, "one", "k")["candidate"] == "V=1"
    assert "it has " in chosen(project, "one", "k")["why"]


def test_m12_equal_names_of_different_code_are_two_problems_to_choose_for(project: Project) -> None:
    project.write(
        "SConstruct",
        CUDA
        + """
values = [{"V": 1}, {"V": 2}]
a = env.GpuModule("a", ["a/k.cu"], candidates={"k": values})
b = env.GpuModule("b", ["b/k.cu"], candidates={"k": {"values": values}})
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[a, b]))
""",
    )
    project.write("a/k.cu", DEFAULT + KERNEL)
    project.write("b/k.cu", DEFAULT + KERNEL.replace("i = 0; i < V", "i = V; i < 3"))
    project.build("-j2")
    assert (chosen(project, "a", "k")["candidate"], chosen(project, "b", "k")["candidate"]) == ("V=1", "V=2")
    said = project.fail("gpu-dump").stderr  # a tuning file could not tell them apart
    assert "two problems of the dump are both k sm_90, and their candidates differ\n  give one of them keys" in said
    assert not project.exists("build/net.gpudump")
    project.edit("SConstruct", '"values": values', '"values": values, "keys": {"n": 4}')
    tuning(project, {"V": "1"}, kernel="k", keys={"n": "4"})
    project.build("gpu-dump", ".", "GPU_TUNING=tuning.json")
    assert (chosen(project, "a", "k")["by"], chosen(project, "b", "k")["by"]) == ("resources", "tuning")
    assert [dict(each.problem.keys) for each in read_dump(project.path("build/net.gpudump")).problems] == [{}, {"n": "4"}]


def test_m13_values_are_told_as_they_were_given(project: Project) -> None:
    source = "#ifndef T\n#define T char\n#endif\n#ifndef N\n#define N 0\n#endif\n#ifndef F\n#define F 1.0\n#endif\n"
    source += 'extern "C" __global__ void k(float* d) { T x = (T)d[threadIdx.x]; d[1] = (float)(x * x + N) * F; }\n'
    values: list[dict[str, Any]] = [{"T": "unsigned long long"}, {"N": -3}, {"F": 0.5, "N": True}, {"N": None}, {"A": "$HOME ${x}"}]
    one(project, source, f'{{"k": {values!r}}}')
    tuning(project, {"T": "unsigned long long"}, kernel="k")
    project.build("GPU_TUNING=tuning.json", "gpu-dump", ".")
    (problem,) = read_dump(project.path("build/net.gpudump")).problems
    assert [dict(each.result.values) for each in problem.candidates] == [
        {"T": "unsigned long long"},
        {"N": "-3"},
        {"F": "0.5", "N": "1"},
        {"N": ""},
        {"A": "$HOME ${x}"},
    ]
    assert chosen(project, "one", "k")["candidate"] == 'T="unsigned long long"'
    assert chosen(project, "one", "k")["by"] == "tuning"
    project.idle("GPU_TUNING=tuning.json", "gpu-dump", ".")


def test_m11_a_pattern_holds_for_every_instance_that_some_value_makes(project: Project) -> None:
    source = DEFAULT + "template<int N> __global__ void softmax(float* d) { for (int i = 0; i < N * V; ++i) d[i] = sqrtf(d[i]); }\n"
    source += "template __global__ void softmax<4>(float*);\n#if V == 2\ntemplate __global__ void softmax<3>(float*);\n#endif\n"
    said = one(project, source, '{"softmax<*>": [{"V": 1}, {"V": 2}]}').build().stderr
    assert "softmax<3>(float*): V=2 (by only: the only one of 2 candidates that can be compiled)" in said
    assert "V=1 cannot be compiled: the source has no such kernel with these values" in said
    assert project.kernels("one") == ["_Z7softmaxILi3EEvPf", "_Z7softmaxILi4EEvPf"]
    project.idle()


def test_m11_a_kernel_that_only_values_make(project: Project) -> None:
    one(project, "#ifdef V\n" + KERNEL + "#endif\n", '{"k": [{"V": 1}, {"V": 2}]}').build("gpu-dump", ".", "GPU_VERIFY_REUSE=1")
    assert project.kernels("one") == ["k"]
    project.idle("gpu-dump", ".")
    project.write("k.cu", "")
    assert "candidates are given for k, and no kernel is called that\n  it has no kernel at all" in project.fail().stderr


def test_m11_values_that_change_a_variable_are_no_candidates(project: Project) -> None:
    source = (
        "#ifndef FIRST\n#define FIRST 5\n#endif\n__device__ int count = FIRST;\n" + DEFAULT + KERNEL.replace("{ for", "{ count += 1; for")
    )
    said = one(project, source, '{"k": [{"FIRST": 1}, {"V": 2}, {"FIRST": 5}]}').build().stderr
    assert "FIRST=1 cannot be compiled: with these values, variable count is not the one that k.cu defines without them" in said
    assert (chosen(project, "one", "k")["candidate"], chosen(project, "one", "k")["failed"]) == ("FIRST=5", 1)
    assert project.variables("one") == ["count"]


# by hand

OWN = """
fills = env.GpuModule("fills", ["fill.ll"], GPU_MAXRREGCOUNT=24)
one = env.GpuModule("one", ["one.ll"], candidates={"a": [{"GPU_MAXRREGCOUNT": 16, "needs": "fill"}]}, helpers=[fills])
two = env.GpuModule("two", ["two.ll"], candidates={"c": [{"GPU_MAXRREGCOUNT": 16}]})
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[one, two]))
"""


def own_options(project: Project) -> Project:
    """Kernels with options that are not their module's: two in one module, each with others; and one that is all that its module has."""
    project.write("SConstruct", OWN)
    for name, text in (("one", ll("a", "b=2.0")), ("two", ll("c=3.0")), ("fill", ll("fill=4.0"))):
        project.write(f"{name}.ll", text)
    return project


def linked_by_hand(project: Project, printed: str, module: str) -> Result:
    """Does again what the line of a module's link says, into a file of its own."""
    line = next(line for line in printed.splitlines() if line.startswith("scons-gpu") and f"/{module}/" in line)
    return project.command(*shlex.split(line)[1:-1], f"{module}.again")


@pytest.mark.parametrize(("link", "file"), [("image", "one/sm_90.cubin"), ("bundle", "one.gpubundle")])
def test_the_link_by_hand_takes_each_kernel_with_its_own_options(project: Project, link: str, file: str) -> None:
    printed = own_options(project).build("GPU_LINKCOMSTR=", "GPU_OPT=2", f"GPU_LINK={link}").stdout
    said = linked_by_hand(project, printed, "one")
    assert said.returncode == 0, said.output
    assert project.bytes("one.again") == project.bytes(f"build/net/{file}")


def test_l4_the_link_by_hand_takes_and_refuses_what_the_build_does_of_deferred_ptx(project: Project) -> None:
    result = own_options(project).fail("-k", "GPU_LINKCOMSTR=", "GPU_DEFER=always")
    said = linked_by_hand(project, result.stdout, "two")
    assert said.returncode == 0, said.output
    assert project.bytes("two.again") == project.bytes("build/net/two/sm_90.cubin")
    said = linked_by_hand(project, result.stdout, "one")
    assert said.returncode == 1
    assert "to be assembled with" in said.output
    assert said.output.strip() in result.stderr


# what is lost

SECOND_BATCH = ["fill", "plain", "scale [TIMES=2]", "scale [TIMES=4]", "scale [TIMES=512]"]
LOST = {
    "object deferred": [],
    "slice ptx object deferred": SECOND_BATCH,
    "slice failure tools": [],
    "records": SECOND_BATCH,
}
"""What the store lost → what is lowered then."""


def lose(project: Project, kinds: str) -> None:
    """Takes these kinds of entries away, and what the build made of them, so that it asks for them."""
    for kind in kinds.split():
        shutil.rmtree(project.path(f".gpu-store/{kind}"), ignore_errors=True)
    if kinds == "records":
        for path in project.path(".gpu-store").glob("[pod]*/*/*.json"):  # of PTX, objects and deferred PTX
            path.unlink()
    for name in ("plan.json", "cubin"):
        project.path(f"build/net/one/sm_90.{name}").unlink()


@pytest.mark.parametrize("defer", ["auto", "always"])
def test_t1_what_the_store_lost_of_candidates_and_helpers_is_made_again(project: Project, defer: str) -> None:
    tuned(project, head=IMAGE).build(f"GPU_DEFER={defer}")
    made = project.files("build/**/*")
    for kinds, lowered in LOST.items():
        lose(project, kinds)
        project.build(f"GPU_DEFER={defer}")
        assert project.files("build/**/*") == made, kinds
        if defer == "auto":  # else the fourth fails when it is measured, and is not lowered again while that is known
            assert project.compiled() == lowered, kinds


# what cannot be meant


@pytest.mark.parametrize(
    ("candidates", "said"),
    [
        ('[{"V": 1, "needs": 5}]', "needs 5 are no names of kernels"),
        ('[{"needs": [None]}]', "needs [None] are no names of kernels"),
        ('{"values": [{}], "keys": "n"}', "keys: 'n' is no dictionary"),
        ('{"values": [{}], "keys": {"n": [1]}}', "keys: n is [1], which is no value"),
        ('[{1: 2, "V": 3}]', "1 is no name"),
        ('[{"A B": 2}]', "'A B' is no name"),
        ('[{"V": "1\\n2"}]', "V is '1\\n2', which is no value"),
        ('[{"V": {}}]', "V is {}, which is no value"),
        ('{1: 2, "values": []}', "1 means nothing"),
    ],
)
def test_what_cannot_be_meant_is_told_when_it_is_read(project: Project, candidates: str, said: str) -> None:
    result = one(project, DEFAULT + KERNEL, f'{{"k": {candidates}}}').fail("-n")
    assert f"error: module one: candidates of k: {said}\n" in result.stderr
    assert "File " not in result.output


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": "scons-gpu/tuning/9", "entries": []}', "[" * 100_000, "\0"])
def test_a_tuning_file_that_is_none_is_told(project: Project, text: str) -> None:
    one(project, DEFAULT + KERNEL, '{"k": [{"V": 1}, {"V": 2}]}')
    project.write("tuning.json", text)
    said = project.fail("GPU_TUNING=tuning.json").stderr
    assert said.count("error: ") == 1
    assert "error: one/tuning.json (sm_90): this is no" in said
    assert not project.exists("build/net/one/sm_90.plan.json")


def test_a_tuning_file_that_cannot_be_one_is_told(project: Project) -> None:
    one(project, DEFAULT + KERNEL, '{"k": [{"V": 1}, {"V": 2}]}')
    assert "Source `tuning.json' not found" in project.fail("GPU_TUNING=tuning.json").output
    project.path("tuning.json").mkdir()
    result = project.fail("GPU_TUNING=tuning.json")
    assert "error: GPU_TUNING: Directory" in result.stderr
    assert "File " not in result.output
    project.build()


# the whole


FOLDERS = """
modules = []
for name, copied in {order}:
    modules.append(SConscript(f"{{name}}/SConscript", exports={{"env": env, "name": name}}, variant_dir=f"out/{{name}}", duplicate=copied))
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=modules))
"""
FOLDER = """
Import("env", "name")
fills = env.GpuModule(f"{name}-fills", ["fill.cu"], GPU_MAXRREGCOUNT=32)
values = [{"V": 1, "needs": "fill"}, {"V": 2}, {"V": 5}]
ours = env.GpuModule(
    name, ["k.cu", "other.cu"], CPPPATH=["inc"], helpers=[fills], candidates={"k": {"source": "k.cu", "keys": {"of": name}, "values": values}}
)
Return("ours")
"""


def folders(project: Project, order: str = '[("a", 0), ("b", 1)]') -> Project:
    project.write("SConstruct", CUDA + FOLDERS.format(order=order))
    project.edit("SConstruct", "modules = []", 'env["GPU_ARCHS"] = ["sm_90", "compute_90"]\nmodules = []')
    for name in "ab":
        project.write(f"{name}/SConscript", FOLDER)
        project.write(f"{name}/inc/limit.h", "#define LIMIT 4\n")
        project.write(f"{name}/fill.cu", FILL)
        project.write(f"{name}/k.cu", '#include "limit.h"\n' + DEFAULT + "#if V > LIMIT\n#error too many\n#endif\n" + KERNEL)
        project.write(
            f"{name}/other.cu", '__constant__ float t[4];\nextern "C" __global__ void other(float* d) { d[0] = t[threadIdx.x & 3]; }\n'
        )
    return project


def test_folders_variants_and_their_order_change_no_byte(tmp_path: Path) -> None:
    here, there = folders(Project(tmp_path / "here")), folders(Project(tmp_path / "a longer/way"), '[("b", 1), ("a", 0)]')
    here.build("-j2", "gpu-dump", ".")
    there.build("-j1", "gpu-dump", ".")
    assert here.files("build/**/*") == there.files("build/**/*")
    assert here.kernels("a") == here.kernels("b") == ["fill", "k", "other"]
    here.idle("gpu-dump", ".")
    here.write("a/inc/limit.h", "#define LIMIT 9\n")
    here.build()
    assert sorted(set(here.compiled())) == ["k [V=5]"]
    assert here.command("gc", "--keep", "1", "--older-than", "0").returncode == 0
    here.idle()
    assert here.command("compare", "build/net.json").returncode == 0
    here.build("GPU_VERIFY_REUSE=1")
    here.run("-c", "gpu-dump", ".")
    assert here.files("build/**/*") == {}


@pytest.mark.parametrize("stage", ["lower", "choose"])
def test_r5_a_tuning_build_that_is_killed_is_finished_by_the_next(tmp_path: Path, stage: str) -> None:
    whole, killed = tuned(Project(tmp_path / "whole")), tuned(Project(tmp_path / "killed"))
    whole.build("-j2", "gpu-dump", ".")
    process = killed.start("-j2", "gpu-dump", ".")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(stage):
            break
    time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    killed.build("-j2", "gpu-dump", ".")
    made = {name: data for name, data in killed.files("build/**/*").items() if "/.tmp-" not in name}  # what was being written
    assert made == whole.files("build/**/*")
    killed.idle("gpu-dump", ".")
