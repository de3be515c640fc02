"""The process in which LLVM runs: one task after the other for the `Pool` that started it.

A task is a line of JSON on standard input, its answer a line of JSON on what was standard output at the start. Standard output and
error then both lead to the file that the parent gave as standard error: what LLVM prints there belongs to the task at hand, and the
parent can still read it when LLVM took the process along. The worker ends with its pipe, also in the middle of a task.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import resource
import select
import signal
import sys
import threading
import time
import traceback
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import DamagedError, GpuError, SourceError, ToolMissingError
from scons_gpu.lower.options import LowerOptions
from scons_gpu.lower.output import condense
from scons_gpu.store.files import write_atomic
from scons_gpu.store.record import make
from scons_gpu.store.store import Store
from scons_gpu.toolchain.arch import Target, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scons_gpu.split.parse import Known

__all__ = ["main"]


def source(*, path: str, arch: str, output: str) -> dict[str, Any]:
    """Reads IR (text or bitcode) and writes LLVM's printed text of it."""
    from scons_gpu.source.ir import read_ir  # noqa: PLC0415 - each operation loads its own room

    text, said = read_ir(Path(path), target=_target(arch))
    write_atomic(Path(output), text)
    return {"said": said}


def split(  # noqa: PLR0913 - one keyword per field of the message
    *, path: str, source: str, arch: str, form: str, roots: Sequence[str], output: str, known: Known = "", exports: bool = False
) -> dict[str, Any]:
    """Splits IR: slices go to the store, the index to `output`, with what LLVM said. `known`, `exports`: see `split`."""
    from scons_gpu.source.failed import from_ir  # noqa: PLC0415 - each operation loads its own room
    from scons_gpu.split import split as split_ir  # noqa: PLC0415 - the same
    from scons_gpu.split.index import Index, to_text  # noqa: PLC0415 - the same

    store = _store(tuple(roots))
    text = _text(path)
    if (failure := from_ir(text)) is not None:
        write_atomic(Path(output), to_text(Index(source=source, arch=_target(arch).name, form=form, failure=failure)))
        return {"units": 0}
    index = split_ir(
        text,
        source=source,
        target=_target(arch),
        form=form,
        put=lambda slice_: store.put_text("slice", slice_),
        known=known,
        exports=exports,
    )
    said = condense(_captured())
    if said:
        index = dataclasses.replace(index, notes=(*index.notes, said))
    write_atomic(Path(output), to_text(index))
    return {"units": len(index.units)}


def lower(  # noqa: PLR0913 - one keyword per field of the message
    *,
    arch: str,
    options: Mapping[str, Any],
    libdevice: str = "",
    searched: str = "",
    renames: Sequence[tuple[str, str]] = (),
    joins: Sequence[Mapping[str, Any]] = (),
    slice: str = "",  # noqa: A002 - the contract's word
    roots: Sequence[str] = (),
    path: str = "",
    key: Sequence[Sequence[str]] = (),
    file: str = "",
    output: str = "",
    seconds: float | None = None,
) -> dict[str, Any]:
    """Lowers one slice. It comes by name (`slice`, from the store at `roots`) or is a `file`; what `joins` it comes by name.

    PTX and record go to the store's `path`, under `key`; or the PTX alone to `output`; with neither it is in the answer as `ptx`.
    After `seconds` of CPU time the system ends this process.
    """
    from scons_gpu.lower import llvm  # noqa: PLC0415 - each operation loads its own room
    from scons_gpu.lower.joining import Group  # noqa: PLC0415 - the same

    wanted = LowerOptions(**options)
    _limit(seconds)
    if not wanted.keep_debug:
        _expected.add(llvm.STRIPPED)
    store = _store(tuple(roots)) if roots else None
    text = _text(file) if file or store is None else _slice(store, slice)
    groups = [
        Group(
            texts=tuple(_slice(store, name) if store else _text(name) for name in each["slices"]),
            renames=dict(each["renames"]),
            own=each["own"],
            dropped=tuple(each["dropped"]),
            shows=tuple(each["shows"]),
            source=each["source"],
        )
        for each in joins
    ]
    ptx = llvm.lower(
        text,
        target=_target(arch),
        options=wanted,
        libdevice=libdevice,
        renames=dict(renames),
        joins=groups,
        searched=searched,
        cache=str(store.root / "tools") if store else "",
    ).text
    answer: dict[str, Any] = {"bytes": len(ptx), "warnings": store.drain_warnings() if store else []}
    if path and store is not None:
        _save(store, Path(path), ptx.encode(), key)
    elif output:
        write_atomic(Path(output), ptx)
    else:
        answer["ptx"] = ptx
    return answer


def _limit(seconds: float | None) -> None:
    """Until the next task."""
    most = resource.RLIM_INFINITY if seconds is None else math.ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path} cannot be read: {error}"
        raise SourceError(msg) from None


def _slice(store: Store, name: str) -> str:
    try:
        return store.get_text("slice", name)
    except KeyError:
        msg = f"the slice {name} is not in the store {store.root}"
        raise DamagedError(msg, hint="build again: what the store lost is made anew") from None


def _save(store: Store, path: Path, data: bytes, key: Sequence[Sequence[str]]) -> None:
    fields = [(name, value) for name, value in key]
    store.save(path, data, make(data, key=fields, output=condense(_captured()), seconds=_spent()))


_OPERATIONS: dict[str, Callable[..., dict[str, Any]]] = {"source": source, "split": split, "lower": lower}
_begun = 0.0
"""CPU seconds of this process when the task at hand began."""
_expected: set[str] = set()
"""Lines that LLVM is bound to print over the task at hand, and nobody wants to read."""


@lru_cache(maxsize=4)
def _store(roots: tuple[str, ...]) -> Store:
    return Store([Path(root) for root in roots])


def _target(arch: str) -> Target:
    return parse(arch)[0]


def _spent() -> float:
    """CPU seconds of the task at hand, so far."""
    return round(time.process_time() - _begun, 6)


def _captured() -> str:
    """What was printed since the task began."""
    sys.stdout.flush()
    sys.stderr.flush()
    size = os.fstat(2).st_size
    lines = os.pread(2, size, 0).decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if line not in _expected)


def _forget_output() -> None:
    with contextlib.suppress(OSError):  # a terminal, when a person starts a worker by hand
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)


def _reset_peak() -> None:
    """Lets the kernel count the peak memory from here (Linux; elsewhere the peak is the whole process' life's)."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:  # noqa: PTH123 - no file of a folder
        file.write("5")


def _memory() -> dict[str, int]:
    """Peak and present resident memory, KiB."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        values = dict(line.split(":", 1) for line in lines if line.startswith("Vm"))
        return {"peak_kib": int(values["VmHWM"].split()[0]), "rss_kib": int(values["VmRSS"].split()[0])}
    except (OSError, KeyError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"peak_kib": peak, "rss_kib": peak}


def _run(request: dict[str, Any]) -> dict[str, Any]:
    """Does one task and says how it went. What a task raises that is no GpuError is a bug: it is told with its traceback."""
    global _begun  # noqa: PLW0603 - one task at a time
    _forget_output()
    _reset_peak()
    _limit(None)
    _expected.clear()
    _begun = time.process_time()
    try:
        result = {"ok": True, **_OPERATIONS[request.pop("op")](**request)}
    except GpuError as error:
        result = {"ok": False, "error": error.to_json()}
    except ImportError as error:
        missing = ToolMissingError(f"the worker cannot load what it needs: {error}", hint=f"{sys.executable} -m pip install scons-gpu[all]")
        result = {"ok": False, "error": missing.to_json()}
    except Exception:  # noqa: BLE001 - the next task must find a living worker
        what = "a task failed inside the worker; this is a bug"
        result = {"ok": False, "error": {"kind": "error", "what": what, "output": traceback.format_exc()}}
    said = "\n".join(part for part in (result.pop("said", ""), _captured()) if part)
    return {**result, "output": condense(said), "cpu": _spent(), **_memory()}


def _end_with_pipe() -> None:
    """Blocks until nobody can write to standard input any more, then ends the process, whatever it is doing."""
    poll = select.poll()
    poll.register(0, 0)
    while not any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll()):
        pass
    os._exit(0)


def _warm_up() -> None:
    """Loads LLVM before there is a task, perhaps while the front end still runs. What fails here fails in the task too, and is told."""
    with contextlib.suppress(Exception):
        from scons_gpu.lower import llvm  # noqa: PLC0415 - a worker that cannot load it still has to say so

        llvm.initialise()


def main() -> None:
    """Serves until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what becomes of us
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # LLVM's abort is an answer, not a thing to debug
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    threading.Thread(target=_end_with_pipe, daemon=True).start()
    _warm_up()
    for line in sys.stdin.buffer:
        answers.write(json.dumps(_run(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
