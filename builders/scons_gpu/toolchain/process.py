"""Starts a tool, in a folder of its own where it writes; waits for it; tells how it ended and what it took."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from scons_gpu.errors import GpuError, ToolKilledError, ToolMissingError, ToolStoppedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from resource import struct_rusage

__all__ = ["Finished", "ask", "killed", "private_folder", "run", "signal_of"]


@dataclass(frozen=True)
class Finished:
    """How a tool ended: `status` is its exit code, negative for a signal's number."""

    status: int
    stdout: str
    stderr: str
    seconds: float = 0.0
    """By the clock."""
    cpu: float = 0.0
    """Seconds of all its processes."""
    peak_kib: int = 0
    """Peak resident memory; 0 where it cannot be told."""

    @property
    def output(self) -> str:
        """What it said on both streams."""
        return "\n".join(text.rstrip() for text in (self.stdout, self.stderr) if text.strip())


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A folder to run a tool in, gone afterwards: a failing tool leaves an older output as it was, so there must be none.

    What the system refuses meanwhile (a full disk) becomes a GpuError that names the place: no tool said anything of its input.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="scons-gpu-") as folder:
            yield Path(folder)
    except OSError as error:
        msg = f"{error.filename or tempfile.gettempdir()}: {error.strerror or error}"
        raise GpuError(msg, hint=f"tools run in {tempfile.gettempdir()}; TMPDIR names another place") from error


def run(  # noqa: PLR0913 - one keyword for each thing that a tool may be given
    argv: Sequence[str],
    *,
    cwd: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    text: str = "",
    together: bool = False,
    seconds: float | None = None,
) -> Finished:
    """Runs `argv` with `text` as its input until it ends, however long that takes: a unit's assembly has no natural limit.

    `together`: both streams go to `stdout`, in the order written. Output goes through files: a pipe's reader would need threads to get
    at the memory figure. `seconds`: CPU time after which the system kills it with SIGXCPU. Raises ToolMissingError where the tool cannot
    be started.
    """
    with contextlib.ExitStack() as files:
        stdin = files.enter_context(tempfile.TemporaryFile()) if text else subprocess.DEVNULL
        if not isinstance(stdin, int):
            stdin.write(text.encode())
            stdin.seek(0)
        stdout = files.enter_context(tempfile.TemporaryFile())
        stderr = subprocess.STDOUT if together else files.enter_context(tempfile.TemporaryFile())
        own, start = _own_peak_kib(), time.monotonic()
        try:
            process = subprocess.Popen(argv, cwd=cwd, env=environ, stdin=stdin, stdout=stdout, stderr=stderr)
        except OSError as error:
            msg = f"cannot start {argv[0]}: {error.strerror or error}"
            raise ToolMissingError(msg, hint="scons-gpu doctor shows which tools were found") from error
        if seconds is not None:
            _limit(process.pid, seconds)
        usage = _wait(process)
        taken = time.monotonic() - start
        said = [_text(file) for file in (stdout, stderr)]
    peak = _kib(usage)
    return Finished(
        status=process.returncode,
        stdout=said[0],
        stderr=said[1],
        seconds=taken,
        cpu=usage.ru_utime + usage.ru_stime,
        # The kernel counts what the child shared with us before exec: /bin/true started from a 300 MiB process reads as 300 MiB.
        peak_kib=peak if peak > own else 0,
    )


_FROM_OUTSIDE = {getattr(signal, name) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)}
"""Signals that no tool sends itself: somebody wants it gone, or there was no memory left."""


def ask(argv: Sequence[str], *, tool: str = "", cwd: str | Path | None = None, text: str = "", together: bool = False) -> Finished:
    """`run`, for a question whose answer is kept. Raises ToolStoppedError where somebody ended it meanwhile: that is no answer.

    `tool` is who is asked, where that is not what `argv` starts.
    """
    ended = run(argv, cwd=cwd, text=text, together=together)
    if -ended.status in _FROM_OUTSIDE:
        raise killed(tool or argv[0], -ended.status, peak_kib=ended.peak_kib, output=ended.output)
    return ended


def killed(tool: str, number: int, *, peak_kib: int = 0, arch: str = "", output: str = "") -> ToolKilledError:
    """The error for a tool that signal `number` ended; `peak_kib` is 0 where its memory is not known."""
    memory = f" at {peak_kib / 1024:.0f} MiB" if peak_kib else ""
    msg = f"{tool} was killed by {signal_of(number)}{memory}"
    hint = "out of memory? build with a smaller -j" if number == signal.SIGKILL else ""
    if number == signal.SIGXCPU:
        msg = f"{tool} took more CPU time than it may"
        hint = "GPU_CANDIDATE_SECONDS is what a candidate may take"
    kind = ToolStoppedError if number in _FROM_OUTSIDE else ToolKilledError
    return kind(msg, arch=arch, output=output, hint=hint)


def signal_of(number: int) -> str:
    """`SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _text(file: IO[bytes] | int) -> str:
    if isinstance(file, int):
        return ""
    file.seek(0)
    return file.read().decode(errors="replace")


def _wait(process: subprocess.Popen[bytes]) -> struct_rusage:
    """Not `Popen.wait`, which does not tell what one child took."""
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:  # an interrupt must not leave the tool writing into a folder that is about to go
        process.kill()
        process.wait()
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage


def _limit(process: int, seconds: float) -> None:
    """The system counts whole seconds. A process that is gone already needs no limit."""
    import resource  # noqa: PLC0415 - there is none on Windows

    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(process, resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 1))


def _own_peak_kib() -> int:
    import resource  # noqa: PLC0415 - there is none on Windows, where this module can still be imported

    return _kib(resource.getrusage(resource.RUSAGE_SELF))


def _kib(usage: struct_rusage) -> int:
    return usage.ru_maxrss // 1024 if sys.platform == "darwin" else usage.ru_maxrss
