"""What a build costs in things that can be counted: nodes, actions, compiles, processes, files read. Times are in benchmarks/."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from project import HEAD, Project, ll

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

WATCH = """
import atexit, json, sys
seen = {"opened": [], "started": []}
def watch(event, args):
    if event == "open" and isinstance(args[0], str):
        seen["opened"].append(args[0])
    elif event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.system", "os.exec"):
        seen["started"].append(str(args[0]))
def tell():
    seen["loaded"] = sorted(sys.modules)
    with open("seen.json", "w") as file:
        json.dump(seen, file)
sys.addaudithook(watch)
atexit.register(tell)
"""
"""Writes down what Python's own hooks tell of the process that builds."""

PROGRAM = (
    HEAD
    + """\
DefaultEnvironment(tools=[])
modules = [env.GpuModule(f"m{{n}}", [f"m{{n}}.ll"]) for n in range({modules})]
env.Default(env.GpuProgram("build/net", env.GpuModule("net", [], submodules=modules)))
"""
)
"""SCons makes a default environment in any build, which would ask for the C compilers of the machine: gcc is started five times."""


def write(project: Project, *, modules: int, kernels: int) -> None:
    project.write("SConstruct", PROGRAM.format(modules=modules))
    for module in range(modules):
        project.write(f"m{module}.ll", ll(*(f"m{module}_k{number}={module * 100 + number + 1}.0" for number in range(kernels))))


def looked_at(project: Project) -> set[str]:
    """The nodes that SCons looks at in a build with nothing to do."""
    project.build("--taskmastertrace=trace")
    assert project.done() == {}
    return set(re.findall(r"Considering node <\w+ +\d+ +'([^']*)'>", project.read("trace")))


def seen(project: Project) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(project.read("seen.json"))
    return data


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two modules of three kernels, built, with what the last build did written down."""
    project = Project(tmp_path_factory.mktemp("counts") / "project", forked=False)
    write(project, modules=2, kernels=3)
    project.edit("SConstruct", "env = Environment(", WATCH + "env = Environment(")
    project.build("-j2")
    project.build()
    assert project.done() == {}
    return project


def test_the_nodes_of_a_build_with_nothing_to_do_grow_with_modules_and_not_with_kernels(tmp_path: Path) -> None:
    nodes = {}
    for modules, kernels in ((1, 2), (1, 20), (2, 2), (3, 2)):
        project = Project(tmp_path / f"{modules}-{kernels}")
        write(project, modules=modules, kernels=kernels)
        project.build("-j2")
        nodes[modules, kernels] = looked_at(project)
    assert nodes[1, 2] == nodes[1, 20]
    more = len(nodes[2, 2]) - len(nodes[1, 2])
    assert len(nodes[3, 2]) - len(nodes[2, 2]) == more
    # The source, its IR, index, plan, image and fatbin.
    assert more <= 6, nodes[2, 2] - nodes[1, 2]


def test_a_build_with_nothing_to_do_reads_no_plan_index_or_entry_of_the_store(built: Project) -> None:
    read = [path for path in seen(built)["opened"] if re.search(r"\.(plan|index|link)\.json$|/(slice|ptx|object)/|times\.json$", path)]
    assert read == []


def test_a_build_with_nothing_to_do_reads_no_file_that_it_made(built: Project) -> None:
    assert [path for path in seen(built)["opened"] if re.search(r"(^|/)build/", path)] == []


def test_a_build_with_nothing_to_do_starts_no_process(built: Project) -> None:
    assert seen(built)["started"] == []


def test_a_build_with_nothing_to_do_loads_what_declares_nodes_and_no_more(built: Project) -> None:
    loaded = set(seen(built)["loaded"])
    assert not loaded & {"click", "rich", "elftools", "llvmlite", "pydemumble", "asyncio", "multiprocessing"}
    rooms = {name for name in loaded if re.fullmatch(r"scons_gpu\.(link|plan|inspect\.(?!summary)|source\.clang|split\.\w+)(\..*)?", name)}
    assert rooms <= {"scons_gpu.link", "scons_gpu.link.proven", "scons_gpu.split.digest", "scons_gpu.split.readable"}


def test_t8_one_kernel_edited_is_one_compile_and_a_process_for_each_tool(built: Project) -> None:
    built.edit("m1.ll", "fadd float %old, 102.0", "fadd float %old, 0.5")
    built.build("-j1")
    assert built.compiled() == ["m1_k1"]
    assert built.done() == {"source": 1, "split": 1, "plan": 1, "lower": 1, "assemble": 1, "link": 1, "pack": 1, "manifest": 1}
    started = [path.rsplit("/", 1)[-1] for path in seen(built)["started"]]
    assert sorted(name for name in started if not name.startswith("python")) == ["fatbinary", "ptxas"]
    assert len([name for name in started if name.startswith("python")]) == 1  # the worker


def test_a_second_module_of_the_same_kernels_compiles_nothing(project: Project) -> None:
    text = ll("one=1.0", "two=2.0", "three=3.0")
    project.write("m0.ll", text)
    project.write("SConstruct", PROGRAM.format(modules=1))
    project.build("-j2")
    assert len(project.compiled()) == 3
    project.write("m1.ll", text)
    project.write("SConstruct", PROGRAM.format(modules=2))
    project.build("-j2")
    assert project.compiled() == []
    assert project.done() == {"source": 1, "split": 1, "plan": 1, "link": 1, "pack": 1, "manifest": 1}
