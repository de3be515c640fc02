"""The provider of ptxas as a library: it makes objects in this process, without the start of a program for each.

It runs in a worker, because a compiler may take its process along. It cannot link. Its objects are ptxas' but for a note that names the
tool (13.5: FACTS 25), so every rule of ptxas holds for its options, its report and its words.
"""

from __future__ import annotations

import ctypes
import re
import time
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.assemble.assembler import CLONING, Assembler, made
from scons_gpu.assemble.provider import Assembled, AssembleOptions, Capabilities, Linked, LinkInput
from scons_gpu.errors import ToolMissingError
from scons_gpu.toolchain.facts import Facts
from scons_gpu.toolchain.process import Finished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.model import Tool

__all__ = ["NvPtxCompilerProvider"]

# nvPTXCompileResult, nvPTXCompiler.h of 13.5. A PTX version that is too new says so in the log as well, in ptxas' words.
_SUCCESS = 0
_INPUT = re.compile(r"ptxas application ptx input, line (\d+)")


class NvPtxCompilerProvider(Assembler):
    """nvPTXCompiler. Making one loads nothing: the library is loaded by the first call. `facts` is where probed facts are kept."""

    name = "nvptxcompiler"
    link_identity = ""

    def __init__(self, library: Tool, *, facts: Path) -> None:
        self._library = library
        self._facts = Facts(facts)
        self.identity = library.identity

    @cached_property
    def capabilities(self) -> Capabilities:
        """It makes both kinds of objects and cannot link; cloning is known to it where its option stands in the library."""
        return Capabilities(compile=True, relocatable=True, link=False, clones_functions=self._clones())

    def link(self, inputs: Sequence[LinkInput], *, target: Target, options: AssembleOptions) -> Linked:  # noqa: ARG002 - the interface's
        """It cannot."""
        msg = "nvPTXCompiler cannot link"
        raise ToolMissingError(msg, arch=target.name, hint="name what links, as in GPU_PROVIDER=nvptxcompiler+nvjitlink")

    def _assemble(self, ptx: str, *, target: Target, options: AssembleOptions, relocatable: bool) -> Assembled:
        spelled = self.spelling(target=target, options=options, relocatable=relocatable)
        begun, cpu = time.monotonic(), time.thread_time()
        status, data, said = _load(self._library.path).compile(ptx.encode(), spelled)
        ended = Finished(
            status=status,
            stdout=_INPUT.sub(r"PTX line \1", said),
            stderr="",
            seconds=time.monotonic() - begun,
            cpu=time.thread_time() - cpu,
        )
        return made(ended, data, tool="nvPTXCompiler", ptx=ptx, target=target, options=options, relocatable=relocatable)

    def _clones(self) -> bool:
        path = self._library.path
        return self._facts.learn("library options", path, files=lambda: [path], find_out=_find_cloning)["clones"] == "yes"


def _find_cloning(files: Sequence[str]) -> dict[str, str]:
    return {"clones": "yes" if CLONING.strip("-").encode() in Path(files[0]).read_bytes() else "no"}


class _Library:
    """The functions of nvPTXCompiler.h that are called. ctypes lets other threads run meanwhile, and the library is made for that."""

    def __init__(self, path: str) -> None:
        try:
            self._functions = ctypes.CDLL(path)
            self._functions.nvPTXCompilerCreate  # noqa: B018 - a library of something else has none
        except (OSError, AttributeError) as error:
            msg = f"{path} does not load: {error}"
            raise ToolMissingError(msg, hint="remove the file: the next build makes it anew") from None

    def compile(self, ptx: bytes, options: Sequence[str]) -> tuple[int, bytes, str]:
        """Status (0: success), the object, and all that was said."""
        handle = ctypes.c_void_p()
        status = self._call("Create", ctypes.byref(handle), ctypes.c_size_t(len(ptx)), ptx)
        if status != _SUCCESS:
            return status, b"", ""
        try:
            words = [option.encode() for option in options]
            status = self._call("Compile", handle, ctypes.c_int(len(words)), (ctypes.c_char_p * len(words))(*words))
            logs = [self._read(f"Get{log}Log", f"Get{log}LogSize", handle) for log in ("Info", "Error")]
            said = "".join(log.rstrip(b"\0").decode(errors="replace") for log in logs)
            data = self._read("GetCompiledProgram", "GetCompiledProgramSize", handle) if status == _SUCCESS else b""
        finally:
            self._call("Destroy", ctypes.byref(handle))
        return status, data, said

    def _read(self, read: str, measure: str, handle: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        if self._call(measure, handle, ctypes.byref(size)) != _SUCCESS or not size.value:
            return b""
        buffer = ctypes.create_string_buffer(size.value + 1)
        return buffer.raw[: size.value] if self._call(read, handle, buffer) == _SUCCESS else b""

    def _call(self, function: str, *arguments: Any) -> int:  # noqa: ANN401 - what C takes
        return int(getattr(self._functions, f"nvPTXCompiler{function}")(*arguments))


@lru_cache(maxsize=4)
def _load(path: str) -> _Library:
    return _Library(path)
