"""The host's half of CUDA C++ becomes an object through clang, with the fatbin of the device's half inside.

Clang writes what registers kernels and variables when the program starts, and the stubs that `<<<>>>` calls; both ask CUDA's runtime.
A C++ compiler's linker takes the object like any other.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import SourceError, ToolMissingError, ToolSilentError
from scons_gpu.host.flags import position_independent
from scons_gpu.source import relocatable
from scons_gpu.source.clang import LENIENT, SDK, Compiled, environ, from_top, prefix_maps, settled
from scons_gpu.source.depfile import read_depfile
from scons_gpu.source.diagnostics import classify, warnings_of
from scons_gpu.store.files import write_atomic
from scons_gpu.toolchain.process import private_folder, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Tool

__all__ = ["HostOptions", "command", "compile_host", "editor_command"]

_QUIET = (
    "-Wno-unknown-cuda-version",
    "-Wno-unused-command-line-argument",
    "-Wno-unknown-warning-option",
    "-Wno-ignored-optimization-argument",
    LENIENT,
)
"""The project's flags were chosen for its own C++ compiler: what clang only passes over is no news."""


@dataclass(frozen=True)
class HostOptions:
    """What the user sets for the host's half."""

    cpppath: tuple[str, ...] = ()  # include folders, relative to the top
    defines: tuple[str, ...] = ()  # "A" or "A=1"
    clang_flags: tuple[str, ...] = ()  # what both halves have, GPU_CLANGFLAGS among it
    flags: tuple[str, ...] = ()  # CXXFLAGS, CCFLAGS and CPPFLAGS
    host_flags: tuple[str, ...] = ()  # GPU_HOSTFLAGS, after all others, so that they win
    shared: bool = False  # for a shared library
    relocatable: str = ""  # as the device's half is told (`ClangOptions`)


def command(  # noqa: PLR0913 - one keyword for each thing that decides
    clang: Tool, source: str, *, options: HostOptions, headers: str, fatbin: str, output: str, depfile: str, top: str
) -> list[str]:
    """The command line, to be run in `top`. `fatbin` is empty for a source without device code."""
    words = (*options.clang_flags, *options.flags, *options.host_flags)
    return [
        *_begin(clang, headers),
        *("-fno-crash-diagnostics", "-fno-color-diagnostics"),
        *_registering(options),
        *("-fdebug-compilation-dir=.", *prefix_maps(clang, source, headers=headers, top=top)),
        *(("-Xclang", "-fcuda-include-gpubinary", "-Xclang", fatbin) if fatbin else ()),
        *_own(options, top),
        *(("-fPIC",) if options.shared and not position_independent(words) else ()),
        # What it registers is read from the object.
        *("-fno-lto", "-c", "-MD", "-MT", "x", "-MF", depfile, "-o", output, from_top(source, top)),
    ]


def editor_command(  # noqa: PLR0913 - one keyword for each thing that decides
    clang: Tool, source: str, *, options: HostOptions, headers: str, target: Target, output: str, top: str
) -> list[str]:
    """A command for editors, which read a file once: as the host does, where kernels and what they call are read too."""
    cpu = f"sm_{target.number}" if target.suffix == "f" else target.cpu
    apart = relocatable.flags(options.relocatable) if options.relocatable else ()
    return [*_begin(clang, headers), f"--offload-arch={cpu}", *apart, *_own(options, top), "-c", "-o", output, from_top(source, top)]


def _begin(clang: Tool, headers: str) -> list[str]:
    return [
        *(clang.path, "-x", "cuda", "--cuda-host-only", f"--cuda-path={headers}"),
        *("-nocudalib", "-Xclang", f"-target-sdk-version={SDK}", *_QUIET, "-stdlib=libstdc++", "--no-default-config"),
    ]


def _registering(options: HostOptions) -> list[str]:
    """An object registers its own kernels, or, with the new driver's layout, leaves entries to whoever links the device's code."""
    if options.relocatable:
        return ["--offload-new-driver", *relocatable.flags(options.relocatable)]
    return ["-fuse-cuid=none"]  # an identity of the file's path would be part of the object


def _own(options: HostOptions, top: str) -> list[str]:
    """What the user gave, in the order in which the last one wins."""
    return [
        *options.clang_flags,
        *options.flags,
        *(f"-D{define}" for define in options.defines),
        *(f"-I{from_top(folder, top)}" for folder in options.cpppath),
        *options.host_flags,
    ]


def compile_host(  # noqa: PLR0913 - one keyword for each thing that decides
    clang: Tool,
    source: str,
    *,
    options: HostOptions,
    headers: str,
    fatbin: Path | None,
    output: Path,
    top: str,
    check: Callable[[bytes], None],
) -> Compiled:
    """Compiles one source and puts its object at `output`, whole or not at all, when `check` has nothing against it.

    Raises SourceError with clang's own words, ToolMissingError if there are no CUDA headers or no C++ library, ToolKilledError.
    """
    if not headers:
        msg = "clang needs CUDA's headers, and none were found"
        hint = "pip install 'scons-gpu[clang]' brings them, or name a toolkit of 12.9 or older in GPU_CUDA_HEADERS"
        raise ToolMissingError(msg, source=source, hint=hint)
    if not (Path(top) / source).is_file():
        msg = "there is no such file"
        raise SourceError(msg, source=source)
    made = _Compilation(clang, source, options=options, headers=headers, fatbin=fatbin, output=output, top=top, check=check)
    return settled(made.once, source, output=output, top=top)


@dataclass(frozen=True)
class _Compilation:
    """What `compile_host` was asked for."""

    clang: Tool
    source: str
    _: KW_ONLY
    options: HostOptions
    headers: str
    fatbin: Path | None
    output: Path
    top: str
    check: Callable[[bytes], None]

    def once(self) -> Compiled:
        """One run of clang, whatever changes meanwhile."""
        with private_folder() as folder:
            private, depfile = folder / "out.o", folder / "out.d"
            argv = command(
                self.clang,
                self.source,
                options=self.options,
                headers=self.headers,
                fatbin=str(self.fatbin or ""),
                output=str(private),
                depfile=str(depfile),
                top=self.top,
            )
            done = run(argv, cwd=self.top, environ=environ())
            if done.status != 0:
                raise classify(done, source=self.source, target=None)
            if not private.is_file() or not private.stat().st_size:
                msg = "clang said that it succeeded and made nothing"
                raise ToolSilentError(msg, source=self.source, output=done.output)
            data = private.read_bytes()
            self.check(data)
            write_atomic(self.output, data)
            return Compiled(self._read(depfile), output=warnings_of(done.stderr), cpu=done.cpu, peak_kib=done.peak_kib)

    def _read(self, depfile: Path) -> tuple[str, ...]:
        """The files that clang read, besides the source."""
        own = from_top(self.source, self.top)
        return tuple(path for path in read_depfile(depfile.read_text(errors="surrogateescape"), top=self.top) if path != own)
