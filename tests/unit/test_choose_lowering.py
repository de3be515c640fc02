"""What lowers: the decision, and the one question to a library that it rests on."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from scons_gpu.errors import ToolMissingError, UnsupportedArchError, UsageError
from scons_gpu.lower import choose as module
from scons_gpu.lower.choose import Lowering, Reads, choose, decide, library, reads
from scons_gpu.lower.options import LowerOptions
from scons_gpu.toolchain.arch import parse
from scons_gpu.toolchain.libraries import Found, Libraries
from scons_gpu.toolchain.model import Look, Tool
from scons_gpu.toolchain.tools import Toolchain, discover

if TYPE_CHECKING:
    from pathlib import Path

LLVM = "22.1.0 abc"
NVVM = Tool(name="nvvm", path="/lib/libnvvm.so.4", version="13.5.37", identity="i", origin="wheel")
PTXAS = Tool(name="ptxas", path="/bin/ptxas", version="13.5.37", identity="i", origin="wheel")
OLD_PTXAS = Tool(name="ptxas", path="/bin/ptxas", version="13.0.48", identity="i", origin="wheel")
READS = Reads(dialects=(("90", 7), ("100", 22), ("100a", 22)), ptx=95)


def taken(
    wanted: str, arch: str, *, llvm: str = LLVM, assembler: Tool | None = PTXAS, nvvm: Tool | None = NVVM, found: Reads | None = READS
) -> Lowering:
    return decide(wanted, target=parse(arch)[0], llvm=llvm, assembler=assembler, nvvm=nvvm, found=found)


@pytest.mark.parametrize("arch", ["sm_100", "sm_100a", "compute_100"])
def test_it_is_taken_where_it_reads_our_ir(arch: str) -> None:
    for wanted in ("auto", "nvvm"):
        assert taken(wanted, arch) == Lowering(by="nvvm", ptx=95, why="libNVVM 13.5.37 reads our IR, that of LLVM 22")


@pytest.mark.parametrize(
    ("arch", "more", "why"),
    [
        ("sm_90", {}, "for this architecture it reads the IR of LLVM 7, and ours is of LLVM 22"),
        ("sm_120", {}, "it does not know this architecture"),
        ("sm_100", {"llvm": "23.0.0 abc"}, "for this architecture it reads the IR of LLVM 22, and ours is of LLVM 23"),
        ("sm_100", {"assembler": OLD_PTXAS}, "it writes PTX 9.5, and ptxas 13.0.48 reads up to 9.0"),
        ("sm_100", {"found": Reads(trouble="no such function")}, "no such function"),
        ("sm_100", {"found": Reads(dialects=(("100", 22),), trouble="cannot compile")}, "cannot compile"),
        ("sm_100", {"found": Reads()}, "it does not tell what it reads"),
    ],
)
def test_where_it_cannot_llvm_does_or_it_is_an_error(arch: str, more: dict[str, object], why: str) -> None:
    assert taken("auto", arch, **more) == Lowering(by="llvm", ptx=90, why=f"libNVVM 13.5.37: {why}")  # type: ignore[arg-type]
    with pytest.raises(UsageError) as caught:
        taken("nvvm", arch, **more)  # type: ignore[arg-type]
    assert f"libNVVM 13.5.37 (/lib/libnvvm.so.4) cannot lower {arch}: {why}" in str(caught.value)
    assert "GPU_LOWER=auto takes LLVM" in caught.value.hint


def test_the_hint_names_what_it_reads() -> None:
    with pytest.raises(UsageError, match="it reads our IR for sm_100, sm_100a;"):
        taken("nvvm", "sm_90")
    with pytest.raises(UsageError, match="it reads our IR for no architecture;"):
        taken("nvvm", "sm_100", llvm="23.0.0 abc")


def test_an_older_llvm_is_read_too() -> None:
    """LLVM reads what its forebears wrote."""
    assert taken("auto", "sm_100", llvm="21.1.0 abc").by == "nvvm"


def test_without_an_assembler_no_ptx_is_too_new() -> None:
    assert taken("auto", "sm_100", assembler=None).by == "nvvm"


def test_without_it_llvm_lowers() -> None:
    assert taken("auto", "sm_100", nvvm=None, found=None) == Lowering(by="llvm", ptx=90, why="libNVVM was not found")
    assert taken("llvm", "sm_100", nvvm=None, found=None) == Lowering(by="llvm", ptx=90, why="asked for")


def test_a3_an_architecture_that_nobody_knows_is_told_as_ever() -> None:
    with pytest.raises(UnsupportedArchError, match="LLVM 20"):
        taken("auto", "sm_110", llvm="20.1.0 abc")


def chain(found: Found, **more: object) -> Toolchain:
    return Toolchain(llvm=LLVM, ptxas=PTXAS, libraries=Libraries(lambda _: found), **more)  # type: ignore[arg-type]


def test_a_missing_library_is_told_with_its_places(tmp_path: Path) -> None:
    nowhere = chain(Found(None, (Look("nvvm", "/opt/cuda/lib64", "CUDA_PATH", "not there"),)))
    assert choose(nowhere, target=parse("sm_100")[0], assembler=PTXAS, facts=tmp_path).by == "llvm"
    with pytest.raises(ToolMissingError, match=r"GPU_LOWER=nvvm: libNVVM was not found.*\n.*/opt/cuda/lib64 \(CUDA_PATH: not there\)"):
        choose(nowhere, wanted="nvvm", target=parse("sm_100")[0], assembler=PTXAS, facts=tmp_path)


def test_nobody_looks_for_it_where_llvm_is_asked_for(tmp_path: Path) -> None:
    def look(name: str) -> Found:
        raise AssertionError(name)

    tools = Toolchain(llvm=LLVM, ptxas=PTXAS, libraries=Libraries(look))
    assert choose(tools, wanted="llvm", target=parse("sm_100")[0], assembler=PTXAS, facts=tmp_path).why == "asked for"
    assert library(tools, LowerOptions(ptx=90)) is None


def test_r4_the_library_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real one; the answer is kept, and a second build starts no process."""
    tools = discover(environ=dict(os.environ), prefix=sys.prefix, facts=tmp_path)
    tool = tools.library("nvvm")
    assert tool is not None
    found = reads(tool, facts=tmp_path)
    assert (dict(found.dialects)["100"], dict(found.dialects)["90"], found.ptx, found.trouble) == (22, 7, 95, "")
    reads.cache_clear()
    monkeypatch.setattr(module, "ask", lambda *_, **__: pytest.fail("a process was started"))
    assert reads(tool, facts=tmp_path) == found


def test_without_cuda_python_nothing_is_asked_and_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "bindings", lambda _: "")
    monkeypatch.setattr(module, "ask", lambda *_, **__: pytest.fail("a process was started"))
    found = reads(NVVM, facts=tmp_path)
    assert found.trouble.startswith("it is called through cuda-python (cuda.bindings), which is not installed for ")
    assert taken("auto", "sm_100", found=found).by == "llvm"
    with pytest.raises(UsageError, match="called through cuda-python") as caught:
        taken("nvvm", "sm_100", found=found)
    assert caught.value.hint == "pip install 'scons-gpu[toolkit]' brings libNVVM and cuda-python; GPU_LOWER=auto takes LLVM"


def test_a_library_that_crashes_or_is_none_is_trouble(tmp_path: Path) -> None:
    file = tmp_path / "libnvvm.so.4"
    file.write_text("no library")
    tool = Tool(name="nvvm", path=str(file), version="1.0.0", identity="i", origin="")
    assert "cannot be used" in reads(tool, facts=tmp_path / "facts").trouble
    assert taken("auto", "sm_100", found=reads(tool, facts=tmp_path / "facts")).by == "llvm"


def test_t10_a_module_of_the_projects_own_is_not_taken_for_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    tool = discover(environ=dict(os.environ), prefix=sys.prefix, facts=tmp_path / "facts").library("nvvm")
    assert tool is not None
    assert not reads(tool, facts=tmp_path / "facts").trouble
