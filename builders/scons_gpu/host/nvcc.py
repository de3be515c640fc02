"""A whole `.cu` becomes an object through nvcc: both halves, all architectures, in one piece. For users who keep nvcc for their programs.

nvcc runs its host compiler itself and hands it what stands behind -Xcompiler, through a shell. So each of the project's flags is quoted
for that, and a comma gets the backslash without which nvcc would make two of it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import LinkError, SourceError, ToolSilentError
from scons_gpu.host.flags import position_independent
from scons_gpu.source import nvcc as front
from scons_gpu.source.clang import Compiled, from_top, settled
from scons_gpu.source.depfile import read_depfile
from scons_gpu.store.files import write_atomic
from scons_gpu.toolchain.process import private_folder, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.process import Finished
    from scons_gpu.toolchain.tools import Tool

__all__ = ["NvccOptions", "command", "compile_object", "gencode", "link_command", "link_objects"]

_STANDARD = re.compile(r"-std=(?:gnu|c)\+\+(\d+)")


@dataclass(frozen=True)
class NvccOptions:
    """What the user sets for a `.cu` of a program that nvcc compiles."""

    archs: tuple[Target, ...]
    cpppath: tuple[str, ...] = ()  # include folders, relative to the top
    defines: tuple[str, ...] = ()  # "A" or "A=1"
    code: tuple[str, ...] = ()  # what shapes device code, in nvcc's spelling
    nvcc_flags: tuple[str, ...] = ()  # what of GPU_NVCCFLAGS nvcc is given as it is
    flags: tuple[str, ...] = ()  # CXXFLAGS, CCFLAGS and CPPFLAGS, for the host compiler
    host_flags: tuple[str, ...] = ()  # GPU_HOSTFLAGS, after those
    compiler: str = ""  # the host compiler; empty for the one that nvcc finds
    relocatable: bool = False  # device code that is linked later
    shared: bool = False  # for a shared library


def command(nvcc: Tool, source: str, *, options: NvccOptions, output: str, depfile: str, top: str) -> list[str]:  # noqa: PLR0913 - one keyword for each thing that decides
    """The command line, to be run in `top`."""
    return [
        nvcc.path,
        *("-x", "cu", "-dc" if options.relocatable else "-c"),
        *gencode(options.archs),
        *options.code,
        *(f"-D{define}" for define in map(_escape, options.defines)),
        *(f"-I{from_top(folder, top)}" for folder in options.cpppath),
        *_host(options),
        *options.nvcc_flags,
        *("-MD", "-MT", "x", "-MF", depfile, "-o", output, from_top(source, top)),
    ]


def link_command(nvcc: Tool, objects: Sequence[str], *, options: NvccOptions, output: str) -> list[str]:
    """The command line that links the device code of `objects`, static libraries among them, to one more object of the program."""
    return [nvcc.path, "-dlink", *gencode(options.archs), *options.code, *_host(options), "-o", output, *objects]


def link_objects(nvcc: Tool, objects: Sequence[str], *, options: NvccOptions, top: str) -> tuple[bytes, str, Finished]:
    """The object of a device link, what nvcc said, and how it ended. Raises LinkError with nvcc's own words, ToolSilentError.

    nvcc goes by the suffix and knows nothing of `.os`, so inputs get names of their own.
    """
    names = {f"input-{place:06d}.{'a' if path.endswith('.a') else 'o'}": path for place, path in enumerate(objects)}
    with private_folder() as folder:
        for name, path in names.items():
            (folder / name).symlink_to(Path(top).absolute() / path)
        command = link_command(nvcc, [*names], options=options, output="linked.o")
        done = run(command, cwd=folder, environ=front.environ(nvcc), together=True)
        data = (folder / "linked.o").read_bytes() if (folder / "linked.o").is_file() else b""
    said = re.sub(r"input-\d{6}\.[ao]", lambda found: names.get(found[0], found[0]), done.output)
    if done.status:
        msg = "nvcc cannot link its device code"
        raise LinkError(msg, output=said)
    if not data:
        msg = "nvcc said that it succeeded and made nothing"
        raise ToolSilentError(msg, output=said)
    return data, said, done


def gencode(archs: Sequence[Target]) -> list[str]:
    """One -gencode for each dialect of PTX, with all that is made of it, so that each is compiled once."""
    made: dict[str, list[str]] = {}
    for target in archs:
        made.setdefault(f"{target.number}{target.suffix}", []).append(target.name)
    return [word for number, codes in made.items() for word in ("-gencode", f"arch=compute_{number},code=[{','.join(codes)}]")]


def _host(options: NvccOptions) -> list[str]:
    """The host compiler and its flags. The dialect is nvcc's business too, which has no name for GNU's."""
    words = [*options.flags, *options.host_flags]
    spoken = [match[1] for word in words if (match := _STANDARD.fullmatch(word))]
    known = any(flag.lstrip("-").startswith("std=") for flag in (*options.code, *options.nvcc_flags))
    pic = ["-fPIC"] if options.shared and not position_independent(words) else []
    others = [word for word in (*words, *pic) if not _STANDARD.fullmatch(word)]
    return [
        *(
            ["-ccbin", options.compiler]
            if options.compiler and not any(f.startswith("--compiler-bindir") for f in options.nvcc_flags)
            else []
        ),
        *([f"-std=c++{spoken[-1]}"] if spoken and not known else []),
        *(f"-Xcompiler={_escape(shlex.quote(word))}" for word in others),
    ]


def _escape(value: str) -> str:
    """The values of an option are parted at commas that no backslash stands before."""
    return value.replace("\\", "\\\\").replace(",", "\\,")


def compile_object(nvcc: Tool, source: str, *, options: NvccOptions, output: Path, top: str) -> Compiled:
    """Compiles one source and puts its object at `output`, whole or not at all.

    Raises SourceError with nvcc's own words, ToolMissingError without a host compiler, ToolKilledError.
    """
    if not (Path(top) / source).is_file():
        msg = "there is no such file"
        raise SourceError(msg, source=source)
    return settled(_Compilation(nvcc, source, options=options, output=output, top=top).once, source, output=output, top=top)


@dataclass(frozen=True)
class _Compilation:
    """What `compile_object` was asked for."""

    nvcc: Tool
    source: str
    _: KW_ONLY
    options: NvccOptions
    output: Path
    top: str

    def once(self) -> Compiled:
        """One run of nvcc, whatever changes meanwhile."""
        with private_folder() as folder:
            private, depfile = folder / "out.o", folder / "out.d"
            argv = command(self.nvcc, self.source, options=self.options, output=str(private), depfile=str(depfile), top=self.top)
            done = run(argv, cwd=self.top, environ=front.environ(self.nvcc))
            if done.status != 0:
                raise front.failure(done, source=self.source, target=None)
            if not private.is_file() or not private.stat().st_size:
                msg = "nvcc said that it succeeded and made nothing"
                raise ToolSilentError(msg, source=self.source, output=done.output)
            write_atomic(self.output, private.read_bytes())
            return Compiled(self._read(depfile), output=done.stderr.strip(), cpu=done.cpu, peak_kib=done.peak_kib)

    def _read(self, depfile: Path) -> tuple[str, ...]:
        """The files that nvcc read, besides the source."""
        own = from_top(self.source, self.top)
        return tuple(path for path in read_depfile(depfile.read_text(errors="surrogateescape"), top=self.top) if path != own)
