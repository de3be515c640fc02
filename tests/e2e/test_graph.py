"""The graph, the trace and the critical path of a real build, held against what its manifest and its log say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from project import CUDA, Project, ll

from scons_gpu.inspect import builds
from scons_gpu.inspect.chain import chain, needs
from scons_gpu.inspect.graph import Graph, read
from scons_gpu.inspect.graph_files import digests
from scons_gpu.inspect.graph_find import find
from scons_gpu.inspect.graph_walk import Walk
from scons_gpu.inspect.timeline import timeline
from scons_gpu.inspect.trace import trace

if TYPE_CHECKING:
    from collections.abc import Iterable

SCONSTRUCT = (
    CUDA
    + """\
env["GPU_LINK"] = "image"
env.Command("made.h", [], lambda target, source, env: open(str(target[0]), "w").write("#define MADE 1\\n") and None)
ops = env.GpuModule("ops", ["k.cu"], CPPPATH=["."])
then = env.GpuModule("then", ["relu.ll"])
off = env.GpuModule("off", ["relu.ll"], bypass=True, submodules=[ops])
pieces = env.GpuModule("pieces", ["relu.ll", "extra.ll"], GPU_LINK="bundle")
merged = env.GpuModule("merged", ["relu.ll"], GPU_LINK="whole")
env.GpuProgram("build/net", env.GpuModule("net", ["hand.ptx"], submodules=[then, off, pieces, merged]))
"""
)
PTX = """\
.version 8.0
.target sm_90
.address_size 64
.visible .entry by_hand() {
  ret;
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("graph"))
    project.write("SConstruct", SCONSTRUCT)
    project.write("near.h", '#include "made.h"\n')
    project.write("k.cu", '#include "near.h"\nextern "C" __global__ void k(float* p) { p[threadIdx.x] = MADE; }\n')
    project.write("relu.ll", ll("relu"))
    project.write("extra.ll", ll("extra=3.0"))
    project.write("hand.ptx", PTX)
    project.build("-j2")
    return project


@pytest.fixture(scope="module")
def whole(built: Project) -> Graph:
    return read(built.path(".gpu-store"))


def names(graph: Graph, places: Iterable[int], kind: str) -> list[str]:
    return [graph.nodes[place].name for place in sorted(places) if graph.nodes[place].kind == kind]


def test_every_unit_and_object_of_the_manifest_and_no_other(built: Project, whole: Graph) -> None:
    told = {
        (build["unit"], f"build/net/{name}")
        for name, module in built.manifest()["modules"].items()
        for kernel in module["kernels"].values()
        for build in kernel["archs"].values()
    }
    assert {(node.digest, owner) for node in whole.nodes if node.kind == "unit" for owner in node.modules} == told
    objects = {
        build["object"]
        for module in built.manifest()["modules"].values()
        for kernel in module["kernels"].values()
        for build in kernel["archs"].values()
        if build["object"]
    }
    assert {node.name for node in whole.nodes if node.kind == "object"} == objects
    files = {node.name for node in whole.nodes if node.kind in ("image", "fatbin", "bundle", "source", "header") and node.ours}
    assert [file for file in sorted(files) if not built.path(file).exists()] == []
    assert read(built.path(".gpu-store"), manifests=[built.path("build/net.json")]).edges == whole.edges


def test_what_is_made_of_what(whole: Graph) -> None:
    walk = Walk(whole)
    made = walk.users(find(whole, "made.h"))
    assert [names(whole, made, kind) for kind in ("source", "unit", "fatbin", "module")] == [
        ["k.cu"],
        ["k"],
        ["build/net/ops.fatbin"],
        ["net", "off", "ops"],
    ]
    hand = walk.inputs(find(whole, "by_hand"))
    assert (names(whole, hand, "source"), names(whole, hand, "tool")) == (["hand.ptx"], [])
    relu = find(whole, "unit:relu")
    assert names(whole, walk.users(relu), "bundle") == ["build/net/pieces.gpubundle"]
    assert names(whole, walk.users(relu), "image") == ["build/net/merged/sm_90.cubin", "build/net/then/sm_90.cubin"]
    whole_image = find(whole, "build/net/merged/sm_90.cubin")
    assert names(whole, (one for one, other in whole.edges if other in whole_image), "object") == [], "one piece of PTX, no objects"


def test_steps_wait_for_what_they_read(built: Project) -> None:
    build = builds.of(built.path(".gpu-store"))
    found, units = timeline(build), digests(built.path(".gpu-store"), build, then=False)
    steps = found.steps
    pairs = needs([step.action for step in steps], units)
    assert {steps[place].action.stage for place in range(len(steps)) if not any(place == other for _, other in pairs)} == {"source"}
    late = {(one, other) for one, other in pairs if steps[one].start + steps[one].seconds > steps[other].start + 1e-3}
    assert [(steps[one].action.target, steps[other].action.target) for one, other in sorted(late)] == []
    way = chain(found, units)
    assert [way.links[0].step.action.stage, way.links[-1].step.action.stage] == ["source", "manifest"]
    assert 0 < way.seconds <= way.span <= way.wall_seconds
    events = json.loads(trace(found))["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == len(build.actions)
    assert all("bytes" in event["args"] for event in events if event["ph"] == "X" and event["args"]["result"] == "built")


def test_without_an_assembler_units_go_to_the_image_as_they_are(built: Project) -> None:
    built.build("GPU_PROVIDER=none", "build/net/then.fatbin")
    found = read(built.path(".gpu-store"))
    (relu,) = [place for place in find(found, "unit:relu") if "build/net/then" in found.nodes[place].modules]
    image = [other for one, other in found.edges if one == relu]
    assert "build/net/then/sm_90.ptx" in [found.nodes[place].name for place in image]
