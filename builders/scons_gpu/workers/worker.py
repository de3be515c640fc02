"""The process in which LLVM runs, and NVIDIA's compilers where they are libraries: one task after the other for the `Pool` that started it.

A task is a line of JSON on standard input, its answer a line of JSON on what was standard output at the start. Standard output and
error then both lead to the file that the parent gave as standard error: what LLVM prints there belongs to the task at hand, and the
parent can still read it when LLVM took the process along. The worker ends with its pipe, also in the middle of a task.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
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
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import DamagedError, GpuError, SourceError, ToolError, ToolMissingError
from scons_gpu.lower.options import LowerOptions
from scons_gpu.store.files import write_atomic
from scons_gpu.store.record import make
from scons_gpu.store.store import Store
from scons_gpu.toolchain.arch import Target, parse
from scons_gpu.workers.deaths import lacking
from scons_gpu.workers.output import condense

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scons_gpu.assemble.provider import Assembled, AssembleOptions, Linked, Provider
    from scons_gpu.lower.joining import Group
    from scons_gpu.split.parse import Known

__all__ = ["main"]


def source(*, path: str, arch: str, output: str, name: str = "", assembler: tuple[str, int] | None = None) -> dict[str, Any]:
    """Reads IR (text or bitcode) and writes LLVM's printed text of it; PTX is written as it is, once it was read.

    `assembler`: see `source.ptx.Assembler`.
    """
    if path.endswith(".ptx"):
        from scons_gpu.source.ptx import Assembler, read_ptx  # noqa: PLC0415 - each operation loads its own room

        known = Assembler(*assembler) if assembler else None
        write_atomic(Path(output), read_ptx(Path(path), name=name or path, target=_target(arch), assembler=known))
        return {}
    from scons_gpu.source.ir import read_ir  # noqa: PLC0415 - the same

    text, said = read_ir(Path(path), target=_target(arch))
    write_atomic(Path(output), text)
    return {"said": said}


def nvrtc(  # noqa: PLR0913 - one keyword per field of the message
    *, library: str, source: str, arch: str, options: Mapping[str, Any], output: str, top: str, tolerant: bool = False
) -> dict[str, Any]:
    """Compiles CUDA C++ with NVRTC, and says what it read."""
    from scons_gpu.source.nvrtc import compile_cuda  # noqa: PLC0415 - each operation loads its own room
    from scons_gpu.source.options import ClangOptions  # noqa: PLC0415 - the same

    told: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    made = compile_cuda(
        library, source, target=_target(arch), options=ClangOptions(**told), output=Path(output), top=top, tolerant=tolerant
    )
    return {"dependencies": made.dependencies, "missing": made.missing, "failed": made.failed, "said": made.output}


def split(  # noqa: PLR0913 - one keyword per field of the message
    *,
    path: str,
    source: str,
    arch: str,
    form: str,
    roots: Sequence[str],
    output: str,
    known: Known = "",
    lines: bool = False,
    exports: bool = False,
) -> dict[str, Any]:
    """Splits IR: slices go to the store, the index to `output`, with what LLVM said. `known`, `exports`: see `split`.

    PTX is told by the suffix of `path`; `lines` keeps its line information.
    """
    from scons_gpu.source.failed import from_ir  # noqa: PLC0415 - each operation loads its own room
    from scons_gpu.split import split as split_ir  # noqa: PLC0415 - the same
    from scons_gpu.split.index import Index, to_text  # noqa: PLC0415 - the same

    store = _store(tuple(roots))
    text = _text(path) if not path.endswith(".ptx") else _ptx(path, source)
    if (failure := from_ir(text)) is not None:
        write_atomic(Path(output), to_text(Index(source=source, arch=_target(arch).name, form=form, failure=failure)))
        return {"units": 0}

    def put(text: str) -> str:
        return store.put_text("slice", text)

    if path.endswith(".ptx"):
        from scons_gpu.split.ptx import split_ptx  # noqa: PLC0415 - the same

        index = split_ptx(text, source=source, target=_target(arch), form=form, put=put, lines=lines)
    else:
        index = split_ir(text, source=source, target=_target(arch), form=form, put=put, known=known, exports=exports)
    said = condense(_captured())
    if said:
        index = dataclasses.replace(index, notes=(*index.notes, said))
    write_atomic(Path(output), to_text(index))
    return {"units": len(index.units)}


def lower(  # noqa: PLR0913 - one keyword per field of the message
    *,
    arch: str,
    options: Mapping[str, Any],
    nvvm: str = "",
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
    as_ir: bool = False,
) -> dict[str, Any]:
    """Lowers one slice; one that is PTX already is only renamed.

    It comes by name (`slice`, from the store at `roots`) or is a `file`; what `joins` it comes by name.
    `nvvm` is libNVVM's path, for options that lower by it. PTX and record go to the store's `path`, under `key`; or the PTX alone to
    `output`; with neither it is in the answer as `ptx`. `as_ir`: the optimised IR takes the PTX's place.
    After `seconds` of CPU time the system ends this process.
    """
    wanted = LowerOptions(**options)
    _limit(seconds)
    store = _store(tuple(roots)) if roots else None
    ptx = _lowered(
        _text(file) if file or store is None else _slice(store, slice),
        wanted,
        arch=arch,
        nvvm=nvvm,
        libdevice=libdevice,
        renames=dict(renames),
        joins=_groups(joins, store),
        searched=searched,
        cache=str(store.root / "tools") if store else "",
        **({"as_ir": True} if as_ir else {}),
    )
    answer: dict[str, Any] = {"bytes": len(ptx), "warnings": store.drain_warnings() if store else []}
    if path and store is not None:
        _save(store, Path(path), ptx.encode(), key)
    elif output:
        write_atomic(Path(output), ptx)
    else:
        answer["ptx"] = ptx
    return answer


def _groups(joins: Sequence[Mapping[str, Any]], store: Store | None) -> list[Group]:
    """What other sources define of what a slice needs, with its text."""
    from scons_gpu.lower.joining import Group  # noqa: PLC0415 - each operation loads its own room

    return [
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


def _lowered(text: str, options: LowerOptions, *, renames: dict[str, str], **rest: Any) -> str:  # noqa: ANN401 - what lowering takes
    """The slice's PTX."""
    from scons_gpu.lower import llvm  # noqa: PLC0415 - each operation loads its own room
    from scons_gpu.split import ptx_slice  # noqa: PLC0415 - the same

    if ptx_slice.is_ptx(text):
        return ptx_slice.renamed(text, renames)
    if not options.keep_debug:
        _expected.add(llvm.STRIPPED)
    return _to_ptx(text, options, renames=renames, **rest)


def _to_ptx(text: str, options: LowerOptions, *, arch: str, nvvm: str, **rest: Any) -> str:  # noqa: ANN401 - what lowering takes
    from scons_gpu.lower import llvm  # noqa: PLC0415 - each operation loads its own room

    lowering: Callable[..., llvm.Ptx] = llvm.lower
    if options.by == "nvvm":
        from scons_gpu.lower.nvvm import lower as by_nvvm  # noqa: PLC0415 - loads 70 MB

        lowering = partial(by_nvvm, library=nvvm)
    try:
        made = lowering(text, target=_target(arch), options=options, **rest)
    except ToolError as error:
        raise lacking(text, arch) or error from None
    if made.output:
        print(made.output)  # noqa: T201 - where LLVM's own words go
    return made.text


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


def _ptx(path: str, source: str) -> str:
    from scons_gpu.source.ptx import read_text  # noqa: PLC0415 - each operation loads its own room

    return read_text(Path(path), name=source)


def _slice(store: Store, name: str) -> str:
    try:
        return store.get_text("slice", name)
    except KeyError:
        msg = f"the slice {name} is not in the store {store.root}"
        raise DamagedError(msg, hint="build again: what the store lost is made anew") from None


def _save(store: Store, path: Path, data: bytes, key: Sequence[Sequence[str]]) -> None:
    fields = [(name, value) for name, value in key]
    store.save(path, data, make(data, key=fields, output=condense(_captured()), seconds=_spent()))


def assemble(*, provider: Mapping[str, Any], ptx: str, arch: str, options: Mapping[str, Any], relocatable: bool) -> dict[str, Any]:
    """PTX becomes an object, in the answer, through a provider that is a library."""
    _keep_memory()
    made = _provider(provider)
    wanted = _assemble_options(options)
    _limit(wanted.seconds)
    work = made.compile_relocatable if relocatable else made.compile
    return _told(work(ptx, target=_target(arch), options=wanted))


def link(*, provider: Mapping[str, Any], inputs: Sequence[Mapping[str, Any]], arch: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Objects and deferred PTX become an image, in the answer, through a provider that is a library."""
    from scons_gpu.assemble.provider import LinkInput  # noqa: PLC0415 - each operation loads its own room

    parts = [LinkInput(**{**part, "path": Path(part["path"])}) for part in inputs]
    done = _provider(provider).link(parts, target=_target(arch), options=_assemble_options(options))
    return _told(done)


@lru_cache(maxsize=1)
def _keep_memory() -> None:
    """Has glibc keep what is freed: the compiler gives all of its memory back after each unit, and 3 ms of 17 went into asking again."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD, malloc.h
        mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD


def _provider(told: Mapping[str, Any]) -> Provider:
    from scons_gpu.assemble.making import Making, make  # noqa: PLC0415 - each operation loads its own room

    return make(Making.from_json(told))


def _told(done: Assembled | Linked) -> dict[str, Any]:
    return {
        "data": base64.b64encode(done.data).decode(),
        "told": done.output,
        "resources": [vars(each) for each in done.resources],
        "seconds": done.seconds,
    }


def _assemble_options(told: Mapping[str, Any]) -> AssembleOptions:
    from scons_gpu.assemble.provider import AssembleOptions  # noqa: PLC0415 - each operation loads its own room

    return AssembleOptions(**{**told, "flags": tuple(told["flags"])})


_OPERATIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "source": source,
    "nvrtc": nvrtc,
    "split": split,
    "lower": lower,
    "assemble": assemble,
    "link": link,
}
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
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # it was held back until here
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
