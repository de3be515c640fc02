"""M11-M14: helper modules, what a choice is made anew by, and what is measured of a candidate."""

from __future__ import annotations

import json

import pytest
from project import Project, ll
from test_candidates import chosen, tuning

from scons_gpu.tune.dump import read_dump

OWNER = """
fills = env.GpuModule("fills", ["fill.ll"])
net = env.GpuModule("net", ["a.ll"], candidates={"a": [{"needs": "fill"}]}, helpers=[fills])
env.GpuProgram("build/net", net)
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("helpers=[fills]", 'helpers=["fills"]', "module net at SConstruct:5: 'fills' is no module of helper kernels"),
        (
            '["fill.ll"]',
            '["fill.ll"], helpers=[env.GpuModule("f", [])]',
            "module net at SConstruct:5: its helper fills has helpers of its own",
        ),
        ('["fill.ll"]', '["fill.ll"], candidates={"fill": [{}]}', "module net at SConstruct:5: its helper fills has candidates of its own"),
        (
            '["fill.ll"]',
            '["fill.ll"], GPU_CUDA_PATH="there"',
            "module net: helper fills: GPU_CUDA_PATH cannot be another one than the module's",
        ),
    ],
)
def test_m14_what_is_no_helper_is_told_when_it_is_read(project: Project, old: str, new: str, said: str) -> None:
    project.write("SConstruct", OWNER)
    project.edit("SConstruct", old, new)
    assert f"error: {said}\n" in project.fail("-n").stderr


def test_m5_a_helper_keeps_its_plans_to_itself(project: Project) -> None:
    """What is its owner's stands in the folder's name, and a module may be called so too."""
    project.write("SConstruct", OWNER)
    project.edit("SConstruct", '["a.ll"],', '["a.ll"], GPU_LINK="whole", submodules=[env.GpuModule("fills.whole", [])],')
    said = "error: module fills.whole at SConstruct:5 and the helper fills at SConstruct:4 both keep their plans in fills.whole\n"
    assert said in project.fail("-n").stderr
    project.edit("SConstruct", 'GPU_LINK="whole", ', "")
    assert "keep their plans" not in project.run("-n").stderr


def test_a_dump_without_candidates_is_told_and_fails_nothing(project: Project) -> None:
    project.write("SConstruct", 'env.GpuProgram("build/net", env.GpuModule("net", ["a.ll"]))\n')
    project.write("a.ll", ll("a"))
    looked = project.run("-n", "gpu-dump")
    assert looked.returncode == 0, looked.output
    assert "scons-gpu: net: no kernel of the program has candidates, so there is nothing to dump\n" in looked.stderr


def test_m14_a_choice_is_made_anew_for_other_options_and_needs(project: Project) -> None:
    """Of the module, whose flags go for candidates with options of their own too; of a helper."""
    project.write(
        "SConstruct",
        """
fills = env.GpuModule("fills", ["fill.ll"], GPU_MAXRREGCOUNT=24)
values = [{"GPU_MAXRREGCOUNT": 32, "needs": ["fill"]}]
net = env.GpuModule("net", ["a.ll"], GPU_PTXASFLAGS="-dlcm=ca", candidates={"a": values}, helpers=[fills])
env.GpuProgram("build/net", net)
""",
    )
    project.write("a.ll", ll("a"))
    project.write("fill.ll", ll("fill=2.0", "copy=3.0"))
    project.build()
    assert assembled(project) == {"a": (32, ["-dlcm=ca"]), "fill": (24, [])}
    project.edit("SConstruct", "GPU_MAXRREGCOUNT=24", "GPU_MAXRREGCOUNT=40")
    project.build()
    assert assembled(project) == {"a": (32, ["-dlcm=ca"]), "fill": (40, [])}
    project.edit("SConstruct", "-dlcm=ca", "-dlcm=cg")
    project.build()
    assert assembled(project) == {"a": (32, ["-dlcm=cg"]), "fill": (40, [])}
    project.edit("SConstruct", '["fill"]', '["fill", "copy"]')
    project.build()
    assert project.kernels("net") == ["a", "copy", "fill"]


STATE = "@counter = addrspace(1) externally_initialized global i32 0\n"
COUNT = """
define ptx_kernel void @count(i32 %by) {
  %old = atomicrmw add ptr addrspace(1) @counter, i32 %by seq_cst
  ret void
}
"""


def test_m14_a_helper_is_cut_as_its_owner_is_linked_and_lowered_as_it_says_itself(project: Project) -> None:
    """One helper of two modules: an object of a bundle has the variable that it uses, an image has one for all."""
    project.write(
        "SConstruct",
        """
fills = env.GpuModule("fills", ["fill.ll"], GPU_FTZ=1)
values = {"a": [{"needs": ["fill", "count"]}]}
one = env.GpuModule("one", ["a.ll"], candidates=values, helpers=[fills])
two = env.GpuModule("two", ["a.ll"], candidates=values, helpers=[fills], GPU_LINK="bundle")
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[one, two]))
""",
    )
    project.write("a.ll", ll("a"))
    project.write("fill.ll", ll("fill=2.0", head=STATE) + COUNT)
    project.build("-j2")
    assert project.kernels("one") == ["a", "count", "fill"]
    assert project.variables("one") == ["counter"]
    assert sorted(project.manifest()["modules"]["two"]["kernels"]) == ["a", "count", "fill"]
    assert [part["role"] for part in project.plan("one")["parts"]].count("state") == 1
    assert [part["role"] for part in project.plan("two")["parts"]].count("state") == 0
    texts = [data.decode() for data in project.files(".gpu-store/ptx/*/*.ptx").values()]
    assert {".ftz" in text for text in texts if ".entry fill(" in text} == {True}
    assert {".ftz" in text for text in texts if ".entry a(" in text} == {False}
    project.idle()


def assembled(project: Project) -> dict[str, tuple[int, list[str]]]:
    """Kernel → the register limit and the flags of its own that it was assembled with."""
    parts = project.plan("net")["parts"]
    return {part["kernels"][0]["symbol"]: (part["assemble"]["maxrregcount"], part["assemble"]["flags"]) for part in parts}


def test_m12_what_is_decided_once_is_one_problem_by_the_same_files(project: Project) -> None:
    """Three modules whose candidates come to the same: one problem is measured, and one module does not ask for that."""
    project.write(
        "SConstruct",
        """
values = [{}, {"GPU_MAXRREGCOUNT": 32}]
def module(name, n, **more):
    return env.GpuModule(name, ["a.ll"], candidates={"a": {"values": values, "keys": {"n": n}}}, **more)
others = [module("one", 1), module("two", 2), module("three", 2, GPU_TUNING=[])]
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=others))
""",
    )
    project.write("a.ll", ll("a"))
    tuning(project, {}, kernel="a", keys={"n": "2"})
    project.build("GPU_TUNING=tuning.json")
    assert [chosen(project, name, "a")["by"] for name in ("one", "two", "three")] == ["resources", "tuning", "resources"]
    project.build()
    assert {chosen(project, name, "a")["by"] for name in ("one", "two", "three")} == {"resources"}, "of an image that did not change"
    project.build("GPU_PROVIDER=nvptxcompiler+nvlink")
    assert project.done()["choose"] == 3, "by what another assembler makes"


SPILLS = """.version 7.8
.target sm_90
.address_size 64
.visible .entry bound()
.maxntid 256
{{
ret;
}}
.visible .entry heavy(.param .u64 p)
{{
.reg .b64 %rd<2>;
.reg .b32 %s<80>;
.shared .align 4 .b8 held[512];
ld.param.u64 %rd1, [p];
{loads}
st.shared.b32 [held], %s0;
{stores}
ret;
}}
"""


@pytest.mark.parametrize("link", ["image", "bundle"])
def test_m13_what_is_told_of_a_candidate_is_what_its_assembler_reports(project: Project, link: str) -> None:
    """In a bundle twins share its object, which bears no kernel's name."""
    loads = "\n".join(f"ld.volatile.global.b32 %s{n}, [%rd1+{4 * n}];" for n in range(80))
    stores = "\n".join(f"st.volatile.global.b32 [%rd1+{4 * n}], %s{n * 37 % 80};" for n in range(80))
    project.write("a.ptx", SPILLS.format(loads=loads, stores=stores))
    launch = {"grid": [1], "block": [32, 4], "shared": 1024, "args": ["out u32 80"]}
    heavy = {"values": [{}, {"GPU_MAXRREGCOUNT": 24}], "launch": launch}
    project.write(
        "SConstruct", f'env.GpuProgram("build/net", env.GpuModule("net", ["a.ptx"], candidates={{"bound": [{{}}], "heavy": {heavy}}}))\n'
    )
    project.build("gpu-dump", f"GPU_LINK={link}", "GPU_SHARE_TWINS=1")
    bound, problem = read_dump(project.path("build/net.gpudump")).problems
    assert bound.candidates[0].result.max_threads == 256
    plain, narrow = (each.result for each in problem.candidates)
    assert (plain.spill_bytes, plain.max_threads, plain.shared_bytes) == (0, None, 512)
    assert (plain.block_threads, plain.dynamic_bytes) == (128, 1024)
    assert plain.registers is not None
    assert plain.registers > 80
    assert narrow.registers == 24
    assert plain.instructions is not None
    assert plain.instructions > 160
    (spilled,) = [each for each in reported(project) if each["spill_stores"]]
    assert spilled["spill_loads"] > 0
    assert narrow.spill_bytes == spilled["spill_stores"] + spilled["spill_loads"]
    assert {each.entry for each in problem.candidates} == {spilled["kernel"]} == {"heavy" if link == "image" else "__kernel"}


def test_what_a_link_refuses_is_a_failure_of_its_candidate_in_a_dump(project: Project) -> None:
    """Only a linker knows which tables are left, and how large they are together."""
    tables = "".join(
        f"@t{name} = internal addrspace(4) constant [10000 x i32] [{', '.join(f'i32 {n * name}' for n in range(10_000))}]\n"
        for name in (3, 7)
    )
    looks = "".join(
        f"  %p{name} = getelementptr [10000 x i32], ptr addrspace(4) @t{name}, i32 0, i32 %i\n"
        f"  %v{name} = load i32, ptr addrspace(4) %p{name}\n"
        f"  store volatile i32 %v{name}, ptr addrspace(1) %out\n"
        for name in (3, 7)
    )
    project.write("a.ll", ll(head=tables) + f"define ptx_kernel void @a(ptr addrspace(1) %out, i32 %i) {{\n{looks}  ret void\n}}\n")
    project.write(
        "SConstruct", 'env.GpuProgram("build/net", env.GpuModule("net", ["a.ll"], candidates={"a": [{}, {"GPU_MAXRREGCOUNT": 32}]}))\n'
    )
    project.build("gpu-dump")
    (problem,) = read_dump(project.path("build/net.gpudump")).problems
    assert [each.image for each in problem.candidates] == [None, None]
    for each in problem.candidates:
        assert "its constants do not fit into the 64 KiB of an image" in each.result.failure


def reported(project: Project) -> list[dict[str, int | str]]:
    """What the assembler said of kernels, as the store's records have it."""
    found = []
    for path in project.root.glob(".gpu-store/object/*/*.json"):
        found += json.loads(path.read_text().splitlines()[0]).get("resources", [])
    return found
