from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from scons_gpu.assemble.run import place, run
from scons_gpu.errors import ToolError, ToolMissingError

if TYPE_CHECKING:
    from pathlib import Path


def test_code_and_output_in_order(tmp_path: Path) -> None:
    ended = run(["/bin/sh", "-c", "echo one; echo two >&2; pwd; exit 7"], cwd=tmp_path)
    assert ended.code == 7
    assert ended.output == f"one\ntwo\n{tmp_path}\n"


def test_more_output_than_a_pipe_holds(tmp_path: Path) -> None:
    assert len(run([sys.executable, "-c", "print('x' * 300_000)"], cwd=tmp_path).output) == 300_001


def test_signal_is_a_negative_code(tmp_path: Path) -> None:
    assert run(["/bin/sh", "-c", "kill -9 $$"], cwd=tmp_path).code == -9


def test_peak_is_the_tools_and_not_ours(tmp_path: Path) -> None:
    ours = bytearray(100 << 20)
    assert run(["/bin/true"], cwd=tmp_path).peak_kib == 0, "the kernel counts our memory before exec; that says nothing"
    ended = run([sys.executable, "-c", "x = bytearray(250 << 20)"], cwd=tmp_path)
    assert 250 << 10 < ended.peak_kib < 350 << 10
    assert len(ours) == 100 << 20


def test_missing_tool(tmp_path: Path) -> None:
    with pytest.raises(ToolMissingError, match="cannot start /nowhere/ptxas: No such file"):
        run(["/nowhere/ptxas"], cwd=tmp_path)


def test_full_disk_is_an_error() -> None:
    with pytest.raises(ToolError, match="No space left on device"), place(), open("/dev/full", "w", encoding="utf-8") as full:  # noqa: PTH123
        full.write("x" * 100_000)


def test_place_is_gone_afterwards() -> None:
    with place() as folder:
        (folder / "x").write_text("x")
    assert not folder.exists()
