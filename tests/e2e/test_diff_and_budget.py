"""`scons-gpu diff` and budgets, on one small program that is built in several ways."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from project import Project, ll

from scons_gpu.errors import DamagedError, UsageError
from scons_gpu.inspect.causes import sentence
from scons_gpu.inspect.diff import compare, side
from scons_gpu.inspect.figures import of_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from scons_gpu.inspect.diff import Diff

SCONSTRUCT = """
one = env.GpuModule("one", ["a.ll"])
two = env.GpuModule("two", ["b.ll"], GPU_LINK="bundle")
program = env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[one, two]))
env.GpuBudget("build/budget.txt", program, "budget.toml")
"""
BUDGET = """
[[kernels]]
match = "*"
registers = 64
spill_bytes = 0
code_bytes = 4096
"""


@dataclass
class Built:
    """The project after three builds; copies of its manifests and images lie in folders called by the builds' names."""

    project: Project
    ids: list[str]

    def diff(self, then: str, now: str) -> Diff:
        return compare(*(side(name, store=self.project.path(".gpu-store")) for name in (then, now)))

    def kept(self, number: int) -> str:
        return str(self.project.path(f"kept{number}/net.json"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    project = Project(tmp_path_factory.mktemp("diff") / "project")
    project.write("a.ll", ll("same", "edited", "gone"))
    project.write("b.ll", ll("bundled"))
    project.write("SConstruct", SCONSTRUCT)
    project.write("budget.toml", BUDGET)
    project.build()
    shutil.copytree(project.path("build"), project.path("kept0"))
    project.write("a.ll", ll("same", "edited=2.0", "come"))
    project.build()
    shutil.copytree(project.path("build"), project.path("kept1"))
    project.build("GPU_OPT=1")
    shutil.copytree(project.path("build"), project.path("kept2"))
    return Built(project, [str(record["build"]) for record in project.records() if record["type"] == "start"])


def told(diff: Diff) -> list[tuple[str, str, list[str]]]:
    return [(each.shown.readable, each.change, [sentence(cause) for cause in each.causes]) for each in diff.kernels]


def test_two_builds(built: Built) -> None:
    diff = built.diff(*built.ids[:2])
    assert told(diff) == [
        ("come", "added", []),
        ("edited", "changed", ["text of the unit changed"]),
        ("gone", "removed", []),
    ]
    assert diff.counts() == {"equal": 2, "added": 1, "removed": 1, "changed": 1}
    edited = diff.kernels[1]
    assert all(
        then is not None and then == now for name in ("registers", "code_bytes", "instructions") for then, now in [edited.pair(name)]
    )
    assert diff.kernels[0].pair("registers")[0] is None


def test_two_builds_with_other_options(built: Built) -> None:
    diff = built.diff(*built.ids[1:3])
    assert {cause for _, _, causes in told(diff) for cause in causes} == {"option GPU_OPT: 3 -> 1"}
    assert diff.counts()["changed"] == 4


def test_two_manifests(built: Built) -> None:
    diff = built.diff(built.kept(0), built.kept(1))
    assert [(name, change) for name, change, _ in told(diff)] == [("come", "added"), ("edited", "changed"), ("gone", "removed")]
    assert diff.settings == ()
    levels = built.diff(built.kept(1), built.kept(2))
    assert [sentence(cause) for cause in levels.settings] == ["option GPU_OPT: 3 -> 1"]
    assert levels.differs
    assert not built.diff(built.kept(1), built.kept(1)).differs


def test_builds_and_manifests_tell_the_same_figures(built: Built) -> None:
    manifest = {row.place: row for row in of_manifest(built.project.path("kept1/net.json"))}
    log = {row.place: row for row in side(built.ids[1], store=built.project.path(".gpu-store")).rows}
    assert manifest.keys() == log.keys()
    assert {place: row.unit for place, row in manifest.items()} == {place: row.unit for place, row in log.items()}
    for place, row in manifest.items():
        assert row.figures.registers == log[place].figures.registers
        assert (row.figures.code_bytes or 0) % 128 == 0
        assert row.figures.code_bytes == log[place].figures.code_bytes


def test_a_store_stands_for_its_last_build(built: Built) -> None:
    assert not built.diff(str(built.project.path(".gpu-store")), built.ids[2]).differs


def test_what_is_none_of_the_three_is_told(built: Built) -> None:
    with pytest.raises(UsageError, match=rf"nonsense is no manifest, no store, and no build in .*\n.*{built.ids[2]}"):
        built.diff("nonsense", built.ids[0])


def test_an_image_that_is_gone_is_told(built: Built, tmp_path: Path) -> None:
    manifest = tmp_path / "net.json"
    manifest.write_text(built.project.read("kept0/net.json"))
    with pytest.raises(DamagedError, match="is not there, though the manifest names it"):
        of_manifest(manifest)


def test_the_commands(built: Built) -> None:
    ran = built.project.command("diff", *built.ids[:2])
    assert ran.returncode == 1
    assert ran.stdout.splitlines()[-1] == "2 equal, 1 added, 1 removed, 1 changed"
    same = built.project.command("diff", built.ids[0], built.ids[0], "--json")
    assert (same.returncode, json.loads(same.stdout)["kernels"]) == (0, [])
    built.project.write("tight.toml", BUDGET.replace("64", "1"))
    over = built.project.command("budget", "check", "tight.toml", built.kept(0), "--json")
    assert over.returncode == 1
    assert {each["figure"] for each in json.loads(over.stdout)["exceeded"]} == {"registers"}


def test_a_budget_is_a_step_of_the_build(built: Built) -> None:
    project = built.project
    assert project.read("kept0/budget.txt") == "4 of 4 kernels are within their budget\n"
    project.idle("GPU_OPT=1")
    project.write("budget.toml", BUDGET.replace("64", "4"))
    failed = project.fail("GPU_OPT=1")
    assert "error: 4 kernels take more than budget.toml allows" in failed.stderr
    first = next(line for line in failed.stderr.splitlines() if "registers" in line)
    assert first.split()[:4] == ["one", "come", "sm_90", "registers"]
    assert not project.exists("build/budget.txt")
    project.write("budget.toml", BUDGET)
    project.build("GPU_OPT=1")
    assert [record["stage"] for record in project.last()] == ["budget"]
    project.idle("GPU_OPT=1")
