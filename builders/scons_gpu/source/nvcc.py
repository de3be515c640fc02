"""CUDA C++ becomes PTX through nvcc, all of a source's kernels in one piece: only assembling is divided then."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import SourceError, ToolMissingError, ToolSilentError
from scons_gpu.source import failed, nvidia
from scons_gpu.source.clang import Compiled
from scons_gpu.source.depfile import read_depfile
from scons_gpu.source.stamps import moved, stamps
from scons_gpu.store.files import write_atomic
from scons_gpu.toolchain.process import killed, private_folder, run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scons_gpu.errors import GpuError
    from scons_gpu.source.options import ClangOptions
    from scons_gpu.source.stamps import Stamp
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.process import Finished
    from scons_gpu.toolchain.tools import Tool

__all__ = ["command", "compile_cuda", "environ", "failure"]

_TRIES = 3
"""How often a source is compiled whose files change meanwhile."""
_HIDDEN_INPUTS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CUDA_PATH", "CUDA_HOME")
_NO_HOST = ("Failed to preprocess host compiler properties", "Cannot find compiler", "gcc: not found", "gcc: No such file")


def command(nvcc: Tool, source: str, *, target: Target, options: ClangOptions, output: str, depfile: str, top: str) -> list[str]:  # noqa: PLR0913 - one keyword for each thing that decides
    """The command line, to be run in `top`."""
    return [
        nvcc.path,
        *("-x", "cu", "-ptx", f"-arch={nvidia.architecture(target)}"),
        *nvidia.code_flags(options),
        *(f"-I{_from_top(folder, top)}" for folder in options.cpppath),
        *nvidia.meant(options.nvcc_flags, "nvcc"),
        *("-MD", "-MT", "x", "-MF", depfile, "-o", output, _from_top(source, top)),
    ]


def compile_cuda(  # noqa: PLR0913 - one keyword for each thing that decides
    nvcc: Tool, source: str, *, target: Target, options: ClangOptions, output: Path, top: str, tolerant: bool = False
) -> Compiled:
    """Compiles one source for one architecture and puts its PTX at `output`, whole or not at all.

    `tolerant`: a source that nvcc refuses becomes the text that says so. Raises SourceError with nvcc's own words, ToolMissingError
    without a host compiler, ToolKilledError.
    """
    if not (Path(top) / source).is_file():
        msg = "there is no such file"
        raise SourceError(msg, source=source)
    known: Mapping[str, Stamp] = {}
    moving: list[str] = []
    for _ in range(_TRIES):
        begun = time.time_ns()
        compiled = _once(nvcc, source, target=target, options=options, output=output, top=top, tolerant=tolerant)
        before, known = known, stamps((_from_top(source, top), *compiled.dependencies), top=top)
        moving = moved(known, before, begun=begun)
        if not moving:
            return compiled
    output.unlink(missing_ok=True)
    msg = f"{moving[0]} changes while it is compiled"
    raise SourceError(msg, source=source, arch=target.name, hint="build again when it is left alone")


def _once(  # noqa: PLR0913 - one keyword for each thing that decides
    nvcc: Tool, source: str, *, target: Target, options: ClangOptions, output: Path, top: str, tolerant: bool
) -> Compiled:
    with private_folder() as folder:
        private, depfile = folder / "out.ptx", folder / "out.d"
        argv = command(nvcc, source, target=target, options=options, output=str(private), depfile=str(depfile), top=top)
        done = run(argv, cwd=top, environ=environ(nvcc))
        if done.status != 0:
            error = failure(done, source=source, target=target)
            if not tolerant or not isinstance(error, SourceError):
                raise error
            run([*argv, "-M", "-MF", str(depfile)], cwd=top, environ=environ(nvcc))
            write_atomic(output, failed.to_ir(error))
            return Compiled(_read(depfile, source, top=top), output="", cpu=done.cpu, peak_kib=done.peak_kib, failed=True)
        if not private.is_file() or not private.stat().st_size:
            msg = "nvcc said that it succeeded and made nothing"
            raise ToolSilentError(msg, source=source, arch=target.name, output=done.output)
        nvidia.write_ptx(private.read_bytes(), output, top=top, tool=nvcc.path)
        said = "\n".join(text for text in (nvidia.left_out(options), done.stderr.strip()) if text)
        return Compiled(_read(depfile, source, top=top), output=said, cpu=done.cpu, peak_kib=done.peak_kib)


def failure(done: Finished, *, source: str, target: Target | None) -> GpuError:
    """What nvcc's words mean; `target` is None where it compiles for several."""
    if done.status < 0:
        return killed("nvcc", -done.status, peak_kib=done.peak_kib, arch=target.name if target else "", output=done.output).at(
            source=source
        )
    if any(words in done.output for words in _NO_HOST):
        msg = "nvcc needs a host compiler, and found none"
        return ToolMissingError(msg, source=source, output=done.output, hint="install g++, or name one: GPU_NVCCFLAGS='-ccbin PATH'")
    return nvidia.refusal("nvcc", done.output, source=source, target=target)


def _read(depfile: Path, source: str, *, top: str) -> tuple[str, ...]:
    if not depfile.is_file():
        return ()
    text = depfile.read_text(errors="surrogateescape")
    return tuple(path for path in read_depfile(text, top=top) if path != _from_top(source, top))


def _from_top(path: str, top: str) -> str:
    base = Path(top).absolute()
    whole = base / path
    return str(whole.relative_to(base)) if whole.is_relative_to(base) else path


def environ(nvcc: Tool) -> dict[str, str]:
    """The environment for nvcc, which starts its other programs by name."""
    kept = {name: value for name, value in os.environ.items() if name not in _HIDDEN_INPUTS}
    path = os.pathsep.join([str(Path(nvcc.path).parent), kept.get("PATH", os.defpath)])
    return {**kept, "PATH": path, "LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
