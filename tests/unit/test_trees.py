from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from scons_gpu.errors import UsageError
from scons_gpu.inspect import trees
from scons_gpu.store.log import BuildLog

if TYPE_CHECKING:
    from pathlib import Path


def tree(top: Path, *names: str) -> Path:
    for name in names:
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return top


def test_without_version_control_all_is_a_source_that_no_build_made(tmp_path: Path) -> None:
    top = tree(
        tmp_path / "p", "SConstruct", "k/a.cu", "build/net.json", "build/net/x.cubin", "build/notes", ".sconsign.dblite", ".gpu-store/x"
    )
    log = BuildLog(top / ".gpu-store" / "log.jsonl", build="1")
    log.write(type="end", ok=True, programs=[str(top / "build/net")])
    assert trees.sources(top, store=top / ".gpu-store") == ["SConstruct", "build/notes", "k/a.cu"]
    assert trees.sources(top, store=top / "elsewhere") == ["SConstruct", "build/net.json", "build/net/x.cubin", "build/notes", "k/a.cu"]


def test_with_git_it_is_what_git_follows_as_it_is_now(tmp_path: Path) -> None:
    top = tree(tmp_path / "p", "SConstruct", "a.cu", "gone.cu", "not followed.cu")
    git = ["git", "-C", str(top)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "a.cu"], check=True)
    with pytest.raises(UsageError, match="not under version control"):
        trees.sources(top, store=top)
    subprocess.run([*git, "add", "SConstruct", "gone.cu"], check=True)
    (top / "gone.cu").unlink()
    (top / "a.cu").write_text("edited")
    assert trees.sources(top, store=top) == ["SConstruct", "a.cu"]


def test_a_folder_without_sconstruct_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no SConstruct"):
        trees.sources(tmp_path, store=tmp_path)


def test_what_was_made_is_what_was_not_copied_or_was_written_since(tmp_path: Path) -> None:
    top, copy = tree(tmp_path / "p", "SConstruct", "a", "run"), tmp_path / "copy"
    (top / "run").chmod(0o755)
    (top / "link").symlink_to("a")
    names = ["SConstruct", "a", "link", "run"]
    trees.copy(top, names, copy)
    assert trees.made(copy, names) == {}
    assert (copy / "link").is_symlink()
    assert (copy / "run").stat().st_mode & 0o100
    tree(copy, "a", "build/net.json", ".sconsign.dblite", ".gpu-store/x")
    assert sorted(trees.made(copy, names)) == ["a", "build/net.json", "link"]
