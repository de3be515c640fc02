"""A project that is built twice, in surroundings that have little in common, and what is said where that shows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from project import CUDA, HEAD, Project, ll

KERNEL = """
__global__ void {name}(float* x) {{ x[threadIdx.x] *= {by}; }}
__device__ const char* const when = __DATE__ " " __TIME__ " " __FILE__;
__global__ void tell_{name}(char* x) {{ x[threadIdx.x] = when[threadIdx.x & 15]; }}
"""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that is the same everywhere, though its kernels ask for time and place."""
    project = Project(tmp_path_factory.mktemp("shipped") / "project")
    project.write("scale.cu", KERNEL.format(name="scale", by="2.0f"))
    project.write("add.ll", ll("add"))
    modules = (
        'apart = env.GpuModule("apart", ["add.ll"], GPU_LINK="bundle")\nnet = env.GpuModule("net", ["scale.cu"], submodules=[apart])\n'
    )
    release = 'env.GpuRelease("dist/net-1.0.tar.zst", env.GpuProgram("build/net", net), lineinfo=True, level=1)\n'
    project.write("SConstruct", HEAD + CUDA + "env.Replace(GPU_LINEINFO=1)\n" + modules + release)
    project.build()
    return project


def test_a_release_is_the_same_in_both_builds(shipped: Project) -> None:
    before = shipped.files("**/*")
    twice = shipped.command("reproduce", "-j2")
    assert twice.returncode == 0, twice.output
    assert twice.stdout.endswith(" files, all the same\n")
    assert shipped.files("**/*") == before, "the project itself is left as it was"


def test_against_another_release_the_input_that_is_another_is_named(shipped: Project, project: Project) -> None:
    project.write("dist.tar.zst", "")
    project.path("dist.tar.zst").write_bytes(shipped.bytes("dist/net-1.0.tar.zst"))
    for name in ("scale.cu", "add.ll", "SConstruct"):
        project.write(name, shipped.read(name))
    project.edit("scale.cu", "2.0f", "3.0f")
    told = json.loads(project.command("reproduce", "--json", "--against", "dist.tar.zst").stdout)
    assert [cause["input"] for cause in told["causes"]] == ["source scale.cu"]
    places = [place["where"] for each in told["differing"] for place in each["places"]]
    assert any(place.startswith("net/net/sm_90.cubin: .text._Z5scalePf") for place in places), places
    project.edit("SConstruct", "net-1.0", "net-2.0")
    missing = project.command("reproduce", "--against", "dist.tar.zst")
    assert (missing.returncode, missing.stderr) == (
        2,
        "error: dist.tar.zst: the build makes no net-1.0.tar.zst\n  it makes dist/net-2.0.tar.zst; name the target that makes it\n",
    )
    project.path("dist.tar.zst").write_bytes(b"rubbish")
    assert "dist.tar.zst: not as it was made: archive: " in project.command("reproduce", "--against", "dist.tar.zst").stderr


PLANTED = f"""{HEAD}{CUDA}
import os, time
def written(target, source, env):
    open(str(target[0]), "w").write("#define BY %dLL\\n" % time.time_ns())
env.Command("by.h", [], written)
modules = [
    env.GpuModule("placed", ["placed.cu"], GPU_LINEINFO=1, GPU_CLANGFLAGS=["-fdebug-compilation-dir=" + Dir(".").abspath]),
    env.GpuModule("listed", ["ir/" + name for name in os.listdir("ir")]),
    env.GpuModule("timed", ["timed.cu"], GPU_CLANGFLAGS=["-DWHEN=%dLL" % time.time_ns()]),
    env.GpuModule("made", ["made.cu"], CPPPATH=["."]),
    env.GpuModule("own", [env.GpuSource("own.cu", CPPDEFINES={{"WHEN": time.time_ns()}})]),
    env.GpuModule("steady", ["ir/a.ll"]),
]
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=modules))
"""


def test_what_differs_is_told_by_section_and_by_input(project: Project) -> None:
    wide = "__global__ void {name}(long long* x) {{ x[threadIdx.x] *= {by}; }}\n"
    project.write("placed.cu", wide.format(name="placed", by="2"))
    project.write("timed.cu", wide.format(name="timed", by="WHEN"))
    project.write("made.cu", '#include "by.h"\n' + wide.format(name="made", by="BY"))
    project.write("own.cu", wide.format(name="own", by="2"))
    project.write("ir/a.ll", ll("a"))
    project.write("ir/b.ll", ll("b"))
    project.write("SConstruct", PLANTED)
    done = project.command("reproduce", "--json", "build/net.json")
    assert done.returncode == 1, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    causes = {cause["input"]: cause for cause in told["causes"]}
    assert sorted(causes) == ["by.h", "own.cu", "placed.cu", "the sources of module listed", "timed.cu"]
    assert "its code holds the folder that it was built in: a flag or a define of module placed" in causes["placed.cu"]["why"]
    assert "/first" in causes["placed.cu"]["place"]["one"]
    assert "sort what os.listdir" in causes["the sources of module listed"]["why"]
    assert (causes["the sources of module listed"]["place"]["one"], causes["the sources of module listed"]["place"]["other"]) == (
        "ir/a.ll, ir/b.ll",
        "ir/b.ll, ir/a.ll",
    )
    assert "a define or flag of module timed" in causes["timed.cu"]["why"]
    assert causes["by.h"]["place"]["one"].startswith("#define BY 1")
    assert "made.cu of module made is compiled from it" in causes["by.h"]["why"]
    assert "options of its own" in causes["own.cu"]["why"]
    sections = {each["file"]: {place["where"] for place in each["places"]} for each in told["differing"]}
    assert ".debug_line" in sections["build/net/placed/sm_90.cubin"]
    assert not any(where.startswith(".text") for where in sections["build/net/placed/sm_90.cubin"])
    assert sections["build/net/timed/sm_90.cubin"] == {".text._Z5timedPx"}
    assert sections["build/net/made.fatbin"] == {"sm_90: .text._Z4madePx"}
    assert not any("steady" in file for file in sections)


def test_a_build_that_fails_or_makes_nothing_is_told(project: Project) -> None:
    project.write("SConstruct", 'env.GpuProgram("build/net", env.GpuModule("net", ["absent.ll"]))\n')
    failed = project.command("reproduce")
    assert failed.returncode == 1
    assert "error: the build in " in failed.stderr
    assert "absent.ll" in failed.stderr
    project.write("SConstruct", "")
    assert "the build made nothing that could be compared" in project.command("reproduce").stderr
    assert "no SConstruct" in project.command("-C", "/", "reproduce").stderr
