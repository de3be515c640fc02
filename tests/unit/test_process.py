"""Starting a tool: its ends are told apart, and what it says stays on its stream."""

from __future__ import annotations

import sys

import pytest

from scons_gpu.errors import ToolKilledError, ToolMissingError
from scons_gpu.toolchain.process import Finished, run


def test_status_streams_and_input() -> None:
    done = run(["sh", "-c", "cat; echo err >&2; exit 3"], text="größe\n")
    assert (done.status, done.stdout, done.stderr) == (3, "größe\n", "err\n")
    assert done.output == "größe\nerr"
    done.check_signal("sh")


def test_long_output_and_unread_input_do_not_hang() -> None:
    done = run([sys.executable, "-c", "print('x' * 1000000)"], text="y" * 1000000)
    assert len(done.stdout) == 1000001


def test_l10_a_signal_is_told_with_the_memory() -> None:
    done = run(["sh", "-c", "kill -9 $$"])
    assert done.status == -9
    with pytest.raises(ToolKilledError, match=r"sh was killed \(SIGKILL\)"):
        done.check_signal("sh")
    with pytest.raises(ToolKilledError, match=r"ptxas was killed \(SIGSEGV\) when it held 100 MiB"):
        Finished(status=-11, stdout="", stderr="", cpu=0, peak_kib=102400).check_signal("ptxas")


def test_what_it_costs_is_the_tools_own() -> None:
    big = run([sys.executable, "-c", "x = b'1' * (400 << 20)"])
    assert big.peak_kib > 400 << 10
    assert run(["true"]).peak_kib < 100 << 10  # what the kernel counts from before it was `true` is not told
    assert run([sys.executable, "-c", "sum(range(3000000))"]).cpu > 0.01


def test_a_tool_that_cannot_be_started() -> None:
    with pytest.raises(ToolMissingError, match="cannot start /no/such/tool: No such file"):
        run(["/no/such/tool"])


def test_the_environment_and_folder_are_the_callers(tmp_path: object) -> None:
    done = run(["sh", "-c", "pwd; echo $A"], cwd=str(tmp_path), environ={"A": "1", "PATH": "/bin:/usr/bin"})
    assert done.stdout.split() == [str(tmp_path), "1"]
