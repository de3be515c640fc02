"""Starting a tool: its ends are told apart, what it says is kept, and what it took is its own."""

from __future__ import annotations

import resource
import signal
import sys
from pathlib import Path

import pytest

from scons_gpu.errors import GpuError, ToolError, ToolMissingError, ToolStoppedError
from scons_gpu.toolchain.process import ask, killed, private_folder, run


def test_status_streams_and_input() -> None:
    done = run(["sh", "-c", "cat; echo err >&2; exit 3"], text="größe\n")
    assert (done.status, done.stdout, done.stderr) == (3, "größe\n", "err\n")
    assert done.output == "größe\nerr"


def test_streams_together_keep_their_order() -> None:
    done = run(["sh", "-c", "echo one; echo two >&2; echo three"], together=True)
    assert (done.stdout, done.stderr) == ("one\ntwo\nthree\n", "")


def test_long_output_and_unread_input_do_not_hang() -> None:
    done = run([sys.executable, "-c", "print('x' * 1000000)"], text="y" * 1000000)
    assert len(done.stdout) == 1000001


def test_a_signal_is_a_negative_status() -> None:
    assert run(["sh", "-c", "kill -9 $$"]).status == -9


def test_an_answer_that_somebody_cut_short_is_none() -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        with pytest.raises(ToolStoppedError, match="clang was killed by"):
            ask(["sh", "-c", f"kill -{number:d} $$"], tool="clang")
    assert ask(["sh", "-c", "kill -SEGV $$"]).status == -signal.SIGSEGV, "that is its own doing"


def test_what_takes_more_cpu_time_than_it_may_is_ended() -> None:
    assert run(["sh", "-c", "while :; do :; done"], seconds=0.5).status == -signal.SIGXCPU
    assert run(["sh", "-c", "exit 3"], seconds=60).status == 3
    assert str(killed("ptxas", signal.SIGXCPU)).startswith("ptxas took more CPU time than it may")


def test_l10_a_signal_is_told_with_the_memory() -> None:
    error = killed("ptxas", 9, peak_kib=102400, arch="sm_90", output="half a word")
    assert str(error) == "sm_90: ptxas was killed by SIGKILL at 100 MiB\n    half a word\n  out of memory? build with a smaller -j"
    assert killed("clang", 11).what == "clang was killed by SIGSEGV"
    assert killed("clang", 40).what == "clang was killed by signal 40"


def test_what_it_takes_is_the_tools_own() -> None:
    ours = bytearray(100 << 20)
    assert run(["true"]).peak_kib == 0, "the kernel counts our memory before exec; that says nothing"
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + (100 << 10)
    big = run([sys.executable, "-c", f"x = b'1' * ({more} << 10)"])
    assert more < big.peak_kib < more + (100 << 10)
    assert big.cpu > 0
    assert big.seconds > 0
    assert len(ours) == 100 << 20


def test_a_tool_that_cannot_be_started() -> None:
    with pytest.raises(ToolMissingError, match="cannot start /no/such/tool: No such file"):
        run(["/no/such/tool"])


def test_the_environment_and_folder_are_the_callers(tmp_path: Path) -> None:
    done = run(["sh", "-c", "pwd; echo $A"], cwd=str(tmp_path), environ={"A": "1", "PATH": "/bin:/usr/bin"})
    assert done.stdout.split() == [str(tmp_path), "1"]


def test_a_private_folder_is_gone_afterwards() -> None:
    with private_folder() as folder:
        (folder / "x").write_text("x")
    assert not folder.exists()


def test_l13_a_full_disk_is_an_error() -> None:
    """No tool's word on its input: a candidate would be taken for one that cannot be compiled, for good."""
    full = Path("/dev/full")
    with pytest.raises(GpuError, match="No space left on device") as caught, private_folder():
        full.write_text("x" * 100_000, encoding="utf-8")
    assert not isinstance(caught.value, ToolError)
