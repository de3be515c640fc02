"""GPU_VERIFY_REUSE: what the store holds is compiled again, and a difference is told with both records."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from project import CUDA, HEAD, IMAGE, LL_HEAD, Project, ll

from scons_gpu.store import record, sealed
from scons_gpu.store.store import record_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from toolkits import Toolkit

    from scons_gpu.toolchain.tools import Toolchain

NET = IMAGE + 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n'
TREE = """\
then = env.GpuModule("then", ["then.ll"])
els = env.GpuModule("else", ["else.ll"])
env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"], submodules=[then, els]))
"""
VERIFY = "GPU_VERIFY_REUSE=1"
STATE = "@memo = internal addrspace(1) global float 0.0\n"
REMEMBER = """
define ptx_kernel void @remember(ptr addrspace(1) %data) {
  %old = load float, ptr addrspace(1) @memo
  %new = fadd float %old, 1.0
  store float %new, ptr addrspace(1) @memo
  store float %new, ptr addrspace(1) %data
  ret void
}
"""


@pytest.fixture
def net(project: Project) -> Project:
    project.write("SConstruct", NET)
    project.write("net.ll", ll("one=1.0", "two=2.0", "three=3.0"))
    return project


def entry(project: Project, kind: str, kernel: str) -> Path:
    """The entry of a kernel of module net."""
    part = next(part for part in project.plan("net")["parts"] if any(each["symbol"] == kernel for each in part["kernels"]))
    if kind == "slice":
        return project.path(f".gpu-store/slice/{part['slice'][:2]}/{part['slice']}")
    if kind == "ptx":
        return project.path(f".gpu-store/ptx/{part['digest'][:2]}/{part['digest']}.ptx")
    side = json.loads(project.read("build/net/net/sm_90.link.json"))
    name = side["parts"][part["digest"]]["object"]
    return project.path(f".gpu-store/object/{name[:2]}/{name}")


def alter(path: Path, change: Callable[[bytes], bytes]) -> bytes:
    """Puts other bytes into an entry, with a record that fits them: what a key that lacks a field comes to."""
    kept = record.from_text(record_path(path).read_bytes(), name=path.name)
    assert kept is not None
    data = change(path.read_bytes())
    path.write_bytes(data)
    record_path(path).write_text(record.to_text(record.make(data, key=kept.key, resources=kept.resources), name=path.name))
    return data


def flip(data: bytes) -> bytes:
    """One bit, in the middle of an object."""
    return data[:100] + bytes([data[100] ^ 1]) + data[101:]


def held(project: Project) -> dict[str, bytes]:
    """What the store holds of units."""
    return {name: data for kind in ("slice", "ptx", "object") for name, data in project.files(f".gpu-store/{kind}/*/*").items()}


def verified(project: Project) -> list[tuple[str, str]]:
    """What the last build verified, and what came of it."""
    return sorted((each["name"], each["result"]) for each in project.last() if each["stage"] == "verify")


# nothing differs


def test_a_build_with_nothing_to_do_verifies_every_unit_and_changes_nothing(net: Project) -> None:
    net.build()
    before, made = held(net), net.files("build/**/*")
    result = net.build("-j2", VERIFY)
    assert sorted(line for line in result.lines if line.startswith("verify")) == [
        "verify    one  sm_90",
        "verify    three  sm_90",
        "verify    two  sm_90",
    ]
    assert re.fullmatch(r"units 3: 3 current · 3 verified · \d+\.\d s", result.lines[-1])
    assert verified(net) == [("one", "same"), ("three", "same"), ("two", "same")]
    assert (held(net), net.files("build/**/*")) == (before, made)
    counts = net.stats()
    assert {name: counts[name] for name in ("verified", "compiled", "needed", "failed", "linked")} == {
        "verified": 3, "compiled": 0, "needed": 0, "failed": 0, "linked": 0,
    }  # fmt: skip
    assert counts["cpu_seconds"]["verify"] > 0
    assert net.build().lines[-1] == "units 3: nothing to do"


def test_records_say_which_unit_of_whom(net: Project) -> None:
    net.build()
    net.build(VERIFY)
    done = next(each for each in net.last() if each["stage"] == "verify" and each["name"] == "one")
    part = next(part for part in net.plan("net")["parts"] if part["kernels"][0]["symbol"] == "one")
    assert (done["unit"], done["role"], done["owners"], done["arch"]) == (part["digest"], "unit", ["net"], "sm_90")
    assert done["key"] == dict(part["key"])
    assert done["cpu"] > 0
    assert done["peak_kib"] > 0


def test_what_is_made_in_a_build_is_not_verified_in_it(net: Project) -> None:
    net.build(VERIFY)
    assert verified(net) == []
    net.edit("net.ll", "2.0", "2.5")
    result = net.build(VERIFY)
    assert net.compiled() == ["two"]
    assert verified(net) == [("one", "same"), ("three", "same")]
    assert "units 3: 1 compiled, 2 reused · 2 verified · 1 image" in result.lines[-1]


def test_ptx_that_an_object_is_made_of_is_verified_first(net: Project) -> None:
    net.build()
    net.build("GPU_MAXRREGCOUNT=32", VERIFY)
    assert net.done()["assemble"] == 3
    assert verified(net) == [("one", "same"), ("three", "same"), ("two", "same")]

    alter(entry(net, "ptx", "two"), lambda data: data.replace(b"\n)\n{", b"\n) // another\n{", 1))
    result = net.fail("-k", "GPU_MAXRREGCOUNT=64", VERIFY)
    assert net.done()["assemble"] == 2, "nothing is made of what is not right"
    assert "kernel two of net/net.ll (sm_90): compiled again, its PTX is not what the store holds" in result.stderr


def test_a_unit_of_several_modules_is_verified_once(project: Project) -> None:
    project.write("SConstruct", TREE)
    for name in ("net", "then", "else"):
        project.write(f"{name}.ll", ll("shared=1.0", f"{name}_own={len(name)}.0"))
    project.build()
    project.image("then").unlink()  # one that is due, and two that are current
    project.build("-j2", VERIFY)
    assert [name for name, _ in verified(project)] == ["else_own", "net_own", "shared", "then_own"]
    shared = next(each for each in project.last() if each["stage"] == "verify" and each["name"] == "shared")
    assert sorted(shared["owners"]) == ["else", "net", "then"]
    assert project.stats()["verified"] == 4


MODES: dict[str, dict[str, Any]] = {
    "image": {"GPU_ARCHS": ["sm_80", "sm_90", "compute_90"]},
    "bundle": {"GPU_LINK": "bundle", "GPU_ARCHS": ["sm_80", "sm_90", "compute_90"]},
    "twins": {"GPU_LINK": "bundle", "GPU_SHARE_TWINS": 1},
    "lineinfo": {"GPU_LINEINFO": 1},
    "debug": {"GPU_DEBUG": 1},
}


@pytest.mark.parametrize("mode", MODES)
def test_what_is_compiled_again_is_the_same_in_every_mode(project: Project, mode: str) -> None:
    settings = {"GPU_ARCHS": ["sm_90"], **MODES[mode]}
    head = HEAD.replace('GPU_ARCHS=["sm_90"]', ", ".join(f"{name}={value!r}" for name, value in settings.items()))
    project.write("SConstruct", head + CUDA + 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll", "net.cu"]))\n')
    project.write("net.ll", ll("one=1.0", "twin=1.0", head=STATE) + REMEMBER)
    project.write(
        "net.cu", "__constant__ float table[64];\n__global__ void root(float* data) { *data = sqrtf(*data) + table[threadIdx.x]; }\n"
    )
    project.build("-j2")
    before = held(project)
    parts = {part["digest"] for arch in settings["GPU_ARCHS"] for part in project.plan("net", arch)["parts"]}
    project.build("-j2", VERIFY)
    found = [result for _, result in verified(project)]
    assert (found, len(found)) == (["same"] * len(found), len(parts))
    assert held(project) == before


def test_the_step_builders_are_verified_too(project: Project) -> None:
    project.write("SConstruct", 'env.Ptx("net.ptx", ["net.ll"])\nenv.Cubin("net.cubin", ["net.ll"])\n')
    project.write("net.ll", ll("one=1.0"))
    project.build()
    project.build(VERIFY)
    assert verified(project) == [("one", "same"), ("one", "same")]
    assert project.stats()["verified"] == 1


def test_slices_that_the_store_lost_are_made_again(net: Project) -> None:
    net.build()
    before = held(net)
    shutil.rmtree(net.path(".gpu-store/slice"))
    net.build(VERIFY)
    assert len(verified(net)) == 3
    assert held(net) == before


def test_a_store_that_lost_all_has_nothing_to_verify(net: Project) -> None:
    net.build()
    for kind in ("object", "ptx"):
        shutil.rmtree(net.path(f".gpu-store/{kind}"))
        net.build(VERIFY)
        assert len(verified(net)) == (3 if kind == "object" else 0)
    assert net.done() == {}


@pytest.mark.parametrize("flag", ["-n", "-q"])
def test_looking_verifies_nothing(net: Project, flag: str) -> None:
    net.build()
    alter(entry(net, "object", "one"), flip)
    before = len([each for each in net.records() if each["type"] == "action"])
    result = net.run(flag, VERIFY)
    assert result.returncode == 0, result.output
    assert "verify " not in result.output
    assert len([each for each in net.records() if each["type"] == "action"]) == before


def test_the_variable_may_be_the_environments_and_is_no_modules(net: Project) -> None:
    net.edit("SConstruct", "env.GpuProgram", 'env["GPU_VERIFY_REUSE"] = True\nenv.GpuProgram')
    net.build()
    net.build()
    assert len(verified(net)) == 3
    assert net.build("GPU_VERIFY_REUSE=0").lines[-1] == "units 3: nothing to do"
    net.edit("SConstruct", '["net.ll"]', '["net.ll"], GPU_VERIFY_REUSE=1')
    assert "GPU_VERIFY_REUSE cannot be set here" in net.fail().stderr


# something differs


def test_an_object_that_differs_fails_the_build_and_both_records_are_shown(net: Project) -> None:
    net.build()
    path = entry(net, "object", "two")
    right = path.read_bytes()
    wrong = alter(path, flip)
    before = held(net)
    result = net.fail(VERIFY)
    assert result.returncode == 2
    kept, again = (record.make(data, key=()) for data in (wrong, right))
    text = result.stderr
    assert "error: kernel two of net/net.ll (sm_90): compiled again, its object is not what the store holds\n" in text
    assert f"    object {path}\n" in text
    assert f"in the store:   {kept.bytes} bytes, sha256 {kept.sha256}; two: 8 registers" in text
    assert f"compiled again: {again.bytes} bytes, sha256 {again.sha256}; two: 8 registers" in text
    assert "the first byte that differs is number 100, counted from 0\n" in text
    assert "fields of the key that differ: none\n" in text
    for field in ("arch = sm_90", "kind = rel", "ptx opt = 3", "ptx slice = "):
        assert f"        {field}" in text
    assert "every field of the key is equal, so the key lacks a field" in text
    assert net.failed() == []
    assert ("two", "differs") in verified(net)
    assert held(net) == before, "the store is left as it is"

    again_said = net.fail(VERIFY).stderr
    assert sorted(again_said.splitlines()) == sorted(text.splitlines()), "another run finds the same"
    assert net.build().lines[-1] == "units 3: nothing to do"


def test_ptx_that_differs_is_shown_as_a_diff(net: Project) -> None:
    net.build()
    alter(entry(net, "ptx", "three"), lambda data: data.replace(b".visible", b"// another\n.visible", 1))
    result = net.fail(VERIFY)
    assert "compiled again, its PTX is not what the store holds" in result.stderr
    assert re.search(r"line \d+:\n(.*\n){,3}      -// another\n(.*\n){,3}      fields of the key that differ: none", result.stderr)
    assert net.stats()["failed"] == 1


def test_with_k_all_are_listed_and_other_images_are_made(project: Project) -> None:
    project.write("SConstruct", TREE)
    for name in ("net", "then", "else"):
        project.write(f"{name}.ll", ll(f"{name}_a={len(name)}.0", f"{name}_b={len(name)}.5"))
    project.build()
    for kernel in ("net_a", "net_b"):
        alter(entry(project, "object", kernel), flip)
    project.edit("then.ll", "4.5", "4.75")
    for module in ("net", "else"):
        project.image(module).unlink()
    result = project.fail("-k", "-j2", VERIFY)
    assert verified(project) == [
        ("else_a", "same"), ("else_b", "same"), ("net_a", "differs"), ("net_b", "differs"), ("then_a", "same"),
    ]  # fmt: skip
    assert "2 steps failed:\n  error: kernel net_" in result.stderr
    assert project.image("then").exists()
    assert project.image("else").exists()
    assert not project.image("net").exists(), "nothing is linked of what is not right"
    counts = project.stats()
    assert (counts["verified"], counts["failed"], counts["linked"]) == (5, 2, 2)
    assert "2 failed · 5 verified · 2 images" in result.lines[-1]


def test_a_key_that_lacks_a_field_is_found(net: Project, toolkit: Toolkit, toolchain: Toolchain) -> None:
    """The purpose: a ptxas behind a wrapper that reads a variable of the environment, which no fingerprint can know."""
    assert toolchain.ptxas is not None
    toolkit.wrap("ptxas", Path(toolchain.ptxas.path), before='set -- $PTXAS_HIDDEN "$@"')
    cuda = f"GPU_CUDA_PATH={toolkit.root}"
    net.environ["PTXAS_HIDDEN"] = "-O0"
    net.build(cuda)
    net.build(cuda, VERIFY)
    assert [result for _, result in verified(net)] == ["same"] * 3

    del net.environ["PTXAS_HIDDEN"]
    net.image("net").unlink()
    net.build(cuda)
    assert net.compiled() == [], "the store does not know better"
    result = net.fail("-k", "-j2", cuda, VERIFY)
    assert [result for _, result in verified(net)] == ["differs"] * 3
    assert result.stderr.count("fields of the key that differ: none") == 3
    assert "3 steps failed:" in result.stderr
    assert "as a variable of the environment" in result.stderr


def test_a_tool_that_is_not_the_one_that_was_fingerprinted_is_a_field_that_differs(net: Project, toolkit: Toolkit) -> None:
    """Facts of tools are believed as long as a file looks as it did. Here one is made that was never true."""
    cuda = f"GPU_CUDA_PATH={toolkit.root}"
    net.build(cuda)
    for path in net.path(".gpu-store/tools").glob("*/*.json"):
        fact = sealed.from_text(path.read_bytes())
        if fact["files"][0][0] == str(toolkit.root / "bin/ptxas") and "sha256" in fact["found"]:
            path.write_text(sealed.to_text({**fact, "found": {**fact["found"], "sha256": "0" * 64}}))
    net.build(cuda)
    alter(entry(net, "object", "one"), flip)
    result = net.fail(cuda, VERIFY)
    assert re.search(r"fields of the key that differ:\n +provider = ptxas 0{64} in the store, ptxas [1-9a-f]\S{63} now\n", result.stderr)
    assert "what differs in the key (provider) changed behind the build's back" in result.stderr
    assert "        kind = rel\n" in result.stderr


def test_state_that_differs_is_named(project: Project) -> None:
    project.write("SConstruct", NET)
    project.write("net.ll", LL_HEAD + STATE + REMEMBER)
    project.build()
    side = json.loads(project.read("build/net/net/sm_90.link.json"))["parts"]
    part = next(part for part in project.plan("net")["parts"] if part["role"] == "state")
    name = side[part["digest"]]["object"]
    alter(project.path(f".gpu-store/object/{name[:2]}/{name}"), flip)
    result = project.fail(VERIFY)
    assert "error: net/net.ll (sm_90): state of net.ll: compiled again, its object is not what the store holds" in result.stderr
    assert project.stats()["failed"] == 1


def test_the_whole_command_can_be_printed(net: Project) -> None:
    net.build()
    lines = net.build(VERIFY, "GPU_VERIFYCOMSTR=").lines
    path = entry(net, "object", "one")
    command = next(line for line in lines if str(path) in line)
    functions = f'scons-gpu() {{ {sys.executable} -c "import sys; from scons_gpu.cli import main; sys.exit(main())" "$@"; }}\n'
    for change in (bytes, flip):
        alter(path, change)
        done = subprocess.run(
            ["bash", "-c", functions + command], cwd=net.root, env=net.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == (change is flip), done.stderr
    assert re.fullmatch(
        r"scons-gpu .* lower \w+ .* && scons-gpu .* assemble again\.ptx .* && cmp again\.rel\.cubin \S+\.rel\.cubin", command
    )
