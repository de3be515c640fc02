"""Runs SCons in forks of a process that has loaded it: loading takes most of the time of a small build."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["scons"]

RUNS = 16
"""How many runs one loaded process is good for. Each process has a hash seed of its own, as each run would have without."""


def scons(args: Sequence[str], *, folder: Path, environ: Mapping[str, str], timeout: float) -> tuple[int, str, str]:
    """What `python -m SCons` in this folder comes to: exit code, output, errors."""
    # One run after another has another seed: what hangs on the order of a set is no more hidden than without forks.
    parent = WAITING.popleft() if len(WAITING) > 1 else _Parent(environ)
    if parent.environ != environ:
        parent.end()
        parent = _Parent(environ)
    result = parent.run(args, folder, time.monotonic() + timeout)
    if parent.runs < RUNS:
        WAITING.append(parent)
    else:
        parent.end()
    return result


class _Parent:
    """A process that has loaded SCons and the tool, and forks when asked to."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.runs, self.environ = 0, dict(environ)
        self._line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            argv = [sys.executable, __file__, str(other.fileno())]
            self._process = subprocess.Popen(argv, env=self.environ, pass_fds=[other.fileno()])

    def run(self, args: Sequence[str], folder: Path, deadline: float) -> tuple[int, str, str]:
        self.runs += 1
        ends, theirs = zip(os.pipe(), os.pipe(), strict=True)
        try:
            socket.send_fds(self._line, [json.dumps([os.fspath(folder), *args]).encode()], theirs)
            for end in theirs:
                os.close(end)
            child = int(self._line.recv(100))
            try:
                out, errors = _read(ends, deadline)
                self._line.settimeout(max(deadline - time.monotonic(), 0.001))
                return int(self._line.recv(100)), out, errors
            except TimeoutError:
                os.kill(child, signal.SIGKILL)
                self.end()
                raise
        finally:
            for end in ends:
                os.close(end)

    def end(self) -> None:
        self._line.close()
        self._process.wait()


def _read(ends: Sequence[int], deadline: float) -> list[str]:
    """All that comes out of these pipes, until nobody holds their other ends."""
    data = {end: bytearray() for end in ends}
    with selectors.DefaultSelector() as selector:
        for end in ends:
            selector.register(end, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(deadline - time.monotonic(), 0.001))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                new = os.read(key.fd, 1 << 16)
                data[key.fd] += new
                if not new:
                    selector.unregister(key.fd)
    return [text.decode().replace("\r\n", "\n") for text in data.values()]


WAITING: deque[_Parent] = deque()


@atexit.register
def _end() -> None:
    while WAITING:
        WAITING.pop().end()


def _load() -> None:
    """What a run of SCons loads in any case."""
    import SCons.Platform  # noqa: PLC0415 - in the parent of forks alone
    import SCons.Script  # noqa: PLC0415 - the same
    import SCons.Tool  # noqa: PLC0415 - the same

    import scons_gpu.scons.program  # noqa: PLC0415 - the same
    import scons_gpu.scons.session  # noqa: F401, PLC0415 - the same

    for package in (SCons.Platform, SCons.Tool):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def _fork(line: socket.socket) -> list[str]:
    """Returns in the forks alone: what each is asked for."""
    while True:
        message, ends, _, _ = socket.recv_fds(line, 1 << 16, 2)
        if not message:
            sys.exit()
        child = os.fork()
        if not child:
            line.close()
            for end, place in zip(ends, (1, 2), strict=True):
                os.dup2(end, place)
                os.close(end)
            asked: list[str] = json.loads(message)
            return asked
        for end in ends:
            os.close(end)
        line.send(str(child).encode())
        line.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


if __name__ == "__main__":
    atexit.unregister(_end)
    sys.path.pop(0)
    _load()
    gc.freeze()
    folder, *args = _fork(socket.socket(fileno=int(sys.argv.pop())))
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv[1:] = args
    runpy.run_module("SCons", run_name="__main__", alter_sys=True)
