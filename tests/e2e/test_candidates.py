"""M11-M14: kernels in several variants, how one is chosen, and the kernels that a choice asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from measured import ENTRY
from project import CUDA, IMAGE, Project, ll
from toolkits import Toolkit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scons_gpu.toolchain.tools import Toolchain

SCALE = """
#define KERNEL extern "C" __global__
#ifndef TIMES
#define TIMES 1
#endif
#if TIMES == 13
#error "13 is no number of times"
#endif
__device__ int launches;
KERNEL void scale(float* data) {
    __shared__ float held[TIMES * 64];
    for (int i = 0; i < TIMES; ++i) held[i * 64 + threadIdx.x % 64] = data[i] * TIMES;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TIMES; ++i) data[threadIdx.x + i] += held[(threadIdx.x * 7 + i) % (TIMES * 64)];
    launches = TIMES > 0;
}
KERNEL void plain(float* data) { data[threadIdx.x] = 1; }
"""
FILL = """
#define KERNEL extern "C" __global__
KERNEL void fill(float* data) { data[threadIdx.x] = 0; }
KERNEL void copy(float* data, const float* from) { data[threadIdx.x] = from[threadIdx.x]; }
"""
VALUES = '[{"TIMES": 4}, {"TIMES": 2, "needs": "fill"}, {"TIMES": 13}, {"TIMES": 512}]'
"""The third does not compile; the fourth asks for more shared memory than a kernel can have."""
MODULES = """
fills = env.GpuModule("fills", ["fill.cu"])
modules = [env.GpuModule(name, ["scale.cu"], candidates={{"scale": {values}}}, helpers=[fills]) for name in {names}]
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=modules))
"""


def tuned(project: Project, values: str = VALUES, names: tuple[str, ...] = ("one",), head: str = "") -> Project:
    project.write("SConstruct", CUDA + head + MODULES.format(values=values, names=names))
    project.write("scale.cu", SCALE)
    project.write("fill.cu", FILL)
    return project


def chosen(project: Project, module: str = "one", kernel: str = "scale") -> dict[str, Any]:
    found: dict[str, Any] = project.manifest()["modules"][module]["kernels"][kernel]["archs"]["sm_90"]["chosen"]
    return found


def tuning(project: Project, values: Mapping[str, str], **changed: Any) -> None:
    """A tuning file, as `scons-gpu bench` writes it."""
    entry = {**ENTRY, "kernel": "scale", "keys": {}, "candidates": 4, "values": dict(values), **changed}
    project.write("tuning.json", json.dumps({"schema": "scons-gpu/tuning/1", "entries": [entry]}))


def test_m11_every_candidate_is_compiled_and_one_is_taken(project: Project) -> None:
    said = tuned(project).build("-j2")
    assert chosen(project) == {
        "by": "resources",
        "candidate": "TIMES=2",
        "why": chosen(project)["why"],
        "of": 4,
        "failed": 2,
    }
    assert "scale: TIMES=2 (by resources: " in said.stderr
    assert "TIMES=13 cannot be compiled: clang cannot compile it" in said.stderr
    assert "TIMES=512 cannot be compiled: its 131072 bytes of shared memory are more than the 49152" in said.stderr
    assert project.kernels("one") == ["fill", "plain", "scale"]
    assert project.variables("one").count("launches") == 1
    assert project.compiled() == ["fill", "plain", "scale [TIMES=2]", "scale [TIMES=4]", "scale [TIMES=512]"]
    order = [(record["stage"], record["name"]) for record in project.last()]
    assert order.index(("lower", "plain")) < order.index(("choose", "one")) < order.index(("lower", "fill"))  # two batches
    project.idle()


def test_gc_keeps_what_a_choice_was_made_of(project: Project) -> None:
    tuned(project).build()
    (problem,) = json.loads(project.read("build/net/one/sm_90.candidates.json"))["problems"]
    slices = {part["slice"] for candidate in problem["candidates"] if (part := candidate["part"])}
    held = {name for kind in ("ptx", "object") for name in project.files(f".gpu-store/{kind}/*/*")}
    held |= {f".gpu-store/slice/{name[:2]}/{name}" for name in slices}
    assert project.command("gc", "--keep", "1", "--older-than", "0").returncode == 0
    assert held <= set(project.files(".gpu-store/**/*"))
    project.edit("fill.cu", "= 0", "= 1")  # the choice is made again
    project.build()
    assert project.done()["choose"] == 1
    assert project.compiled() == ["fill"]


def test_m11_a_failure_is_a_result_that_is_kept(project: Project) -> None:
    tuned(project, '[{"TIMES": 4}, {"TIMES": 13}, {"TIMES": 512}]', head='env["GPU_LINK"] = "bundle"\n').build()
    refused = [record for record in project.last() if record["result"] == "refused"]
    assert sorted(record["stage"] for record in refused) == ["assemble", "source"]
    assert chosen(project)["by"] == "only"
    project.edit("fill.cu", "= 0", "= 1")  # the choice is made again, no failure is tried again
    project.build()
    assert [record["stage"] for record in project.last() if record["result"] == "refused"] == []
    assert project.done()["choose"] == 1


def test_m11_words_of_a_tool_that_nobody_knows_are_not_kept(project: Project) -> None:
    """They may tell of the machine: out of memory, for one. They count for one choice."""
    tuned(project, '[{"TIMES": 4}, {"TIMES": 4, "GPU_PTXASFLAGS": "--no-such-option"}]').build()
    assert chosen(project)["by"] == "only"
    project.edit("fill.cu", "= 0", "= 1")
    project.build()
    assert [record["stage"] for record in project.last() if record["result"] == "refused"] == ["assemble"]


def test_m11_the_program_fails_where_all_candidates_do_and_says_why_for_each(project: Project) -> None:
    said = tuned(project, '[{"TIMES": 13}, {"TIMES": 512}]').fail("-k").output
    assert "kernel scale of one (sm_90): none of its 2 candidates can be compiled" in said
    assert "TIMES=13: clang cannot compile it" in said
    assert "13 is no number of times" in said
    assert "TIMES=512: its 131072 bytes of shared memory" in said
    assert not project.exists("build/net.json")
    assert not project.exists("build/net/one/sm_90.plan.json")


def test_m11_a_candidate_that_takes_too_long_is_a_failure(project: Project, toolchain: Toolchain, toolkit: Toolkit) -> None:
    """An assembler that never ends on one of them: the first candidate of a kernel has all the time that it wants."""
    assert toolchain.ptxas is not None
    toolkit.wrap("ptxas", Path(toolchain.ptxas.path), before='case "$*" in *maxrregcount=40*) while :; do :; done;; esac')
    values = '[{"TIMES": 4}, {"TIMES": 2, "GPU_MAXRREGCOUNT": 40}]'
    said = tuned(project, values).build("GPU_CANDIDATE_SECONDS=1", f"GPU_CUDA_PATH={toolkit.root}")
    assert chosen(project)["candidate"] == "TIMES=4"
    assert "GPU_MAXRREGCOUNT=40 TIMES=2 cannot be compiled: ptxas took more CPU time than it may" in said.stderr


def test_m12_one_problem_of_two_modules_is_decided_once(project: Project) -> None:
    said = tuned(project, names=("one", "two")).build("-j2")
    assert said.stderr.count("scale: TIMES=2 (by resources") == 1
    assert chosen(project, "one") == chosen(project, "two")
    assert project.compiled() == ["fill", "plain", "scale [TIMES=2]", "scale [TIMES=4]", "scale [TIMES=512]"]
    kernels = [project.manifest()["modules"][name]["kernels"]["scale"]["archs"]["sm_90"] for name in ("one", "two")]
    assert kernels[0]["unit"] == kernels[1]["unit"]
    project.edit("SConstruct", "('one', 'two')", "('one', 'two', 'three')")
    project.build()
    assert project.compiled() == []
    assert chosen(project, "three") == chosen(project, "one")


def test_m13_a_tuning_file_decides_and_the_others_are_not_compiled(project: Project) -> None:
    tuning(project, {"TIMES": "4"})
    said = tuned(project).build("GPU_TUNING=tuning.json")
    assert chosen(project) == {
        "by": "tuning",
        "candidate": "TIMES=4",
        "file": "tuning.json",
        "why": "measured on NVIDIA H200 (9.0), the fastest of 4",
        "of": 4,
        "failed": 1,
    }
    assert "scale: TIMES=4 (by tuning, tuning.json: measured on NVIDIA H200" in said.stderr
    assert project.compiled() == ["plain", "scale [TIMES=4]"]
    assert project.kernels("one") == ["plain", "scale"]  # TIMES=4 asks for no helper
    project.idle("GPU_TUNING=tuning.json")
    tuning(project, {"TIMES": "2"})  # as a pull brings it
    project.build("GPU_TUNING=tuning.json")
    assert project.compiled() == ["fill", "scale [TIMES=2]"]
    assert project.kernels("one") == ["fill", "plain", "scale"]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"arch": "sm_80"}, "it was measured as sm_80 only"),
        ({"values": {"TIMES": "77"}}, "TIMES=77, which was measured, is passed over: it is no candidate any more"),
        ({"values": {"TIMES": "13"}}, "TIMES=13, which was measured, is passed over"),
        ({"keys": {"n": "4"}}, ""),
    ],
)
def test_m13_what_a_tuning_file_knows_of_another_problem_decides_nothing(project: Project, changed: dict[str, Any], why: str) -> None:
    tuning(project, **{"values": {"TIMES": "4"}, **changed})
    tuned(project).build("GPU_TUNING=tuning.json")
    assert chosen(project)["by"] == "resources"
    assert chosen(project)["candidate"] == "TIMES=2"
    assert why in chosen(project)["why"]


def test_m13_a_solution_that_fails_here_leaves_the_choice_to_the_others(project: Project) -> None:
    tuning(project, {"TIMES": "512"})
    tuned(project).build("GPU_TUNING=tuning.json")
    assert (chosen(project)["by"], chosen(project)["candidate"]) == ("resources", "TIMES=2")  # the better one, not the first
    assert "TIMES=512, which was measured, is passed over: it cannot be compiled" in chosen(project)["why"]


def test_m12_what_a_failed_solution_leaves_to_the_others_is_compiled_once(project: Project) -> None:
    """For two modules, by their choices and not by SCons; the images look up what was taken."""
    tuning(project, {"TIMES": "512"})
    tuned(project, names=("one", "two")).build("-j2", "GPU_TUNING=tuning.json")
    assert project.compiled() == ["fill", "plain", "scale [TIMES=2]", "scale [TIMES=4]", "scale [TIMES=512]"]


def test_m14_what_a_choice_asks_for_is_one_batch_more_for_all_modules(project: Project) -> None:
    """Helpers inherit nothing of who asks: here the module has a register limit, and the helpers' module another."""
    tuned(project, names=("one", "two"))
    project.edit("SConstruct", '["fill.cu"]', '["fill.cu"], GPU_MAXRREGCOUNT=24')
    project.edit("SConstruct", '["scale.cu"],', '["scale.cu"], GPU_MAXRREGCOUNT=64,')
    project.build("-j2")
    assert project.compiled().count("fill") == 1
    assert "copy" not in project.compiled()
    stages = [(record["stage"], record["name"]) for record in project.last()]
    assert stages.index(("lower", "fill")) > max(place for place, (stage, _) in enumerate(stages) if stage == "choose")
    plan = project.plan("one")
    fill = next(part for part in plan["parts"] if part["kernels"] and part["kernels"][0]["symbol"] == "fill")
    assert fill["assemble"]["maxrregcount"] == 24
    assert project.command("compare", "build/net.json").returncode == 0


def test_m14_a_helper_that_nobody_has_is_told(project: Project) -> None:
    said = tuned(project, '[{"TIMES": 2, "needs": ["zero"]}]').fail().output
    assert "kernel scale of one (sm_90): the candidate that was chosen asks for zero, which no helper has" in said
    assert "the helpers have copy, fill" in said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ('[{"TIMES": 4}, {"TIMES": 4}]', "candidates of scale: TIMES=4 stands there twice"),
        ('{"value": [{"TIMES": 4}]}', "candidates of scale: value means nothing"),
        ("[]", "candidates of scale: values are a list of dictionaries"),
        ('[{"GPU_ARCHS": "sm_80"}]', "candidates of scale: GPU_ARCHS cannot be set for a candidate"),
        ('{"source": "other.cu", "values": [{}]}', "candidates of scale: other.cu is no source of the module"),
        ('{"values": [{}], "launch": {"grid": [1]}}', "a launch has no block"),
    ],
)
def test_candidates_that_cannot_be_meant_are_told_before_anything_is_built(project: Project, values: str, said: str) -> None:
    result = tuned(project, values).fail()
    assert said in result.output
    assert not project.exists("build")


def test_a_pattern_that_names_no_kernel_is_told(project: Project) -> None:
    tuned(project)
    project.edit("SConstruct", '{"scale"', '{"scal"')
    assert "candidates are given for scal, and no kernel is called that\n  it has scale" in project.fail().output


def test_candidates_of_ir_differ_in_options(project: Project) -> None:
    values = '[{"GPU_MAXRREGCOUNT": 16}, {}]'
    project.write("SConstruct", f'env.GpuProgram("build/net", env.GpuModule("net", ["a.ll"], candidates={{"a": {values}}}))\n')
    project.write("a.ll", ll("a"))
    project.build()
    assert chosen(project, "net", "a")["of"] == 2
    assert project.compiled() == ["a [GPU_MAXRREGCOUNT=16]"]  # one text to lower, two to assemble
    assert project.done()["assemble"] == 2
    project.idle()


@pytest.mark.parametrize("link", ["image", "bundle"])
def test_a_dump_holds_every_candidate_and_the_build_goes_on(project: Project, link: str) -> None:
    tuned(project, head=f'env["GPU_LINK"] = "{link}"\n')
    project.build("gpu-dump", "build")
    assert project.exists("build/net.json")
    dump = json.loads(read_member(project, "dump.json"))
    (problem,) = dump["problems"]
    assert [candidate["values"]["TIMES"] for candidate in problem["candidates"]] == ["4", "2", "13", "512"]
    assert [bool(candidate["image"]) for candidate in problem["candidates"]] == [True, True, False, False]
    image = read_member(project, problem["candidates"][0]["image"])
    assert image.startswith(b"\x7fELF")
    project.idle("gpu-dump", "build")


def test_a_dump_is_made_where_it_is_asked_for(project: Project) -> None:
    tuned(project).build()
    assert project.files("**/*.gpudump") == {}
    project.build("gpu-dump")
    assert list(project.files("**/*.gpudump")) == ["build/net.gpudump"]
    project.idle()
    project.run("-c", "build/net.json")
    assert project.files("**/*.gpudump") == {}


def read_member(project: Project, name: str) -> bytes:
    import zipfile  # noqa: PLC0415 - for this test alone

    with zipfile.ZipFile(project.path("build/net.gpudump")) as archive:
        return archive.read(name)


def test_an_edit_of_one_candidate_compiles_that_one(project: Project) -> None:
    tuned(project).build()
    project.edit("scale.cu", "    launches =", "#if TIMES == 4\n    data[0] += 1;\n#endif\n    launches =")
    project.build()
    assert project.compiled() == ["scale [TIMES=4]"]


def test_m8_candidates_are_named_in_the_order_of_declaration(project: Project) -> None:
    said = tuned(project, '[{"TIMES": 13}, {"TIMES": 512}, {"TIMES": 1}]').build("-j2").stderr
    assert said.index("TIMES=13 cannot") < said.index("TIMES=512 cannot")


def test_m13_what_an_object_takes_is_known_where_twins_share_it(project: Project) -> None:
    """Such an object does not bear the kernel's name."""
    tuned(project, head='env["GPU_LINK"] = "bundle"\nenv["GPU_SHARE_TWINS"] = 1\n').build()
    assert chosen(project)["candidate"] == "TIMES=2"
    assert "unknown" not in chosen(project)["why"]


@pytest.mark.parametrize("link", ["image", "bundle"])
def test_s2_a_kernel_with_candidates_has_no_other_of_its_name_in_the_module(project: Project, link: str) -> None:
    candidates = '{"a": {"source": "a.ll", "values": [{"GPU_MAXRREGCOUNT": 16}, {}]}}'
    module = f'env.GpuModule("net", ["a.ll", "b.ll"], GPU_LINK="{link}", candidates={candidates})'
    project.write("SConstruct", f'env.GpuProgram("build/net", {module})\n')
    project.write("a.ll", ll("a"))
    project.write("b.ll", ll("a=2.0"))
    assert "kernel a is defined differently in a.ll and in b.ll" in project.fail().output


def test_m5_a_helper_has_a_name_of_its_own(project: Project) -> None:
    """Its files lie beside the modules': of two of one name, all owners would have the kernels of one."""
    project.write(
        "SConstruct",
        """
for name in ("one", "two"):
    fills = env.GpuModule("fills", [f"{name}.ll"])
    env.GpuModule(name, ["a.ll"], candidates={"a": [{"needs": "fill"}]}, helpers=[fills])
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=["one", "two"]))
""",
    )
    project.write("a.ll", ll("a"))
    project.write("one.ll", ll("fill=1.0"))
    project.write("two.ll", ll("fill=2.0"))
    assert "module fills is declared at SConstruct:5 and, as a helper, at SConstruct:5" in project.fail().output


def test_m11_lowering_that_fails_is_the_failure_of_each_candidate_that_assembles_it(project: Project) -> None:
    """Register limits differ, and the PTX that they would be of is one."""
    inc = "llvm.nvvm.setmaxnreg.inc.sync.aligned.u32"
    project.write(
        "a.ll",
        f"""{ll()}
declare void @{inc}(i32 immarg)
define ptx_kernel void @a() {{
  call void @{inc}(i32 64)
  ret void
}}
""",
    )
    values = '[{"GPU_MAXRREGCOUNT": 32}, {}]'
    project.write("SConstruct", f'env.GpuProgram("build/net", env.GpuModule("net", ["a.ll"], candidates={{"a": {values}}}))\n')
    first = project.fail().stderr
    assert "none of its 2 candidates can be compiled" in first
    assert first.count("needs sm_90a") == 2
    assert [record["stage"] for record in project.last() if record["stage"] == "lower"] == ["lower"]
    assert "none of its 2 candidates can be compiled" in project.fail().stderr
    assert not project.done()["lower"]


def test_m13_a_program_of_a_subfolder_with_a_variant(project: Project) -> None:
    """A dump is asked for by its path from the top, and `-c` takes it away; a tuning file is called what it is called, wherever it is copied."""
    tuning(project, {"GPU_MAXRREGCOUNT": "16"}, kernel="a")
    project.path("sub").mkdir()
    project.path("tuning.json").rename(project.path("sub/tuning.json"))
    project.write("sub/a.ll", ll("a"))
    project.write(
        "sub/SConscript",
        """
Import("env")
module = env.GpuModule("net", ["a.ll"], GPU_TUNING=["tuning.json"], candidates={"a": [{}, {"GPU_MAXRREGCOUNT": 16}]})
env.GpuProgram("build/net", module)
""",
    )
    project.write("SConstruct", 'SConscript("sub/SConscript", exports="env", variant_dir="out", duplicate=0)\n')
    said = project.build("out/build/net.gpudump")
    assert project.exists("out/build/net.gpudump")
    assert "nothing to do" not in said.stdout
    project.build()
    told = project.manifest("out/build/net")["modules"]["net"]["kernels"]["a"]["archs"]["sm_90"]["chosen"]
    assert (told["by"], told["file"]) == ("tuning", "sub/tuning.json")
    project.build("-c")
    assert not project.files("out/**/*")
    project.edit("sub/SConscript", 'GPU_TUNING=["tuning.json"], ', "")
    project.build("GPU_TUNING=sub/tuning.json")  # from the top, as it is written there
    assert project.manifest("out/build/net")["modules"]["net"]["kernels"]["a"]["archs"]["sm_90"]["chosen"]["by"] == "tuning"


SLOW = 'case "$*" in *maxrregcount=40*) i=0; while [ $i -lt 2000000 ]; do i=$((i+1)); done;; esac'
"""Some seconds of CPU time, of the process that has the limit."""


@pytest.mark.parametrize("shared", ["with the first", "with another module"])
def test_m11_a_unit_that_may_take_its_time_somewhere_may_take_it(
    project: Project, toolchain: Toolchain, tmp_path: Path, shared: str
) -> None:
    assert toolchain.ptxas is not None
    toolkit = Toolkit(toolchain, tmp_path / "toolkit")
    toolkit.wrap("ptxas", Path(toolchain.ptxas.path), before=SLOW)
    values = '[{"GPU_MAXRREGCOUNT": 40}, {"GPU_MAXRREGCOUNT": 40, "GPU_PTXASFLAGS": ""}]'
    others = ""
    if shared == "with another module":
        values = '[{}, {"GPU_MAXRREGCOUNT": 40}]'
        others = 'env.GpuModule("two", ["a.ll"], GPU_MAXRREGCOUNT=40)'
    project.write(
        "SConstruct",
        IMAGE
        + f"""
one = env.GpuModule("one", ["a.ll"], candidates={{"a": {values}}})
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[one, {others}]))
""",
    )
    project.write("a.ll", ll("a"))
    project.build("GPU_CANDIDATE_SECONDS=1", f"GPU_CUDA_PATH={toolkit.root}")
    assert chosen(project, kernel="a")["failed"] == 0


def test_m11_a_tool_that_was_killed_says_nothing_of_its_candidate(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    """As for want of memory: with another candidate in its place the build would be another one, also the next time."""
    assert toolchain.ptxas is not None
    toolkit = Toolkit(toolchain, tmp_path / "toolkit")
    before = f'case "$*" in *maxrregcount=40*) [ -e {tmp_path}/memory ] || kill -9 $$;; esac'
    toolkit.wrap("ptxas", Path(toolchain.ptxas.path), before=before)
    values = '[{"GPU_MAXRREGCOUNT": 40}, {}]'
    project.write("SConstruct", f'env.GpuProgram("build/net", env.GpuModule("net", ["a.ll"], candidates={{"a": {values}}}))\n')
    project.write("a.ll", ll("a"))
    said = project.fail(f"GPU_CUDA_PATH={toolkit.root}").stderr
    assert "kernel a [GPU_MAXRREGCOUNT=40] of net/a.ll (sm_90): ptxas was killed by SIGKILL" in said
    (tmp_path / "memory").touch()
    project.build(f"GPU_CUDA_PATH={toolkit.root}")
    assert chosen(project, "net", "a")["candidate"] == "GPU_MAXRREGCOUNT=40"
