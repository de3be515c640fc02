"""CUDA C++ becomes PTX through NVRTC, all of a source's kernels in one piece. It runs in the process, so only in workers and commands.

The library is loaded by its path and called through ctypes: what made the PTX is then certainly what the signature names.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import SourceError, ToolError, ToolMissingError
from scons_gpu.source import failed, nvidia
from scons_gpu.source.clang import Compiled
from scons_gpu.source.includes import includes
from scons_gpu.store.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scons_gpu.source.options import ClangOptions
    from scons_gpu.toolchain.arch import Target

__all__ = ["compile_cuda"]

_COMPILATION = 6
"""NVRTC_ERROR_COMPILATION: the source is at fault."""
_OPTION = 5
"""NVRTC_ERROR_INVALID_OPTION."""


def compile_cuda(  # noqa: PLR0913 - one keyword for each thing that decides
    library: str, source: str, *, target: Target, options: ClangOptions, output: Path, top: str, tolerant: bool = False
) -> Compiled:
    """Compiles one source for one architecture and puts its PTX at `output`. `library` is libnvrtc's path; `top` where paths begin.

    `tolerant`: a source that NVRTC refuses becomes the text that says so. Raises SourceError with NVRTC's own words, ToolMissingError
    where the library does not load.
    """
    search = [str(Path(source).parent), *options.cpppath]
    toolkit = _toolkit(library)
    read = includes(source, search=search, top=top, toolkit=toolkit)
    try:
        text = Path(top, source).read_bytes()
    except OSError as error:
        msg = f"cannot be read: {error.strerror or error}"
        raise SourceError(msg, source=source) from error
    flags = [
        f"--gpu-architecture={nvidia.architecture(target)}",
        *nvidia.code_flags(options),
        *(f"-I{folder or '.'}" for folder in (*search, *toolkit)),
        *nvidia.meant(nvidia.spelled(options.nvcc_flags), "nvrtc"),
    ]
    said = [nvidia.left_out(options)]
    said += [f"#include {name} in {source} cannot be followed: a change of what it reads is not seen" for name in read.unknown]
    with _inside(top):
        ptx, log, status = _compiled(library, text, name=source, flags=flags)
    if ptx is None:
        refused = nvidia.refusal("nvrtc", log, source=source, target=target)
        if status not in (_COMPILATION, _OPTION):
            raise ToolError(refused.what, source=source, arch=target.name, output=refused.output)
        if not tolerant:
            raise refused
        write_atomic(output, failed.to_ir(refused))
        return Compiled(tuple(read.files), output="", failed=True, missing=tuple(read.missing))
    nvidia.write_ptx(ptx, output, top=top, tool=library)
    return Compiled(tuple(read.files), output="\n".join(text for text in (*said, log.strip()) if text), missing=tuple(read.missing))


def _toolkit(library: str) -> list[str]:
    """Where CUDA's own headers are: beside the library's folder."""
    folder = Path(library).parent.parent / "include"
    return [str(path) for path in (folder, folder / "cccl") if path.is_dir()]


@contextlib.contextmanager
def _inside(top: str) -> Iterator[None]:
    """NVRTC looks for relative folders from the process' own. A worker does one task at a time."""
    before = Path.cwd()
    os.chdir(top)
    try:
        yield
    finally:
        os.chdir(before)


@cache
def _load(path: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        msg = f"NVRTC does not load: {error}"
        raise ToolMissingError(msg, hint="pip install 'scons-gpu[toolkit]' brings it") from None


def _compiled(path: str, text: bytes, *, name: str, flags: Sequence[str]) -> tuple[bytes | None, str, int]:
    """PTX, or nothing; the log; NVRTC's result."""
    library, program = _load(path), ctypes.c_void_p()
    status = library.nvrtcCreateProgram(ctypes.byref(program), text, os.fsencode(name), 0, None, None)
    if status:
        return None, f"nvrtcCreateProgram gives {status}", status
    try:
        array = (ctypes.c_char_p * len(flags))(*map(os.fsencode, flags))
        status = library.nvrtcCompileProgram(program, len(flags), array)
        log = _text(library, program, "ProgramLog").decode(errors="replace")
        return (None if status else _text(library, program, "PTX")), log, status
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    if getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)):
        return b""
    data = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, data)
    return data.value
