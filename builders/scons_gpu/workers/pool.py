"""Worker processes for all that needs LLVM: as many as there are calls at once, reused, replaced when one dies.

Importing this starts nothing and imports no LLVM.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from typing import IO, TYPE_CHECKING, Any

from scons_gpu.errors import from_json
from scons_gpu.lower.options import INSTEAD
from scons_gpu.toolchain import python

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scons_gpu.errors import GpuError

__all__ = ["Pool", "ignore_interrupts"]

RECYCLE_KIB = 2 << 20
"""A worker that holds more than this after a task is let go: 2 GiB."""
SPOILING = ("assemble", "link")
"""Tasks whose worker is let go when they fail: nvJitLink 13.5, once it met PTX of an unknown version, links undefined names in silence."""
GRACE = 2.0
"""Seconds that a worker has to end by itself. It takes a few milliseconds, unless it was stopped."""

_START = "from scons_gpu.workers.worker import main\nmain()\n"


class Pool:
    """Runs tasks in workers. Every method may be called from any thread."""

    def __init__(self, *, environ: Mapping[str, str] | None = None) -> None:
        """Starts nothing yet. `environ` is the workers' environment, by default this process'."""
        self._environ = dict(os.environ if environ is None else environ)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self.started = 0
        """How many workers this pool ever started."""

    def run(self, op: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - what JSON can hold
        """Has a worker do `op` and gives its answer: `output`, `cpu` (s), `peak_kib`, `worker` (process id), and what the task adds.

        Raises the GpuError that the task raised; for a worker that died, what LLVM's last words mean, else ToolKilledError.
        """
        worker = self._take()
        try:
            answer = worker.ask({"op": op, **arguments})
        except BaseException:  # an interrupt too: an answer that nobody waits for would be taken for the next task's
            self._drop(worker)
            raise
        if answer is None:
            self._drop(worker)
            runs = str(arguments["provider"]["name"]) if op in SPOILING else "LLVM"
            error = worker.obituary(str(arguments.get("arch", "")), runs=runs).at(source=str(arguments.get("source", "")))
            error.hint = error.hint or (INSTEAD if arguments.get("nvvm") else "")
            raise error
        spoilt = op in SPOILING and not answer["ok"]
        if answer.pop("rss_kib") > RECYCLE_KIB or spoilt:
            self._drop(worker)
        else:
            with self._lock:
                self._idle.append(worker)
        if not answer.pop("ok"):
            raise from_json(answer["error"])
        return {**answer, "worker": worker.pid}

    def prepare(self) -> None:
        """Starts one worker ahead of its first task, if there is none: LLVM then loads while the front end still runs."""
        with self._lock:
            if not self._all:
                self._idle.append(self._start())

    def close(self) -> None:
        """Ends all workers, busy ones too; files are never half-written. The pool can be used again."""
        with self._lock:
            workers, self._idle, self._all = list(self._all), [], set()
        for worker in workers:
            worker.end()
        atexit.unregister(self._leave)

    def _leave(self) -> None:
        """At the end of the process."""
        ignore_interrupts()
        self.close()

    def _take(self) -> _Worker:
        """The worker that was idle last, so that those which are not needed any more stay cold; or a new one."""
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else self._start()
            if worker.alive():
                return worker
            self._drop(worker)  # somebody killed it while it had nothing to do

    def _start(self) -> _Worker:
        if not self._all:
            atexit.register(self._leave)
        worker = _Worker(self._environ)
        self._all.add(worker)
        self.started += 1
        return worker

    def _drop(self, worker: _Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.end()


class _Worker:
    """One process and its pipes."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        # Without a name: nothing is left behind, however this process ends.
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        with _interrupts_held_back():
            self._process = subprocess.Popen(
                python.command(_START),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=environ,
            )
        self.pid = self._process.pid
        self._ending = threading.Lock()
        self._peak_kib = 0
        self._words = ""

    def alive(self) -> bool:
        """Whether the process is still there; leaves it to `end` to wait for it."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The answer, or None if the worker died over it."""
        assert self._process.stdin is not None  # noqa: S101 - tells the type
        assert self._process.stdout is not None  # noqa: S101 - tells the type
        line = json.dumps(request, default=_plain) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
            reply = self._process.stdout.readline()
        except (BrokenPipeError, ValueError):  # it is dead already; the pool was closed under this call
            return None
        return json.loads(reply) if reply.endswith(b"\n") else None

    def obituary(self, arch: str, *, runs: str) -> GpuError:
        """Why it died; `runs` is what the task was for. Call after `end`."""
        from scons_gpu.workers.deaths import death  # noqa: PLC0415 - a build without a death need not load its tables

        return death(code=self._process.returncode, said=self._words, peak_kib=self._peak_kib, arch=arch, runs=runs)

    def end(self) -> None:
        """Closes the pipe, which ends the process, and waits for it; one that does not go by itself is killed."""
        with self._ending:
            if self._process.returncode is not None:
                return
            _close(self._process.stdin)
            self._wait()
            _close(self._process.stdout)
            self._words = os.pread(self._said.fileno(), os.fstat(self._said.fileno()).st_size, 0).decode(errors="replace")
            self._said.close()

    def _wait(self) -> None:
        """Not `Popen.wait`, which does not tell the peak memory of one child."""
        deadline = time.monotonic() + GRACE
        while True:
            process, status, usage = os.wait4(self.pid, os.WNOHANG)
            if process:
                self._process.returncode = os.waitstatus_to_exitcode(status)
                self._peak_kib = usage.ru_maxrss
                return
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.001)


def ignore_interrupts() -> None:
    """Ctrl-C comes too late: the process is about to end, and half an end would lose its log or leave workers behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """What is started meanwhile is born deaf to Ctrl-C: until a worker can say that it ignores it, Python would end it with a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with contextlib.suppress(OSError):  # what the dead process did not read is lost anyway
            pipe.close()


def _plain(value: object) -> Any:  # noqa: ANN401 - what JSON can hold
    """What JSON does not know of itself: paths and dataclasses."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return os.fspath(value)  # type: ignore[call-overload]
