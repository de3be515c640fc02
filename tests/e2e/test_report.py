"""The page of a build: what `scons-gpu report` and `env.GpuReport` put into it, for builds of every kind of end."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from project import CUDA, Project, ll
from test_candidates import tuned

from scons_gpu.inspect.report.gather import results
from scons_gpu.inspect.report.known import read
from scons_gpu.inspect.report.make import report
from scons_gpu.store.stats import stats

if TYPE_CHECKING:
    from scons_gpu.inspect.report.model import Node, Report

SCONSTRUCT = """
ops = env.GpuModule("ops", ["ops.ll"])
then = env.GpuModule("then", ["relu.ll"], submodules=[ops])
other = env.GpuModule("else", ["relu.ll"])
bare = env.GpuModule("bare", ["ops.ll"], bypass=True)
program = env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"], submodules=[then, other, bare]))
env.GpuReport("build/report.html", program)
"""


def page(project: Project, name: str = "build/report.html") -> dict[str, Any]:
    """The data that a page holds."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', project.read(name), re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def shown(project: Project) -> Report:
    return report(project.path(".gpu-store"))


def named(found: Report, kind: str) -> list[str]:
    return sorted(node.name for node in found.nodes if node.kind == kind)


def inputs(found: Report, wanted: Node) -> list[str]:
    place = found.nodes.index(wanted)
    return sorted(found.nodes[edge.input].name for edge in found.edges if edge.user == place)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A program that was built once, with a report as a step of it."""
    project = Project(tmp_path_factory.mktemp("net"))
    project.write("SConstruct", SCONSTRUCT)
    project.write("net.ll", ll("main=9.0", "same=2.0", "twin=2.0"))
    project.write("relu.ll", ll("relu", "gelu=3.0"))
    project.write("ops.ll", ll("add=4.0", "mul=5.0"))
    project.first = project.build()  # type: ignore[attr-defined]
    return project


def test_a_page_of_nothing_says_so(project: Project) -> None:
    made = project.command("report", "-o", "report.html")
    assert made.returncode == 0, made.output
    assert page(project, "report.html")["overview"]["state"] == "none"
    assert project.command("--build", "never", "report", "-o", "report.html").returncode == 2
    gone = project.command("report", "build/net.json", "-o", "report.html")
    assert gone.returncode == 2
    assert "no build was logged" in gone.stderr


def test_r4_a_report_is_a_step_that_an_idle_build_leaves_alone(net: Project) -> None:
    assert f"report    {'build/report.html'}" in net.first.lines  # type: ignore[attr-defined]
    data = page(net)
    overview = data["overview"]
    assert (overview["state"], overview["programs"], overview["counts"]["compiled"]) == ("running", ["net"], 7)
    assert data["tables"]["kernels"]["rows"] == 9
    before = net.bytes("build/report.html")
    net.idle()
    assert net.bytes("build/report.html") == before


def test_m1_a_report_has_kernels_units_and_modules_as_the_build_had_them(net: Project) -> None:
    found = report(net.path(".gpu-store"), build=net.records()[0]["build"], manifests=[net.path("build/net.json")])
    assert found.overview.state == "done"
    assert found.overview.counts["shared"] == 2
    assert [(module.name, module.root, module.bypass, module.kernels, module.references) for module in found.modules] == [
        ("bare", False, True, 0, 0),
        ("else", False, False, 2, 2),
        ("net", True, False, 3, 3),
        ("ops", False, False, 2, 2),
        ("then", False, False, 2, 2),
    ]
    relu = next(unit for unit in found.units if unit.name == "relu")
    assert (sorted(relu.modules), relu.sources, relu.result) == (["else", "then"], ("relu.ll",), "compiled")
    assert relu.seconds is not None
    assert relu.seconds > 0
    kernel = next(kernel for kernel in found.kernels if (kernel.module, kernel.name) == ("then", "relu"))
    built = net.manifest()["modules"]["then"]["kernels"]["relu"]["archs"]["sm_90"]
    assert (kernel.registers, kernel.spill_bytes, kernel.occupancy) == (built["registers"], 0, 100.0)
    assert kernel.code_bytes
    assert kernel.code_bytes % 128 == 0  # a kernel's code is padded
    assert all(file.bytes == net.path(f"build/{file.path}").stat().st_size for module in found.modules for file in module.files)
    assert {found.units[twin.unit].name for twin in found.twins} == {"same", "twin"}
    assert "ptxas" in {tool.name for tool in found.tools}


def test_the_graph_leads_from_sources_to_the_program(net: Project) -> None:
    found = shown(net)
    assert named(found, "source") == ["net.ll", "ops.ll", "relu.ll"]
    assert named(found, "image") == [f"build/net/{name}/sm_90.cubin" for name in ("else", "net", "ops", "then")]
    relu = next(node for node in found.nodes if node.kind == "unit" and node.name == "relu")
    assert inputs(found, relu) == ["relu.ll"]
    (user,) = (edge.user for edge in found.edges if edge.input == found.nodes.index(relu))
    assert found.nodes[user].kind == "object"
    images = [found.nodes[edge.user].name for edge in found.edges if edge.input == user]
    assert sorted(images) == ["build/net/else/sm_90.cubin", "build/net/then/sm_90.cubin"]
    then = next(node for node in found.nodes if node.kind == "module" and node.name == "then")
    assert inputs(found, then) == ["build/net/then.fatbin", "ops"]
    assert [inputs(found, node) for node in found.nodes if node.kind == "program"] == [["net"]]


def test_r3_an_edit_is_told_with_its_reason_and_a_kill_and_older_builds_are_told_apart(net: Project) -> None:
    first = shown(net)
    net.edit("relu.ll", "fadd float %old, 3.0", "fadd float %old, 3.5")
    net.build()
    second = shown(net)
    assert Counter(unit.result for unit in second.units) == {"compiled": 1, "reused": 1, "kept": 5}
    assert next(reason.why for reason in second.reasons if reason.stage in ("lower", "assemble")).startswith("source relu.ll")
    assert {reason.stage for reason in second.reasons} >= {"source", "split", "plan", "link"}
    old = report(net.path(".gpu-store"), build=first.overview.build)
    assert [unit.digest for unit in old.units] == [unit.digest for unit in first.units]
    assert old.overview.notes == ("net.json was made by a later build: registers, sizes and tools are that one's",)

    log = net.path(".gpu-store/log.jsonl")
    whole = log.read_text()
    log.write_text("\n".join(whole.splitlines()[:-1]) + "\n")  # a kill leaves no end
    killed = shown(net)
    log.write_text(whole)
    assert (killed.overview.state, killed.overview.programs) == ("killed", ("net",))
    assert killed.overview.wall_seconds > 0
    assert len(killed.kernels) == len(second.kernels)


def test_a_report_of_failures_has_what_the_tools_said(project: Project) -> None:
    project.write("SConstruct", 'env.GpuProgram("build/net", env.GpuModule("net", ["k.ll"]))\n')
    wrong = 'define ptx_kernel void @wrong() {\n  call void asm sideeffect "no.such $0;", "r"(i32 1)\n  ret void\n}\n'
    project.write("k.ll", ll("good") + wrong)
    project.fail("-k")
    found = shown(project)
    assert found.overview.state == "failed"
    assert found.overview.notes == ("net.json is not there: what the kernels of net take of a GPU is not known",)
    assert {unit.name: unit.result for unit in found.units} == {"good": "compiled", "wrong": "failed"}
    (failure,) = (failure for failure in found.failures if failure.name == "wrong")
    assert "no" in failure.text
    assert "wrong of net/k.ll" in failure.text
    assert [(kernel.name, kernel.registers) for kernel in found.kernels] == [("good", None), ("wrong", None)]
    assert [module.name for module in found.modules] == ["net"]


def test_l7_without_a_provider_units_lead_to_ptx(project: Project) -> None:
    project.write("SConstruct", 'env.GpuProgram("build/net", env.GpuModule("net", ["k.ll"]))\n')
    project.write("k.ll", ll("k"))
    project.build("GPU_PROVIDER=none")
    found = shown(project)
    assert [kernel.registers for kernel in found.kernels] == [None]
    assert (named(found, "object"), named(found, "image")) == ([], ["build/net/net/sm_90.ptx"])
    (image,) = (node for node in found.nodes if node.kind == "image")
    assert inputs(found, image) == ["k"]


def test_m11_candidates_and_bundles_have_their_own_words(project: Project) -> None:
    tuned(project, head='env["GPU_LINK"] = "bundle"\n', values='[{"TIMES": 4}, {"TIMES": 2}, {"TIMES": 13}]')
    project.build()
    found = shown(project)
    assert Counter(unit.result for unit in found.units)["candidate"] == 1
    (scale,) = (kernel for kernel in found.kernels if kernel.name.startswith("scale"))
    assert re.match(r"TIMES=\d: ", scale.chosen)
    assert scale.code_bytes
    assert found.failures == ()
    assert named(found, "bundle") == ["build/net/one.gpubundle"]
    assert "fills" not in {module.name for module in found.modules}
    known = read(project.path(".gpu-store"))
    assert known.build
    counts = stats(project.records())
    became = Counter(results(known.build).values())
    assert (became["compiled"], became["candidate"]) == (counts.compiled, counts.candidates)
    assert CUDA in project.read("SConstruct")


def test_a_report_of_no_program_is_refused(project: Project) -> None:
    project.write("SConstruct", 'env.GpuReport("r.html", "k.ll")\n')
    said = project.fail().stderr
    assert said.startswith("error: GpuReport(r.html): k.ll is no program\n")
