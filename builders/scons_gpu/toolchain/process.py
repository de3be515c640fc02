"""Starts a tool, waits for it, and tells how it ended and what memory it took."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.errors import ToolKilledError, ToolMissingError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from resource import struct_rusage

__all__ = ["Finished", "run"]


@dataclass(frozen=True)
class Finished:
    """How a tool ended: `status` is its exit code, negative for a signal's number."""

    status: int
    stdout: str
    stderr: str
    cpu: float  # seconds
    peak_kib: int  # 0 where it cannot be told

    @property
    def output(self) -> str:
        """What it said on both streams."""
        return "\n".join(text.rstrip() for text in (self.stdout, self.stderr) if text.strip())

    def check_signal(self, name: str) -> None:
        """Raises ToolKilledError if a signal ended it."""
        if self.status >= 0:
            return
        try:
            word = signal.Signals(-self.status).name
        except ValueError:
            word = f"signal {-self.status}"
        held = f" when it held {self.peak_kib / 1024:.0f} MiB" if self.peak_kib else ""
        msg = f"{name} was killed ({word}){held}"
        raise ToolKilledError(msg, output=self.output, hint="if the machine ran out of memory, build with a smaller -j")


def run(argv: Sequence[str], *, cwd: str | Path | None = None, environ: Mapping[str, str] | None = None, text: str = "") -> Finished:
    """Runs `argv` with `text` as its input. Output goes through files: a pipe's reader would need threads to get at the memory figure."""
    import resource  # noqa: PLC0415 - there is none on Windows, where this module can still be imported

    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(text.encode())
        stdin.seek(0)
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            process = subprocess.Popen(argv, cwd=cwd, env=environ, stdin=stdin, stdout=stdout, stderr=stderr)
        except OSError as error:
            msg = f"cannot start {argv[0]}: {error.strerror or error}"
            raise ToolMissingError(msg) from error
        usage = _wait(process)
        stdout.seek(0)
        stderr.seek(0)
        said = (stdout.read().decode(errors="replace"), stderr.read().decode(errors="replace"))
    # The kernel counts what the child shared with us before it became the tool, so a figure no larger than ours says nothing.
    peak = usage.ru_maxrss if usage.ru_maxrss > own else 0
    return Finished(status=process.returncode, stdout=said[0], stderr=said[1], cpu=usage.ru_utime + usage.ru_stime, peak_kib=peak)


def _wait(process: subprocess.Popen[bytes]) -> struct_rusage:
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:  # an interrupt: what was started here ends with it
        process.kill()
        process.wait()
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage
