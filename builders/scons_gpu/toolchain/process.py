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

__all__ = ["Finished", "run"]


@dataclass(frozen=True)
class Finished:
    """How a tool ended: `status` is its exit code, negative for a signal's number."""

    status: int
    stdout: str
    stderr: str
    peak_kib: int

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
        msg = f"{name} was killed ({word}) when it held {self.peak_kib / 1024:.0f} MiB"
        raise ToolKilledError(msg, output=self.output, hint="if the machine ran out of memory, build with a smaller -j")


def run(argv: Sequence[str], *, cwd: str | Path | None = None, environ: Mapping[str, str] | None = None, text: str = "") -> Finished:
    """Runs `argv` with `text` as its input. Output goes through files: a pipe's reader would need threads to get at the memory figure."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(text.encode())
        stdin.seek(0)
        try:
            process = subprocess.Popen(argv, cwd=cwd, env=environ, stdin=stdin, stdout=stdout, stderr=stderr)
        except OSError as error:
            msg = f"cannot start {argv[0]}: {error.strerror or error}"
            raise ToolMissingError(msg) from error
        process.returncode, peak = _wait(process.pid)
        stdout.seek(0)
        stderr.seek(0)
        said = (stdout.read().decode(errors="replace"), stderr.read().decode(errors="replace"))
    return Finished(status=process.returncode, stdout=said[0], stderr=said[1], peak_kib=peak)


def _wait(pid: int) -> tuple[int, int]:
    _, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss
