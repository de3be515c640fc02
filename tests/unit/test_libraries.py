"""What is made of NVIDIA's archive, in a cache that nobody guards. The archive here is a small one: what is made is what counts."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from scons_gpu.assemble.nvptxcompiler import NvPtxCompilerProvider
from scons_gpu.assemble.provider import AssembleOptions
from scons_gpu.errors import ToolMissingError
from scons_gpu.toolchain import libraries as module
from scons_gpu.toolchain.arch import parse
from scons_gpu.toolchain.facts import Facts
from scons_gpu.toolchain.libraries import Found, libraries
from scons_gpu.toolchain.model import Tool
from scons_gpu.toolchain.places import Place


@dataclass(frozen=True)
class Machine:
    """A toolkit with an archive, and a cache."""

    root: Path

    def find(self, *, facts: str = "facts", environ: dict[str, str] | None = None) -> Found:
        place = Place(origin="PATH", home=self.root, bins=(), libdevice=())
        given = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(self.root / "cache"), **(environ or {})}
        return libraries([place], environ=given, root=str(self.root), facts=Facts(self.root / facts)).get("nvptxcompiler")

    def library(self) -> Path:
        tool = self.find().tool
        assert tool is not None
        return Path(tool.path)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    source, object_file = tmp_path / "small.c", tmp_path / "small.o"
    source.write_text("int nvPTXCompilerGetVersion(void) { return 1; }\n", encoding="utf-8")
    (tmp_path / "lib64").mkdir()
    subprocess.run(["cc", "-fPIC", "-c", source, "-o", object_file], check=True)
    subprocess.run(["ar", "rc", tmp_path / "lib64/libnvptxcompiler_static.a", object_file], check=True)
    return Machine(tmp_path)


def test_it_is_made_once_for_all_stores(machine: Machine) -> None:
    library = machine.library()
    before = library.stat().st_ino
    assert machine.find(facts="another store's").tool == machine.find().tool
    assert library.stat().st_ino == before
    assert sorted(path.suffix for path in library.parent.iterdir()) == [".lock", ".sha256", ".so"]


def test_r7_who_made_it_leaves_nothing_to_find_out(machine: Machine) -> None:
    """What only looks writes nothing, also where the build before it made the library."""
    machine.library()
    facts = machine.root / "facts"
    before = {path: path.stat().st_mtime_ns for path in facts.rglob("*.json")}
    machine.library()
    assert {path: path.stat().st_mtime_ns for path in facts.rglob("*.json")} == before


@pytest.mark.parametrize("damage", ["truncated", "emptied", "exchanged", "a byte", "no seal", "another seal", "gone"])
def test_t1_what_is_damaged_in_the_cache_is_made_anew(machine: Machine, damage: str) -> None:
    """A library that lost its end takes each worker along, and one with a byte of its own makes code of its own."""
    library = machine.library()
    good, seal = library.read_bytes(), library.with_suffix(".sha256")
    told = seal.read_text(encoding="ascii")
    if damage == "no seal":
        seal.unlink()
    elif damage == "another seal":
        seal.write_text("0" * 64, encoding="ascii")
    elif damage == "gone":
        library.unlink()
    else:
        bad = {"truncated": good[: len(good) // 2], "emptied": b"", "exchanged": b"\x7fELF of something else", "a byte": good[:-1] + b"!"}
        library.write_bytes(bad[damage])
    for facts in ("facts", "facts of another store"):
        tool = machine.find(facts=facts).tool
        assert tool is not None
        assert (tool.path, library.read_bytes(), seal.read_text(encoding="ascii")) == (str(library), good, told)


def test_without_a_compiler_what_is_damaged_is_not_taken(machine: Machine) -> None:
    machine.library().write_bytes(b"")
    found = machine.find(environ={"PATH": ""})
    assert found.tool is None
    assert "there is no C++ compiler to make a library of it" in found.looked[-1].result


def test_what_stands_in_its_place_is_told(machine: Machine) -> None:
    library = machine.library()
    library.unlink()
    library.mkdir()
    found = machine.find()
    assert found.tool is None
    assert "cannot make a library of it" in found.looked[-1].result
    assert not [path.name for path in library.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("home", ["nothing", "a file", "below a file", "relative", "a file in its place", "no folder of ours"])
def test_where_nothing_can_be_kept_the_store_keeps_it(machine: Machine, home: str) -> None:
    """Nobody may be root here: what cannot be made is a file in a folder's place."""
    file = machine.root / "file"
    file.touch()
    (machine.root / "there").mkdir()
    (machine.root / "there/scons-gpu").touch()
    named = {"a file": str(file), "below a file": str(file / "below"), "relative": "cache", "no folder of ours": "/proc"}
    environ = {"nothing": {}, "a file in its place": {"HOME": str(file), "XDG_CACHE_HOME": str(machine.root / "there")}}
    found = machine.find(environ={"XDG_CACHE_HOME": "", **environ.get(home, {"HOME": named.get(home, "")})})
    assert found.tool is not None
    assert Path(found.tool.path).parent == machine.root / "facts"


def test_a_cache_that_cannot_be_written_is_read(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    library = machine.library()
    monkeypatch.setattr(module, "_can_be_written", lambda _: False)  # root may write almost everywhere
    assert machine.library() == library
    library.unlink()
    assert machine.library().parent == machine.root / "facts"


def test_r5_what_a_killed_build_left_there_goes(machine: Machine) -> None:
    library = machine.library()
    left = library.with_name(f".tmp-1-{library.name}")
    library.rename(left)
    assert machine.library() == library
    assert not left.exists()


def test_a_library_of_something_else_does_not_load(machine: Machine) -> None:
    other = machine.root / "other.so"
    shutil.copy(machine.library(), other)
    provider = NvPtxCompilerProvider(Tool("nvptxcompiler", str(other), "13.5.37", "0" * 64, "PATH"), facts=machine.root / "facts")
    with pytest.raises(ToolMissingError, match=r"other\.so does not load: .*undefined symbol: nvPTXCompilerCreate"):
        provider.compile("", target=parse("sm_90")[0], options=AssembleOptions())


def nvrtc(root: Path, facts: Path) -> Tool:
    place = Place(origin="PATH", home=root, bins=(), libdevice=())
    tool = libraries([place], environ={}, root=str(root), facts=Facts(facts)).get("nvrtc").tool
    assert tool is not None
    return tool


def test_r2_nvrtc_is_what_it_opens_too(tmp_path: Path) -> None:
    """Half of the compiler is in a library that NVRTC opens by itself; one that comes, is replaced or goes is another compiler."""
    (tmp_path / "toolkit/lib64").mkdir(parents=True)
    library, builtins = (tmp_path / "toolkit/lib64" / name for name in ("libnvrtc.so.13", "libnvrtc-builtins.so.13.5"))
    library.write_bytes(b"NVRTC: Cuda compilation tools, release 13.5, V13.5.37")
    alone = nvrtc(tmp_path / "toolkit", tmp_path / "facts")
    builtins.write_bytes(b"one")
    both = nvrtc(tmp_path / "toolkit", tmp_path / "facts")
    replacement = builtins.with_name("new")
    replacement.write_bytes(b"two")  # of equal length
    replacement.replace(builtins)
    replaced = nvrtc(tmp_path / "toolkit", tmp_path / "facts")
    assert {each.version for each in (alone, both, replaced)} == {"13.5.37"}
    assert len({each.identity for each in (alone, both, replaced)}) == 3
    (tmp_path / "links").mkdir()
    (tmp_path / "links/lib64").mkdir()
    (tmp_path / "links/lib64/libnvrtc.so.13").symlink_to(library)
    assert nvrtc(tmp_path / "links", tmp_path / "facts").identity == replaced.identity
    builtins.unlink()
    assert nvrtc(tmp_path / "toolkit", tmp_path / "facts") == alone
