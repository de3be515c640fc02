"""M: modules and batches. Two builds of a few small kernels each, nearly everywhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from project import LL_HEAD, Project, ll

if TYPE_CHECKING:
    from pathlib import Path

BRANCHES = """
then = env.GpuModule("then", ["then.ll"])
other = env.GpuModule("else", ["else.ll"])
net = env.GpuModule("net", ["net.ll"], submodules=[then, other])
env.GpuProgram("build/net", net)
"""


@pytest.fixture
def branches(project: Project) -> Project:
    """relu stands in both branches, after another kernel in one of them."""
    project.write("SConstruct", BRANCHES)
    project.write("then.ll", ll("relu=0.5"))
    project.write("else.ll", ll("scale=3.0", "relu=0.5"))
    project.write("net.ll", ll("root=7.0"))
    return project


def test_m1_a_kernel_of_both_branches_is_compiled_once_and_is_in_both_images(branches: Project) -> None:
    branches.build("-j2")

    assert branches.compiled() == ["relu", "root", "scale"]
    assert branches.kernels("then") == ["relu"]
    assert branches.kernels("else") == ["relu", "scale"]
    counts = branches.stats()
    assert {name: counts[name] for name in ("references", "unique", "shared", "needed", "compiled", "reused", "failed", "linked")} == {
        "references": 4,
        "unique": 3,
        "shared": 1,
        "needed": 3,
        "compiled": 3,
        "reused": 0,
        "failed": 0,
        "linked": 3,
    }
    modules = branches.manifest()["modules"]
    ours, theirs = (modules[name]["kernels"]["relu"] for name in ("then", "else"))
    assert ours["archs"]["sm_90"]["unit"] == theirs["archs"]["sm_90"]["unit"]
    assert (ours["source"], theirs["source"]) == ("then.ll", "else.ll")
    branches.idle()


def test_m2_a_submodule_reached_twice_is_one_module(project: Project) -> None:
    project.write(
        "SConstruct",
        """
ops = env.GpuModule("ops", ["ops.ll"])
left = env.GpuModule("left", ["left.ll"], submodules=[ops, ops])
right = env.GpuModule("right", ["right.ll"], submodules=[ops])
net = env.GpuModule("net", [], submodules=[left, right, left])
env.GpuProgram("build/net", net)
""",
    )
    project.write("ops.ll", ll("scan=1.0"))
    project.write("left.ll", ll("left=2.0"))
    project.write("right.ll", ll("right=3.0"))
    project.build("-j2")

    assert project.done()["link"] == 3
    assert sorted(path.name for path in project.root.glob("build/net/*.fatbin")) == ["left.fatbin", "ops.fatbin", "right.fatbin"]
    modules = project.manifest()["modules"]
    assert sorted(modules) == ["left", "net", "ops", "right"]
    assert (modules["left"]["submodules"], modules["net"]["submodules"]) == (["ops"], ["left", "right"])


def test_m3_a_bypassed_module_is_left_out_and_its_child_is_not(project: Project) -> None:
    project.write(
        "SConstruct",
        """
child = env.GpuModule("child", ["child.ll"])
passed = env.GpuModule("passed", ["passed.ll"], submodules=[child], bypass=True)
net = env.GpuModule("net", ["net.ll"], submodules=[passed])
env.GpuProgram("build/net", net)
""",
    )
    project.write("child.ll", ll("inner=1.0"))
    project.write("passed.ll", "not even IR")
    project.write("net.ll", ll("outer=2.0"))
    project.build()

    assert project.compiled() == ["inner", "outer"]
    passed = project.manifest()["modules"]["passed"]
    assert (passed["bypass"], passed["kernels"], passed["fatbin"]) == (True, {}, None)
    assert not list(project.root.glob("build/net/passed*"))


@pytest.mark.parametrize("sources", ["[]", '["empty.ll"]', '["helper.ll"]'], ids=["no-source", "empty-source", "no-kernel"])
def test_m4_a_module_without_kernels_makes_no_file(project: Project, sources: str) -> None:
    project.write(
        "SConstruct",
        f"""
hollow = env.GpuModule("hollow", {sources})
net = env.GpuModule("net", ["net.ll"], submodules=[hollow])
env.GpuProgram("build/net", net)
""",
    )
    project.write("empty.ll", "")
    project.write("helper.ll", LL_HEAD + "define internal i32 @nobody_calls_this() {\n  ret i32 1\n}\n")
    project.write("net.ll", ll("root"))
    project.build()

    hollow = project.manifest()["modules"]["hollow"]
    assert (hollow["fatbin"], hollow["images"], hollow["kernels"]) == (None, {}, {})
    assert not project.exists("build/net/hollow.fatbin")
    assert not project.exists("build/net/hollow/sm_90.cubin")
    project.idle()


def test_m4_a_program_without_kernels_builds(project: Project) -> None:
    project.write("SConstruct", 'env.GpuProgram("build/net", env.GpuModule("net", []))\n')
    project.build()
    assert project.manifest()["modules"]["net"]["kernels"] == {}
    project.idle()


def test_m4_a_module_that_loses_its_kernels_loses_its_files(branches: Project) -> None:
    branches.build()
    branches.write("then.ll", LL_HEAD)
    branches.build()
    assert not branches.exists("build/net/then.fatbin")
    assert branches.manifest()["modules"]["then"]["fatbin"] is None
    branches.idle()


def test_m5_a_cycle_is_shown(project: Project) -> None:
    project.write(
        "SConstruct",
        """
inner = env.GpuModule("inner", ["a.ll"], submodules=["outer"])
middle = env.GpuModule("middle", ["a.ll"], submodules=[inner])
outer = env.GpuModule("outer", ["a.ll"], submodules=[middle])
env.GpuProgram("build/net", outer)
""",
    )
    project.write("a.ll", ll("a"))
    result = project.fail()
    assert "outer -> middle -> inner -> outer" in result.output
    assert not project.exists("build")


def test_m5_two_modules_of_one_name_are_an_error_that_names_both_places(project: Project) -> None:
    project.write(
        "SConstruct",
        """
one = env.GpuModule("same", ["a.ll"])
two = env.GpuModule("same", ["a.ll"])
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[one, two]))
""",
    )
    project.write("a.ll", ll("a"))
    result = project.fail()
    assert "same" in result.output
    assert "SConstruct:4" in result.output
    assert "SConstruct:5" in result.output
    assert not project.exists("build")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('env.GpuProgram("build/net", [one])', "GpuProgram at SConstruct:5: a list is no module"),
        ('env.GpuProgram("build/net", "one")', "GpuProgram at SConstruct:5: 'one' is no module"),
        ('env.GpuModule("net", [], submodules=[None])', "module net at SConstruct:5: a NoneType is no module"),
    ],
)
def test_m5_what_is_no_module_is_told_without_a_traceback(project: Project, line: str, said: str) -> None:
    project.write("SConstruct", f'\none = env.GpuModule("one", ["a.ll"])\n{line}\n')
    project.write("a.ll", ll("a"))
    result = project.fail()
    assert said in result.output
    assert "Traceback" not in result.output
    assert "File " not in result.output


def test_a_program_has_one_store(project: Project) -> None:
    project.write(
        "SConstruct", 'env["GPU_STORE"] = "store"\nops = SConscript("ops/SConscript", exports="env")\nenv.GpuProgram("build/net", ops)\n'
    )
    project.write("ops/SConscript", 'Import("env")\nops = env.GpuModule("ops", ["k.ll"])\nReturn("ops")\n')
    project.write("ops/k.ll", ll("one"))
    project.build("-n")  # a relative one is seen from the top, here as there
    project.edit("ops/SConscript", '["k.ll"]', '["k.ll"], submodules=[env.GpuModule("lib", [], GPU_STORE="#elsewhere")]')
    result = project.fail("-n")
    assert result.returncode == 2
    assert "error: module lib at ops/SConscript:2 has another GPU_STORE than ops at ops/SConscript:2" in result.stderr, result.stderr


def test_m6_each_module_keeps_its_own_entries(project: Project) -> None:
    project.write(
        "SConstruct",
        """
first = env.GpuModule("first", ["one_folder/one.ll"])
second = env.GpuModule("second", ["two_folder/two.ll"])
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[first, second]))
""",
    )
    bounded = (
        ll("bounded=4.0").replace("(ptr addrspace(1) %data) {", '(ptr addrspace(1) %data) "nvvm.maxntid"="BOUND" {').removeprefix(LL_HEAD)
    )
    project.write("one_folder/one.ll", ll("equal=1.0", "one_name=2.0") + bounded.replace("BOUND", "128"))
    project.write("two_folder/two.ll", ll("equal=1.0", "two_name=2.0") + bounded.replace("BOUND", "256"))
    project.build("-j2")

    assert project.compiled() == ["bounded", "bounded", "equal", "one_name", "two_name"]
    modules = project.manifest()["modules"]
    assert modules["first"]["kernels"]["bounded"]["archs"]["sm_90"]["max_threads"] == 128
    assert modules["second"]["kernels"]["bounded"]["archs"]["sm_90"]["max_threads"] == 256
    assert project.kernels("second") == ["bounded", "equal", "two_name"]
    assert "one" not in json.dumps(modules["second"])
    made = project.files("build/net/second/*") | project.files("build/net/second.fatbin")
    assert [name for name, data in made.items() if b"one_folder" in data or b"one.ll" in data or b"one_name" in data] == []


def test_m7_six_equal_kernels_and_one_other_are_two_compiles_and_order_changes_no_byte(tmp_path: Path) -> None:
    made = []
    for name, order in (("forth", "modules"), ("back", "modules[::-1]")):
        project = Project(tmp_path / name)
        project.write(
            "SConstruct",
            f"""
modules = [env.GpuModule(f"m{{i}}", [f"m{{i}}.ll"]) for i in range(7)]
env.GpuProgram("build/net", env.GpuModule("net", [], submodules={order}))
""",
        )
        for number in range(7):
            project.write(f"m{number}.ll", ll("kernel=1.0" if number != 3 else "kernel=2.0"))
        project.build("-j2")
        assert project.compiled() == ["kernel", "kernel"]
        made.append(project.files("build/**/*"))
    assert made[0] == made[1]


def test_m8_nodes_are_returned_in_order_of_declaration(project: Project) -> None:
    project.write(
        "SConstruct",
        """
zeta = env.GpuModule("zeta", ["a.ll"])
alpha = env.GpuModule("alpha", ["a.ll"])
nodes = env.GpuProgram("build/net", env.GpuModule("net", ["a.ll"], submodules=[zeta, alpha]))
print("nodes", *nodes)
""",
    )
    project.write("a.ll", ll("a"))
    result = project.build("-n")
    assert "nodes build/net.json build/net/zeta.fatbin build/net/alpha.fatbin build/net/net.fatbin" in result.lines


def test_m8_errors_are_listed_in_order_of_declaration(project: Project) -> None:
    project.write(
        "SConstruct",
        """
late = env.GpuModule("late", ["late.ll"])
early = env.GpuModule("early", ["early.ll"])
env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"], submodules=[late, early]))
""",
    )
    # The first module's error shows after its split, the second's at once.
    project.write("late.ll", ll("late").replace("ret void", "call void @missing()\n  ret void") + "declare void @missing()\n")
    project.write("early.ll", "broken")
    project.write("net.ll", ll("root"))
    result = project.fail("-k", "-j2")

    summary = [line for line in result.stderr.splitlines() if line.startswith("  error: ")]
    assert len(summary) == 2
    assert "late.ll" in summary[0]
    assert "early.ll" in summary[1]
    assert project.compiled() == ["root"]


def test_m9_one_image_by_name_builds_what_it_needs_and_nothing_else(branches: Project) -> None:
    branches.build("build/net/then.fatbin")

    assert branches.compiled() == ["relu"]
    assert branches.done()["link"] == 1
    assert branches.exists("build/net/then.fatbin")
    assert not branches.exists("build/net/else")
    assert not branches.exists("build/net.json")
    branches.idle("build/net/then.fatbin")

    branches.build()
    assert branches.compiled() == ["root", "scale"]


def test_m10_a_kernel_added_to_one_module_is_one_compile_and_one_link(branches: Project) -> None:
    branches.build("-j2")
    branches.write("else.ll", ll("scale=3.0", "added=9.0", "relu=0.5"))
    branches.build("-j2")

    assert branches.compiled() == ["added"]
    done = branches.done()
    assert {stage: done[stage] for stage in ("source", "split", "plan", "lower", "assemble", "link", "pack", "manifest")} == {
        "source": 1,
        "split": 1,
        "plan": 1,
        "lower": 1,
        "assemble": 1,
        "link": 1,
        "pack": 1,
        "manifest": 1,
    }
    assert branches.kernels("else") == ["added", "relu", "scale"]
    branches.idle()
