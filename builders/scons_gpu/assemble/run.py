"""Starting a tool: in a folder of its own, output captured, with what it cost."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import ToolError, ToolMissingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Finished", "place", "run"]


@dataclass(frozen=True)
class Finished:
    """How a tool ended. `code` is its exit status, or minus the signal that ended it."""

    code: int
    output: str
    """Standard output and error together, in the order written."""
    seconds: float
    cpu: float
    peak_kib: int
    """Peak resident memory; 0 where it cannot be told."""


@contextmanager
def place() -> Iterator[Path]:
    """A private folder to run a tool in, gone afterwards: a failing tool leaves an older output as it was, so there must be none.

    What the system refuses meanwhile (a full disk) becomes a ToolError that names the place.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="scons-gpu-") as folder:
            yield Path(folder)
    except OSError as error:
        msg = f"{error.filename or tempfile.gettempdir()}: {error.strerror or error}"
        raise ToolError(msg, hint=f"tools run in {tempfile.gettempdir()}; TMPDIR names another place") from error


def run(argv: Sequence[str], *, cwd: Path) -> Finished:
    """Runs `argv` in `cwd` until it ends, however long that takes: a unit's assembly has no natural limit.

    Output goes to a file and not through a pipe, so waiting needs neither a reader thread nor a time-out. Raises ToolMissingError where
    the tool cannot be started.
    """
    own = _peak_kib(resource.getrusage(resource.RUSAGE_SELF))
    start = time.monotonic()
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
        except OSError as error:
            msg = f"cannot start {argv[0]}: {error.strerror or error}"
            raise ToolMissingError(msg, hint="scons-gpu doctor shows which tools were found") from error
        usage = _wait(process)
        said.seek(0)
        output = said.read().decode(errors="replace")
    return Finished(
        code=process.returncode,
        output=output,
        seconds=time.monotonic() - start,
        cpu=usage.ru_utime + usage.ru_stime,
        peak_kib=_told(_peak_kib(usage), own),
    )


def _wait(process: subprocess.Popen[bytes]) -> resource.struct_rusage:
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:  # an interrupt must not leave the tool writing into a folder that is about to go
        process.kill()
        process.wait()
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage


def _peak_kib(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss // 1024 if sys.platform == "darwin" else usage.ru_maxrss


def _told(peak: int, own: int) -> int:
    """The kernel counts what the child shared with us before exec: /bin/true started from a 300 MiB process reads as 300 MiB.

    So a figure no larger than our own says nothing about the tool.
    """
    return peak if peak > own else 0
