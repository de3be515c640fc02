"""One nvJitLink library in this process: one call of it from first option to image, and what it says meanwhile.

It is reached through cuda.bindings, with three things made good that were met in 13.4 with nvJitLink 13.5:

- cuda.bindings looks for a library by itself. The one that was found is loaded first; the bindings take what is loaded.
- The library keeps the pointer to an input's name until the link, and the bindings free the name at once: messages then show another
  input's name, or garbage. So inputs are added through ctypes, which lets the names live.
- Two handles at once, of two threads, hang for good. One lock is held from a handle's first call to its last.

A library that failed is not what it was: after PTX of a version that it does not know, it links what has undefined references without a
word, until the process ends. So it is not called again here once it failed; each later call has a process of its own, which costs some
0.2 s, and only builds that fail pay it.

And the library says some errors on the process' standard error alone, and then that it succeeded: two definitions of one name are such
("error   : Multiple definition of ..."). So standard error is listened to while it works.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import re
import sys
import tempfile
import threading
import time
from dataclasses import asdict, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from scons_gpu.assemble.library import Answer
from scons_gpu.errors import ToolError, ToolMissingError
from scons_gpu.toolchain import python
from scons_gpu.toolchain.process import ask, killed, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["CLONES", "Library", "load", "probe", "serve", "tried"]

_ONE = threading.Lock()
_TOOL = "nvJitLink"
_STRAY = re.compile(r"(?:@E@)?((?:error|fatal)\s*: .*)", re.DOTALL)  # the mark is there once the library has failed
_CUBIN, _PTX = 1, 2  # nvJitLinkInputType
_MISSING_BINDINGS = "pip install 'scons-gpu[toolkit]' brings cuda-python"

# What the probe tries is a call with an external function, for an architecture that every release since 11.8 knows.
_TRIED = """\
.version 7.8
.target sm_90
.address_size 64
.extern .func (.param .b32 r) f(.param .b32 a);
.visible .func (.param .b32 r) g(.param .b32 a) { .reg .b32 %r<2>; ld.param.b32 %r1, [a]; st.param.b32 [r], %r1; ret; }
"""
CLONES = ("-Xptxas=-enable-func-clone-sc", "-Xptxas=true")
_START = """
import sys
from scons_gpu.assemble.nvjitlink_library import load, serve, tried
"""
_PROBE = (
    _START
    + """
from scons_gpu.errors import GpuError
try:
    print(*tried(load(sys.argv[1])))
except GpuError as error:
    sys.exit(error.output or error.what)
"""
)
_SERVE = _START + "serve(load(sys.argv[1]))"


def load(path: str) -> Library:
    """The library at `path`. Raises ToolMissingError where it or cuda.bindings does not load, ToolError where another is in its place."""
    with _ONE:  # one Library for all threads: it knows whether it failed
        return _loaded(path)


@lru_cache(maxsize=8)
def _loaded(path: str) -> Library:
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_GLOBAL | os.RTLD_NOW)
        from cuda.bindings import nvjitlink  # noqa: PLC0415 - an extra
        from cuda.bindings._internal import nvjitlink as bound  # noqa: PLC0415 - the one place that tells which library was taken

        nvjitlink.version()  # binds it
        taken = bound._inspect_function_pointer("__nvJitLinkCreate")  # noqa: SLF001 - see above
    except (OSError, ImportError, RuntimeError) as error:
        msg = f"nvJitLink ({path}) cannot be used"
        raise ToolMissingError(msg, output=str(error), hint=_MISSING_BINDINGS) from error
    if taken != ctypes.cast(library.nvJitLinkCreate, ctypes.c_void_p).value:
        msg = f"another nvJitLink was loaded into this process before {path}"
        raise ToolError(msg, hint="name the one that is wanted by GPU_CUDA_PATH, or take the other one out of LD_LIBRARY_PATH")
    return Library(path, library, nvjitlink)


class Library:
    """Made by `load`."""

    def __init__(self, path: str, library: ctypes.CDLL, bindings: Any) -> None:  # noqa: ANN401 - the bindings have no types that mypy reads
        self._path = path
        self._failed = False
        self._bindings = bindings
        self._add = library.nvJitLinkAddData
        self._add.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p]
        self._add.restype = ctypes.c_int

    def link(self, options: Sequence[str], inputs: Sequence[tuple[str, bytes]]) -> Answer:
        """One call. An input is its name, which ends in .ptx for PTX, and its bytes."""
        with _ONE:
            if not self._failed:
                answer = self._here(options, inputs)
                self._failed = answer.code != 0
                return answer
        return _apart(self._path, options, inputs)

    def _here(self, options: Sequence[str], inputs: Sequence[tuple[str, bytes]]) -> Answer:
        with _overheard() as heard:
            start, begun = time.monotonic(), time.thread_time()
            answer = self._called(options, inputs)
            seconds, cpu = time.monotonic() - start, time.thread_time() - begun
        stray = "".join(heard)
        if stray and not answer.code:
            answer = replace(answer, code=int(self._bindings.Result.ERROR_INTERNAL), result="complete: an error was printed", errors=stray)
        return replace(answer, seconds=seconds, cpu=cpu)

    def _called(self, options: Sequence[str], inputs: Sequence[tuple[str, bytes]]) -> Answer:
        try:
            handle = self._bindings.create(len(options), list(options))
        except self._bindings.nvJitLinkError as error:
            return Answer(error.status, self._name("create", error.status), errors=f"its options were: {' '.join(options)}")
        try:
            answer = self._linked(handle, inputs)
            return replace(answer, errors=self._log(handle, "error"), info=self._log(handle, "info"))
        finally:
            self._bindings.destroy(handle)

    def _linked(self, handle: int, inputs: Sequence[tuple[str, bytes]]) -> Answer:
        names = [name.encode() for name, _ in inputs]  # alive until the link is done
        for position, (name, (_, data)) in enumerate(zip(names, inputs, strict=True)):
            code = self._add(handle, _PTX if name.endswith(b".ptx") else _CUBIN, data, len(data), name)
            if code:
                return Answer(code, self._name("add", code), failed_at=position)
        try:
            self._bindings.complete(handle)
        except self._bindings.nvJitLinkError as error:
            return Answer(error.status, self._name("complete", error.status))
        image = bytearray(self._bindings.get_linked_cubin_size(handle))
        self._bindings.get_linked_cubin(handle, image)
        return Answer(0, "", image=bytes(image))

    def _log(self, handle: int, which: str) -> str:
        size = getattr(self._bindings, f"get_{which}_log_size")(handle)
        log = bytearray(size)
        if size:
            getattr(self._bindings, f"get_{which}_log")(handle, log)
        return bytes(log).decode(errors="replace").rstrip("\0\n ")

    def _name(self, step: str, code: int) -> str:
        return f"{step}: {self._bindings.Result(code).name}"


@contextlib.contextmanager
def _overheard() -> Iterator[list[str]]:
    """The lines of errors that the library prints meanwhile, without their mark. What anybody else prints is passed on afterwards."""
    heard: list[str] = []
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield heard
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            file.seek(0)
            for line in file.read().decode(errors="replace").splitlines(keepends=True):
                if stray := _STRAY.fullmatch(line):
                    heard.append(stray.group(1))
                else:
                    os.write(kept, line.encode())
            os.close(kept)


def _apart(path: str, options: Sequence[str], inputs: Sequence[tuple[str, bytes]]) -> Answer:
    """The same call in a process of its own. Raises ToolKilledError for one that the library took along."""
    asked = {"options": list(options), "inputs": [(name, base64.b64encode(data).decode()) for name, data in inputs]}
    ended = run(python.command(_SERVE, path), text=json.dumps(asked))
    if ended.status < 0:
        raise killed(_TOOL, -ended.status, peak_kib=ended.peak_kib, output=ended.stderr)
    if ended.status:
        msg = "the process in which nvJitLink was to run failed"
        raise ToolError(msg, output=ended.stderr)
    fields = json.loads(ended.stdout)
    return Answer(**{**fields, "image": base64.b64decode(fields["image"])})


def serve(library: Library) -> None:
    """What `_apart` starts: one call, from standard input to standard output."""
    asked = json.load(sys.stdin)
    answer = library.link(asked["options"], [(name, base64.b64decode(data)) for name, data in asked["inputs"]])
    json.dump({**asdict(answer), "image": base64.b64encode(answer.image).decode()}, sys.stdout)


def tried(library: Library) -> tuple[str, ...]:
    """Of "link", "relocatable" and "clones", what the library does when it is tried. Run in a process of its own: a library may crash."""
    inputs = [("part-000000.ptx", _TRIED.encode())]
    options = {"link": [], "relocatable": ["-r"], "clones": CLONES}
    return tuple(name for name, given in options.items() if library.link(["-arch=sm_90", *given], inputs).code == 0)


def probe(path: str) -> dict[str, str]:
    """What `tried` says of the library at `path`, each as "yes" or "no"; `words` is why, where it does not even run.

    Raises ToolStoppedError where somebody else ended it: that says nothing about the library, and is not to be remembered.
    """
    ended = ask(python.command(_PROBE, path), tool=_TOOL)
    found = ended.stdout.split() if ended.status == 0 else []
    words = "" if ended.status == 0 else (ended.stderr.strip().splitlines() or [f"it ended with status {ended.status}"])[-1]
    return {**{name: "yes" if name in found else "no" for name in ("link", "relocatable", "clones")}, "words": words}
