"""Providers, deferral, lowering and link modes with one another: what no single one of them is about."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest
from project import LL_HEAD, Project, ll
from test_verify_reuse import VERIFY, alter, flip, verified

from scons_gpu.store import sealed

if TYPE_CHECKING:
    from toolkits import Toolkit

STATE = "@counter = addrspace(1) externally_initialized global i32 0\n"
COUNT = """
define ptx_kernel void @count(i32 %by) {
  %old = atomicrmw add ptr addrspace(1) @counter, i32 %by seq_cst
  ret void
}
"""
NET = 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n'
SCHEMA = json.loads((Path(__file__).parents[2] / "docs/manifest.schema.json").read_text())
WAYS = {
    "pair": ("GPU_PROVIDER=nvptxcompiler+nvlink",),
    "deferred": ("GPU_DEFER=always",),
    "deferred on nvjitlink": ("GPU_PROVIDER=nvjitlink", "GPU_DEFER=always"),
    "whole": ("GPU_PROVIDER=nvptxcompiler", "GPU_LINK=whole"),
    "merge": ("GPU_LINK=merge", "GPU_SHARE_TWINS=1"),
    "twins": ("GPU_PROVIDER=nvptxcompiler", "GPU_LINK=bundle", "GPU_SHARE_TWINS=1"),
    "bundle of PTX": ("GPU_PROVIDER=none", "GPU_LINK=bundle"),
}
"""Ways to build that are not the default, each with its arguments."""
KINDS = {"deferred": "deferred", "deferred on nvjitlink": "deferred", "bundle of PTX": "ptx", "whole": "ptx"}
"""What the store holds of a unit for the link, where that is no object."""


@pytest.fixture
def net(project: Project) -> Project:
    project.write("net.ll", ll("one=1.0", "two=2.0", "twin=2.0", head=STATE) + COUNT)
    project.write("SConstruct", NET)
    return project


@pytest.mark.parametrize("way", WAYS)
def test_the_commands_that_are_quoted_make_the_same_and_so_does_verifying(net: Project, way: str) -> None:
    printed = net.build("-j2", *WAYS[way], "GPU_ASSEMBLECOMSTR=", "GPU_DEFERCOMSTR=", "GPU_LINKCOMSTR=")
    quoted = [shlex.split(line)[1:] for line in printed.lines if line.startswith("scons-gpu ")]
    assert len(quoted) == {"whole": 1, "merge": 3, "twins": 4, "bundle of PTX": 1}.get(way, 6)
    for *words, target in (quoted[0], quoted[-1]):
        done = net.command(*words, "again")
        assert done.returncode == 0, (words, done.output)
        assert net.bytes("again") == net.bytes(target), words
    net.build(*WAYS[way], VERIFY)
    assert {result for _, result in verified(net)} == {"same"}
    alter(entry(net, KINDS.get(way, "object")), flip)
    said = net.fail("-k", *WAYS[way], VERIFY).stderr
    assert said.count("fields of the key that differ: none") == said.count("fields of the key that differ:") > 0


def entry(project: Project, kind: str) -> Path:
    """One of the store's."""
    return next(path for path in sorted(project.root.glob(f".gpu-store/{kind}/*/*")) if path.suffix in {".ptx", ".dptx", ".cubin"})


def test_a_libnvvm_that_is_not_the_one_that_was_fingerprinted_is_a_field_that_differs(net: Project) -> None:
    """Facts of tools are believed as long as a file looks as it did. Here one is made that was never true."""
    net.build("GPU_ARCHS=sm_100")
    for path in net.path(".gpu-store/tools").glob("*/*.json"):
        fact = sealed.from_text(path.read_bytes())
        if "libnvvm" in fact["files"][0][0] and "identity" in fact["found"]:
            path.write_text(sealed.to_text({**fact, "found": {**fact["found"], "identity": "0" * 64}}))
    net.build("GPU_ARCHS=sm_100")
    unit = next(part["digest"] for part in net.plan("net", "sm_100")["parts"])
    alter(net.path(f".gpu-store/ptx/{unit[:2]}/{unit}.ptx"), flip)
    said = net.fail("GPU_ARCHS=sm_100", VERIFY).stderr
    assert re.search(r"fields of the key that differ:\n +nvvm = \S+ 0{64} in the store, \S+ [1-9a-f]\S{63} now\n", said), said


def test_deferred_ptx_says_whose_it_is(net: Project) -> None:
    net.build("GPU_DEFER=always")
    parts = {part["digest"] for part in net.plan("net")["parts"]}
    assert {json.loads(data.split(b"\n", 1)[0])["unit"] for data in net.files(".gpu-store/deferred/*/*.dptx").values()} == parts


def test_a_dump_of_deferred_ptx_has_no_machine_code_of_units(net: Project) -> None:
    said = net.build("GPU_DEFER=always", "GPU_DUMP=seen")
    assert "nvdisasm" not in said.output
    assert {"".join(Path(name).suffixes[-1:]) for name in net.files("seen/build/net/net/*")} == {".ll", ".ptx"}
    assert list(net.files("seen/**/*.cubin")) == ["seen/build/net/net.sm_90.cubin"]


def test_an_image_of_the_other_kind_does_not_stay(net: Project) -> None:
    """Of a module that ended with PTX, and is assembled in one piece now; and back."""
    for arguments, suffix in ((("GPU_PROVIDER=none",), "ptx"), (("GPU_LINK=whole",), "cubin"), (("GPU_PROVIDER=none",), "ptx")):
        net.build(*arguments)
        assert [Path(name).suffix for name in net.files("build/net/net/sm_90.*") if name.endswith((".ptx", ".cubin"))] == [f".{suffix}"]


SWITCHES = (
    (),
    ("GPU_DEFER=always",),
    ("GPU_PROVIDER=nvptxcompiler+nvjitlink",),
    ("GPU_PROVIDER=nvjitlink", "GPU_DEFER=always"),
    ("GPU_LINK=whole",),
    ("GPU_LINK=whole", "GPU_PROVIDER=nvptxcompiler"),
    ("GPU_LINK=merge",),
    ("GPU_LINK=merge", "GPU_PROVIDER=nvptxcompiler"),
    ("GPU_PROVIDER=none",),
    ("GPU_LINK=bundle",),
    ("GPU_LINK=bundle", "GPU_PROVIDER=none"),
)


def test_r2_every_switch_is_seen_and_going_back_compiles_nothing(net: Project) -> None:
    for arguments in SWITCHES:
        assert net.run("-q", *arguments).returncode == 1, arguments
        net.build(*arguments)
        expected = {SWITCHES[0]: ["count", "one", "twin", "two"], ("GPU_LINK=bundle",): ["count"]}  # a bundle cuts state otherwise
        assert net.compiled() == expected.get(arguments, []), arguments
        jsonschema.validate(net.manifest(), SCHEMA, cls=jsonschema.Draft202012Validator)
    net.idle(*SWITCHES[-1])
    for arguments in (("GPU_PROVIDER=nvjitlink", "GPU_DEFER=always"), ()):
        net.build(*arguments)
        assert (net.done()["lower"], net.done()["assemble"], net.done()["defer"]) == (0, 0, 0), arguments


def test_ptx_alone_needs_nothing_that_links(project: Project) -> None:
    project.write("net.ll", ll("one=1.0"))
    project.write("SConstruct", 'env.Ptx("k.ptx", ["net.ll"])\n')
    for provider in ("nvptxcompiler", "none", "nvjitlink"):
        project.build(f"GPU_PROVIDER={provider}")
        assert project.read("k.ptx").count(".entry one(") == 1


MIXED = """
modules = [
    env.GpuModule("pair", ["net.ll"], GPU_PROVIDER="nvptxcompiler+nvlink"),
    env.GpuModule("late", ["net.ll"], GPU_DEFER="always"),
    env.GpuModule("text", ["net.ll"], GPU_PROVIDER="none"),
    env.GpuModule("piece", ["net.ll"], GPU_LINK="whole"),
    env.GpuModule("apart", ["net.ll"], GPU_LINK="bundle", GPU_PROVIDER="nvjitlink"),
]
env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"], submodules=modules))
"""


def test_modules_of_one_program_are_each_made_in_their_own_way(net: Project) -> None:
    net.write("SConstruct", MIXED)
    net.build("-j2")
    assert net.compiled() == ["count", "count", "one", "twin", "two"], "a bundle cuts state otherwise"
    for module in ("net", "pair", "late", "piece"):
        assert net.kernels(module) == ["count", "one", "twin", "two"]
        assert net.variables(module) == ["counter"]
    assert net.read("build/net/text/sm_90.ptx").count(".entry") == 4
    modules = net.manifest()["modules"]
    assert {name: module["options"]["provider"] for name, module in modules.items()} == {
        "net": "ptxas",
        "pair": "nvptxcompiler+nvlink",
        "late": "ptxas",
        "text": None,
        "piece": "ptxas",
        "apart": "nvjitlink",
    }
    jsonschema.validate(net.manifest(), SCHEMA, cls=jsonschema.Draft202012Validator)
    net.idle()


TUNED = """
fills = env.GpuModule("fills", ["fill.ll"], FILLS)
values = [{}, {"GPU_FTZ": 1, "needs": ["fill"]}]
modules = [env.GpuModule(name, ["net.ll"], candidates={"count": values}, helpers=[fills], **more) for name, more in OWNERS]
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=modules))
"""


def tuned(project: Project, owners: list[tuple[str, dict[str, str]]], fills: str = "") -> Project:
    project.write("net.ll", ll("one=1.0", head=STATE) + COUNT)
    project.write("fill.ll", ll("fill=3.0"))
    project.write("SConstruct", TUNED.replace(", FILLS", fills and f", {fills}").replace("OWNERS", repr(owners)))
    return project


def test_m11_candidates_are_chosen_whoever_makes_them(project: Project) -> None:
    """With the module's state, which a candidate's object leaves to others."""
    owners = [
        ("pair", {"GPU_PROVIDER": "nvptxcompiler+nvlink"}),
        ("late", {"GPU_DEFER": "always"}),
        ("later", {"GPU_PROVIDER": "nvjitlink", "GPU_DEFER": "always"}),
        ("text", {"GPU_PROVIDER": "none"}),
        ("piece", {"GPU_LINK": "whole", "GPU_PROVIDER": "nvptxcompiler"}),
    ]
    tuned(project, owners).build("-j2")
    for name, _ in owners:
        kernels = project.manifest()["modules"][name]["kernels"]
        assert set(kernels) >= {"count", "one"}, name
        assert kernels["count"]["archs"]["sm_90"]["chosen"]["of"] == 2
        if name != "text":
            assert project.variables(name) == ["counter"], name
    project.idle()
    jsonschema.validate(project.manifest(), SCHEMA, cls=jsonschema.Draft202012Validator)


def test_m14_a_helper_is_made_with_its_owners_tools(project: Project, toolkit: Toolkit) -> None:
    """Its PTX has a version that the owner's assembler reads, and no digest names another library than the one that lowered."""
    said = tuned(project, [("one", {})], f"GPU_CUDA_PATH={str(toolkit.root)!r}").fail().output
    assert "module one: helper fills: GPU_CUDA_PATH cannot be another one than the module's" in said
    tuned(project, [("one", {"GPU_PROVIDER": "ptxas"}), ("text", {})], "GPU_PROVIDER='none'").build()
    plans = sorted(name for name in project.files("build/net/fills*/sm_90.plan.json"))
    assert plans == ["build/net/fills.merge.auto/sm_90.plan.json", "build/net/fills.merge.ptxas/sm_90.plan.json"]
    project.idle()


SOURCES = """
env.GpuProgram("build/net", env.GpuModule("net", ["one.ll", "two.ll", "three.ptx"]))
"""
CALLER = """
declare float @twice(float)
define ptx_kernel void @calls(ptr addrspace(1) %data) {
  %old = load float, ptr addrspace(1) %data
  %new = call float @twice(float %old)
  store float %new, ptr addrspace(1) %data
  ret void
}
"""
TWICE = """
define float @twice(float %value) {
  %by = load float, ptr addrspace(1) @scale
  %new = fmul float %value, %by
  ret float %new
}
"""
SCALE = "@scale = addrspace(1) externally_initialized global float 2.0\n"
PTX = """.version 8.0
.target sm_80
.address_size 64
.extern .global .align 4 .f32 scale;
.visible .entry third(.param .u64 p)
{
	.reg .f32 %f<2>;
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [p];
	ld.global.f32 %f1, [scale];
	st.global.f32 [%rd1], %f1;
	ret;
}
"""


@pytest.mark.parametrize(
    "way", [(), *(WAYS[name] for name in ("pair", "deferred", "deferred on nvjitlink", "whole")), ("GPU_ARCHS=sm_100",)]
)
def test_g6_joined_sources_and_ptx_share_one_variable(project: Project, way: tuple[str, ...]) -> None:
    project.write("one.ll", LL_HEAD + CALLER)
    project.write("two.ll", LL_HEAD + SCALE + TWICE)
    project.write("three.ptx", PTX)
    project.write("SConstruct", SOURCES)
    project.build("-j2", *way)
    arch = "sm_100" if "GPU_ARCHS=sm_100" in way else "sm_90"
    assert project.kernels("net", arch) == ["calls", "third"]
    assert project.variables("net", arch) == ["scale"]
    project.idle(*way)
