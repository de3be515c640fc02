from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from scons_gpu.assemble import choose as module
from scons_gpu.assemble.choose import AUTO, COMPILERS, LINKERS, Choice, choose, known
from scons_gpu.assemble.key import object_key
from scons_gpu.assemble.provider import AssembleOptions
from scons_gpu.errors import ToolMissingError, UsageError
from scons_gpu.toolchain.arch import parse
from scons_gpu.toolchain.libraries import Found, Libraries
from scons_gpu.toolchain.model import Look, Tool
from scons_gpu.toolchain.tools import Toolchain

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = ("relocatable", "link")
LOOKED = (
    Look(what="ptxas", where="/opt/cuda/bin", origin="CUDA_PATH", result="no such file"),
    Look(what="nvlink", where="/opt/other", origin="PATH", result="not there"),
)


@dataclass
class Machine:
    """What a test says was found. Tools are scripts that know function cloning; libraries are files that hold its option."""

    folder: Path
    tools: dict[str, Tool] = field(default_factory=dict)

    def has(self, *names: str, version: str = "13.5.37") -> Machine:
        for name in names:
            path = self.folder / name
            path.write_text("#!/bin/sh\necho '--enable-func-clone-sc <true|false>'\n")
            path.chmod(0o755)
            self.tools[name] = Tool(name=name, path=str(path), version=version, identity=name[:1] * 64, origin="test")
        return self

    def choose(self, wanted: str = "auto", *, needs: tuple[str, ...] = IMAGE, archs: str = "sm_90", always: bool = False) -> Choice:
        nowhere = Found(None, (Look("library", "/opt/cuda/lib", "CUDA_PATH", "not there"),))
        libraries = Libraries(lambda name: Found(self.tools[name]) if name in self.tools else nowhere)
        programs = {name: self.tools[name] for name in ("ptxas", "nvlink") if name in self.tools}
        found = Toolchain(**programs, looked=LOOKED, libraries=libraries)  # type: ignore[arg-type]
        return choose(found, wanted=wanted, needs=needs, facts=self.folder / "facts", targets=parse(archs), always_defer=always)  # type: ignore[arg-type]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_names() -> None:
    assert all(known(name) for name in ("auto", *AUTO, "none"))
    assert all(known(f"{one}+{other}") for one in COMPILERS for other in LINKERS if one != other)
    assert not any(
        known(name) for name in ("", "ptax", "+", "ptxas+", "nvlink", "nvlink+ptxas", "driver+nvlink", "nvjitlink+nvjitlink", "auto+nvlink")
    )


@pytest.mark.parametrize("wanted", ["auto", "ptxas"])
def test_what_was_found_is_taken(machine: Machine, wanted: str) -> None:
    choice = machine.has("ptxas", "nvlink").choose(wanted)
    assert (choice.name, choice.provider.identity, choice.provider.link_identity) == ("ptxas", "p" * 64, "n" * 64)
    ptxas, nvlink = (machine.folder / name for name in ("ptxas", "nvlink"))
    assert choice.log == (f"ptxas: taken: ptxas 13.5.37 ({ptxas}), nvlink 13.5.37 ({nvlink})",)


def test_whole_objects_need_no_linker(machine: Machine) -> None:
    assert machine.has("ptxas").choose(needs=("compile",)).provider.link_identity == ""


def test_what_is_missing_passes_on_and_says_where_it_was_looked_for(machine: Machine) -> None:
    choice = machine.has("nvptxcompiler").choose(needs=("compile",))
    assert choice.name == "nvptxcompiler"
    assert choice.log[0] == "ptxas: not found; looked for in: /opt/cuda/bin (CUDA_PATH: no such file)"
    assert choice.log[1].startswith("nvptxcompiler+nvlink: nvlink not found; looked for in: /opt/other (PATH: not there)")
    assert choice.log[2] == f"nvptxcompiler: taken: nvptxcompiler 13.5.37 ({machine.folder}/nvptxcompiler)"


def test_where_a_thing_was_looked_for_is_said_once(machine: Machine) -> None:
    log = machine.choose().log
    assert [line.count("looked for in") for line in log] == [1, 1, 0, 0, 0, 1, 0, 0, 1, 0]
    assert log[3:5] == ("ptxas+nvjitlink: ptxas not found", "nvptxcompiler+nvjitlink: nvptxcompiler not found")


def test_a_library_and_a_linker_make_a_pair(machine: Machine) -> None:
    choice = machine.has("nvptxcompiler", "nvlink").choose()
    assert (choice.name, choice.provider.identity, choice.provider.link_identity) == ("nvptxcompiler+nvlink", "n" * 64, "n" * 64)


def test_what_is_taken_first_leaves_the_others_unasked(machine: Machine) -> None:
    assert len(machine.has("ptxas", "nvlink", "nvptxcompiler").choose().log) == 1


def test_a_named_one_that_is_missing_is_an_error_whatever_else_is_there(machine: Machine) -> None:
    with pytest.raises(ToolMissingError) as caught:
        machine.has("ptxas", "nvlink").choose("nvptxcompiler+nvlink")
    assert str(caught.value).splitlines() == [
        "GPU_PROVIDER=nvptxcompiler+nvlink does not fit: this build needs to assemble relocatable objects and link",
        "    nvptxcompiler+nvlink: nvptxcompiler not found; looked for in: /opt/cuda/lib (CUDA_PATH: not there)",
        "  install scons-gpu[toolkit], or set GPU_CUDA_PATH",
    ]


@pytest.mark.parametrize("wanted", ["auto", "ptxas"])
def test_l2_an_assembler_without_linker_is_not_taken_for_a_link(machine: Machine, wanted: str) -> None:
    with pytest.raises(ToolMissingError) as caught:
        machine.has("ptxas").choose(wanted)
    assert (
        f"{machine.folder}/ptxas has no nvlink beside it, so it cannot link; looked for in: /opt/other (PATH: not there)"
        in caught.value.output
    )


def test_l2_nothing_is_put_off_to_what_cannot_link(machine: Machine) -> None:
    with pytest.raises(ToolMissingError, match="cannot link; name what does, as in nvptxcompiler"):
        machine.has("nvptxcompiler").choose("nvptxcompiler", always=True)


def test_l2_always_takes_relocatable_assembly_away(machine: Machine) -> None:
    assert not machine.has("ptxas", "nvlink").choose().making.deferred  # type: ignore[union-attr]
    choice = machine.choose(always=True)
    assert choice.making is not None
    assert choice.making.deferred
    assert choice.log[0].startswith("ptxas: taken, PTX is put off to its link: ")
    keys = [
        object_key(digest="d" * 32, kind="rel", provider=each.provider, options=AssembleOptions(), target=parse("sm_90")[0])
        for each in (choice, machine.choose())
    ]
    assert keys[0] != keys[1], "no object of one is taken for the other's"
    assert not machine.choose(needs=("compile",), always=True).making.deferred  # type: ignore[union-attr]


def test_what_is_too_old_for_an_architecture_passes_on(machine: Machine) -> None:
    machine.has("ptxas", "nvlink", version="12.8.93").has("nvptxcompiler", version="13.5.37").has("nvlink", version="13.5.37")
    choice = machine.choose(archs="sm_90,sm_103")
    assert (choice.name, choice.log[0]) == ("nvptxcompiler+nvlink", "ptxas: ptxas 12.8.93 does not know sm_103")
    assert machine.choose(archs="sm_90,compute_103").name == "ptxas", "a virtual architecture is not assembled"


def test_where_all_are_too_old_the_first_is_taken_and_asked(machine: Machine) -> None:
    machine.has("ptxas", "nvlink", "nvptxcompiler", version="12.8.93")
    assert machine.choose(archs="sm_103").name == "ptxas"


def test_l7_without_anything_modules_end_with_ptx(machine: Machine) -> None:
    choice = machine.choose()
    assert (choice.name, choice.making) == ("none", None)
    assert choice.log[-1].startswith("none: taken: nothing that assembles was found, modules end with PTX; install scons-gpu[toolkit]")
    assert [line.partition(":")[0] for line in choice.log] == [*AUTO, "none"]
    with pytest.raises(ToolMissingError, match="there is no assembler"):
        _ = choice.provider


def test_what_cannot_be_called_without_cuda_python_is_as_good_as_missing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver is on every machine with a GPU, nvJitLink beside many a Python package."""
    monkeypatch.setattr(module, "bindings", lambda _: "")
    machine.has("nvjitlink", "driver")
    choice = machine.choose()
    assert choice.making is None
    assert "was found (nvjitlink and driver cannot be called without cuda-python), modules end with PTX" in choice.log[-1]
    called = f"found at {machine.folder}/nvjitlink, but it is called through cuda-python (cuda.bindings), which is not installed for "
    for wanted, said in (("nvjitlink", "nvjitlink: found"), ("ptxas+nvjitlink", "ptxas+nvjitlink: nvjitlink found")):
        with pytest.raises(ToolMissingError) as caught:
            machine.has("ptxas").choose(wanted)
        assert said in caught.value.output
        assert called in caught.value.output


def test_l7_none_is_taken_by_name_whatever_was_found(machine: Machine) -> None:
    assert machine.has("ptxas", "nvlink").choose("none").making is None


def test_an_unknown_name_is_wrong_use(machine: Machine) -> None:
    with pytest.raises(UsageError) as caught:
        machine.choose("ptax")
    assert str(caught.value).startswith(
        "GPU_PROVIDER=ptax: no such provider\n  known: auto, ptxas, nvptxcompiler, nvjitlink, driver, none, or a pair"
    )


def test_a_worker_makes_the_same_provider(machine: Machine) -> None:
    making = machine.has("nvptxcompiler", "nvlink").choose().making
    assert making is not None
    assert type(making).from_json(making.to_json()) == making
    assert replace(making, deferred=True) != making
