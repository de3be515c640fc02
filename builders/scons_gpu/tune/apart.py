"""A GPU in a process of its own, so that a kernel that faults or never ends costs that process and nothing else.

After an illegal address CUDA refuses all further work of a process (cudaErrorIllegalAddress in the runtime API's list of errors), and
nothing but its end stops a kernel that loops. So whoever is lost is thrown away, and the next `load` starts another.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import scons_gpu
from scons_gpu.errors import GpuError, LaunchError, from_json
from scons_gpu.toolchain.cuda_driver import packages

if TYPE_CHECKING:
    from collections.abc import Callable

    from scons_gpu.tune.cuda import CudaDevice
    from scons_gpu.tune.launch import Launch
    from scons_gpu.tune.solution import Device

__all__ = ["LIMIT", "Apart", "open_here", "serve"]

LIMIT = 60.0
"""Seconds that one request may take; bench asks for launches that take far less."""

_LAST = 2 * int(LIMIT)
"""Seconds after which the process ends by itself: whoever asked is dead, or it would have been killed by now."""

# As workers/pool.py starts its workers, and for its reasons.
_START = """
import sys
sys.path[:] = [folder for folder in sys.path if folder]
sys.path.insert(0, sys.argv[1])
import scons_gpu
sys.path.append(sys.path.pop(0))
from scons_gpu.tune.apart import open_here, serve
serve(int(sys.argv[2]), open_here)
"""
_WORDS = 20  # lines of what a process said before it died


class Apart:
    """`tune/device.py` says what each method is for."""

    def __init__(self, index: int, *, start: str = _START, limit: float = LIMIT) -> None:
        """Starts the process, and raises what opening the device raised. `start` is its program."""
        self._index, self._start, self._limit = index, start, limit
        self._process: _Process | None = None
        self._facts: Device = self._ask("open", index)

    @property
    def facts(self) -> Device:
        """What it is."""
        return self._facts

    def load(self, image: bytes, *, entry: str, launch: Launch, ptx: bool) -> None:
        """Loads a kernel; in a new process, if the one before took the old one along."""
        if self._process is None:
            self._ask("open", self._index)
        self._ask("load", image, entry=entry, launch=launch, ptx=ptx)

    def run(self) -> tuple[bytes, ...]:
        """One launch's outputs."""
        outputs: tuple[bytes, ...] = self._ask("run")
        return outputs

    def time(self, *, samples: int, repeat: int) -> list[float]:
        """Microseconds a launch."""
        times: list[float] = self._ask("time", samples=samples, repeat=repeat)
        return times

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _ask(self, method: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - the methods above know
        if self._process is None:
            self._process = _Process(self._start)
        process = self._process
        try:
            process.pipe.send((method, arguments, named))
            answered = process.pipe.poll(self._limit)
            lost, error, result = process.pipe.recv() if answered else (True, None, None)
        except (EOFError, OSError):
            what = "it took its process along"
            raise self._gone(what) from None
        except BaseException:  # an interrupt: nobody will wait for the answer
            self.close()
            raise
        if not answered:
            what = f"it did not end within {self._limit:g} s"
            raise self._gone(what)
        if lost:
            self.close()
        if error is not None:
            raise from_json(error)
        return result

    def _gone(self, what: str) -> GpuError:
        process, self._process = self._process, None
        words = process.end() if process else ""
        return LaunchError(what, output="\n".join(words.splitlines()[-_WORDS:]))


class _Process:
    """One process, the pipe to it, and what it said."""

    def __init__(self, start: str) -> None:
        self.pipe, theirs = Pipe()
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        package = str(Path(scons_gpu.__file__).parent.parent)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", start, package, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._said,  # what kernels print
                stderr=self._said,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt at the keyboard is for us, who then end it
            )

    def end(self) -> str:
        """Kills it: it holds nothing that must be kept. Gives what it said."""
        self._process.kill()
        self._process.wait()
        self.pipe.close()
        with self._said:
            return os.pread(self._said.fileno(), os.fstat(self._said.fileno()).st_size, 0).decode(errors="replace")


def open_here(index: int) -> CudaDevice:
    """The GPU of that number, in this very process. Raises what `tune/device.py` says of `connect`."""
    packages("bench")
    from scons_gpu.tune.cuda import open_device  # noqa: PLC0415 - only the process that `Apart` starts has CUDA in it

    return open_device(index)


def serve(descriptor: int, open_device: Callable[[int], Any]) -> None:
    """Does what is asked through the pipe, until it closes. Runs in the process that `Apart` starts."""
    pipe = Connection(descriptor)
    device: Any = None
    while True:
        try:
            what, arguments, named = pipe.recv()
        except EOFError:
            return
        error = result = None
        signal.alarm(_LAST)
        try:
            if what == "open":
                device = open_device(*arguments)
                result = device.facts
            else:
                result = getattr(device, what)(*arguments, **named)
        except GpuError as raised:
            error = raised.to_json()
        lost = error is not None and (device is None or device.lost)
        signal.alarm(0)
        pipe.send((lost, error, result))
