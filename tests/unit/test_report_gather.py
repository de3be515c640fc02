from __future__ import annotations

import dataclasses
from typing import Any

from scons_gpu.inspect import builds, graph
from scons_gpu.inspect.report.gather import gather, results
from scons_gpu.inspect.report.known import Known, Program
from scons_gpu.inspect.report.model import Edge, Node, Report
from scons_gpu.link import manifest
from scons_gpu.plan.model import Part, Plan, PlannedKernel
from scons_gpu.store.stats import stats


def action(stage: str, unit: str, begun: float, took: float, **fields: Any) -> dict[str, Any]:
    record = {"build": "b1", "time": begun + took, "type": "action", "stage": stage, "name": unit, "result": "built", "owners": ["then"]}
    return {**record, "unit": unit, "role": "unit", "arch": "sm_90", "start": begun, "end": begun + took, "cpu": took, **fields}


RECORDS: list[dict[str, Any]] = [
    {"build": "b1", "time": 10.0, "type": "start", "argv": ["-j2"], "looking": False, "jobs": 2},
    action("lower", "d1", 10, 4),
    action("lower", "d2", 10.5, 1),
    action("assemble", "d2", 12, 1),
    action("lower", "d3", 13.5, 0.5, result="failed", output="no such instruction"),
    action("lower", "d4", 14, 1, candidate="TILE=2"),
    action("lower", "d5", 14, 1, candidate="TILE=4"),
    action("lower", "s1", 15, 1, role="state"),
    {
        "build": "b1",
        "time": 17.0,
        "type": "end",
        "ok": False,
        "programs": ["/t/net"],
        "units_needed": ["d1", "d2", "d3", "d5", "d6", "d7"],
        "units_deferred": ["d7"],
        "references": 8,
        "unique": 7,
        "wall_seconds": 8.0,
    },
]


def part(digest: str, **fields: Any) -> Part:
    kernels = (PlannedKernel(f"_Z{digest}", f"{digest}(int)", "k.cu", max_threads=256, shared_bytes=64),)
    return Part(digest=digest, key=(), slice=f"slice {digest}", role="unit", source="k.cu", bytes=100, kernels=kernels, **fields)


def known(**program: Any) -> Known:
    history = builds.history(RECORDS)
    plan = Plan(module="then", arch="sm_90", link="image", parts=(part("d1", body="x"), part("d2", body="x"), part("d3"), part("d8")))
    other = Plan(module="else", arch="sm_90", link="image", parts=(part("d1", body="x"),))
    made = Program(**{"stem": "/t/net", "manifest": None, "plans": (plan, other), **program})
    return Known(history=history, counts=stats(RECORDS), build=history.build(), programs=(made,))


def test_what_became_of_units_is_what_stats_counts() -> None:
    build = known().build
    assert build
    became = results(build)
    assert became == {
        "d1": "compiled",
        "d2": "compiled",
        "d3": "failed",
        "d4": "candidate",
        "d5": "compiled",
        "d6": "reused",
        "d7": "deferred",
    }
    counted = stats(RECORDS)
    for result in ("compiled", "reused", "deferred", "failed"):
        assert list(became.values()).count(result) == getattr(counted, result), result
    assert list(became.values()).count("candidate") == counted.candidates


def test_units_have_owners_times_and_twins() -> None:
    report = gather(known())
    assert [(unit.digest, unit.result, unit.seconds, unit.modules) for unit in report.units] == [
        ("d1", "compiled", 4.0, ("then", "else")),
        ("d2", "compiled", 2.0, ("then",)),
        ("d3", "failed", None, ("then",)),
        ("d8", "kept", None, ("then",)),
        ("d4", "candidate", 1.0, ("then",)),
    ]
    assert [(twin.group, report.units[twin.unit].digest) for twin in report.twins] == [(0, "d1"), (0, "d2")]
    assert [failure.text for failure in report.failures] == ["no such instruction"]
    assert [(module.name, module.root, module.references, module.compiled, module.failed) for module in report.modules] == [
        ("then", True, 4, 2, 1),
        ("else", True, 1, 1, 0),
    ]


def test_steps_are_those_of_the_timeline() -> None:
    report = gather(known())
    assert [(step.name, step.lane, step.start, step.seconds) for step in report.steps] == [
        ("d1", 0, 0.0, 4.0),
        ("d2", 1, 0.5, 1.0),
        ("d2", 1, 2.0, 1.0),
        ("d3", 1, 3.5, 0.5),
        ("d4", 0, 4.0, 1.0),
        ("d5", 1, 4.0, 1.0),
        ("s1", 0, 5.0, 1.0),
    ]
    assert [lane.name for lane in report.lanes] == ["worker 0", "worker 0 (2)"]
    assert report.overview.wall_seconds == 8.0


def test_resources_are_the_manifests_where_it_is_of_the_same_unit() -> None:
    def built(unit: str) -> manifest.Kernel:
        values = {"registers": 128, "spill_bytes": 8, "shared_bytes": 0, "constant_bytes": 360, "stack_bytes": 16, "max_threads": 256}
        return manifest.Kernel("x", "k.cu", {"sm_90": manifest.Build(unit, "llvm", f"o-{unit}", f"_Z{unit}", **values)})

    module = manifest.Module(
        bypass=False,
        images={"sm_90": manifest.Image("net/then/sm_90.cubin", "")},
        kernels={"_Zd1": built("d1"), "_Zd2": built("an older one")},
    )
    read = manifest.Manifest(
        "net", ("sm_90",), {"ptxas": manifest.ToolFact("13.5", "ab")}, {"then": module, "else": manifest.Module(bypass=False)}
    )
    report = gather(known(manifest=read, sizes={"net/then/sm_90.cubin": 4096}, code={("then", "sm_90", "_Zd1"): 640}))
    rows = {(kernel.module, kernel.symbol): kernel for kernel in report.kernels}
    one = rows["then", "_Zd1"]
    # 128 registers leave 16 of an SM's 64 warps.
    assert (one.registers, one.spill_bytes, one.occupancy, one.code_bytes, one.max_threads) == (128, 8, 25.0, 640, 256)
    other = rows["then", "_Zd2"]
    assert (other.registers, other.occupancy, other.code_bytes, other.shared_bytes, other.max_threads) == (None, None, None, 64, 256)
    assert report.modules[0].files[0].bytes == 4096
    assert [tool.name for tool in report.tools] == ["ptxas"]


def test_the_graph_is_shown_without_tools_and_foreign_headers() -> None:
    made = graph.Graph(
        nodes=(
            graph.Node("module", "then", "module:/t/net/then", modules=("/t/net/then",)),
            graph.Node("unit", "d3(int)", "unit:d3", digest="d3", modules=("/t/net/else", "/t/net/then")),
            graph.Node("source", "k.cu", "source:k.cu", modules=("/t/net/then",)),
            graph.Node("header", "own.h", "header:own.h"),
            graph.Node("header", "/usr/include/math.h", "header:/usr/include/math.h", ours=False),
            graph.Node("tool", "llvm 22", "tool:llvm 22", ours=False),
        ),
        edges=((1, 0), (2, 1), (3, 2), (4, 2), (5, 1)),
    )
    report = gather(dataclasses.replace(known(), graph=made))
    assert report.nodes == (
        Node("module", "then", "then", 0),
        Node("unit", "d3(int)", "", 2, "failed"),
        Node("source", "k.cu", "then"),
        Node("header", "own.h", ""),
    )
    assert report.edges == (Edge(1, 0), Edge(2, 1), Edge(3, 2))


def test_no_build_has_no_rows() -> None:
    assert gather(Known(history=builds.history([]), counts=stats([]))) == Report()
