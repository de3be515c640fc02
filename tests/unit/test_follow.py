"""Wrapper scripts as people write them, each followed to what it starts."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from scons_gpu.toolchain.follow import follow
from scons_gpu.toolchain.process import run

if TYPE_CHECKING:
    from pathlib import Path


def write_tool(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "script",
    [
        'exec {real} "$@"',
        "exec {real} $*",
        'exec "{real}" "$@"',
        '{real} "$@"',
        'exec env LC_ALL=C {real} "$@"',
        'exec /usr/bin/env {real} "$@"',
        'echo called >> /dev/null\nexec {real} "$@"',
        'home={home}\nexec "$home/bin/ptxas" "$@"',
        'home="{home}"\nexec "${{home}}/bin/ptxas" "$@"',
        'exec "$(dirname "$0")/../cuda/bin/ptxas" "$@"',
        'exec "${{0%/*}}/../cuda/bin/ptxas" "$@"',
        'here=$(cd "$(dirname "$0")" && pwd)\nexec "$here/../cuda/bin/ptxas" "$@"',
        'case "$1" in --version) echo asked;; esac\nexec {real} "$@"  # the real one',
    ],
)
def test_usual_wrappers(tmp_path: Path, script: str) -> None:
    home = tmp_path / "cuda"
    real = write_tool(home / "bin" / "ptxas", "echo real\n")
    wrapper = write_tool(tmp_path / "bin" / "ptxas", script.format(real=real, home=home) + "\n")
    assert run([str(wrapper), "x"]).stdout == "real\n"  # the script does what the test thinks
    assert follow(str(wrapper)).real == str(real)


def test_links_and_chains_of_wrappers(tmp_path: Path) -> None:
    real = tmp_path / "real"
    shutil.copy("/bin/true", real)
    inner = write_tool(tmp_path / "inner", f'exec {real} "$@"\n')
    outer = write_tool(tmp_path / "outer", f'exec {inner} "$@"\n')
    link = tmp_path / "link"
    link.symlink_to(outer)
    found = follow(str(link))
    assert found.real == str(real)
    assert found.files == (str(link), str(inner), str(real))


def test_what_cannot_be_followed_has_no_end(tmp_path: Path) -> None:
    loop = write_tool(tmp_path / "loop", f'exec {tmp_path}/loop "$@"\n')
    for path in (
        loop,
        write_tool(tmp_path / "unknown", 'exec "$CUDA/bin/ptxas" "$@"\n'),
        write_tool(tmp_path / "eval", "exec `cat where` $@\n"),
    ):
        assert follow(str(path)).real == ""
    other = tmp_path / "other"
    other.write_text("#!/usr/bin/env python3\nimport os, sys\nos.execv('/bin/true', sys.argv)\n")
    assert follow(str(other)).real == ""


def test_a_script_that_hands_nothing_on_is_the_tool(tmp_path: Path) -> None:
    tool = write_tool(tmp_path / "ptxas", "echo V13.5.37\n")
    assert follow(str(tool)).real == str(tool)
    assert follow(str(tmp_path / "missing")).real == str(tmp_path / "missing")
