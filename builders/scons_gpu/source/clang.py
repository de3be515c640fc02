"""CUDA C++ becomes LLVM IR through clang: device side only, not optimised yet, and without a trace of where it was compiled.

Optimisation comes later, unit by unit, so clang is asked for what it would give to its own optimiser (`-O3 -disable-llvm-passes`;
`-O0` would mark every function as never to be optimised). The device library is left out (`-nocudalib`): it is linked into units
that need it. That makes clang forget the CUDA version, without which it rejects `<<<>>>`: hence `-target-sdk-version`.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import SourceError, ToolMissingError, ToolSilentError
from scons_gpu.source import failed, relocatable
from scons_gpu.source.depfile import read_depfile
from scons_gpu.source.diagnostics import classify, missing_headers, warnings_of
from scons_gpu.source.stamps import moved, stamps
from scons_gpu.store.files import write_atomic
from scons_gpu.toolchain.process import private_folder, run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scons_gpu.errors import GpuError
    from scons_gpu.source.options import ClangOptions
    from scons_gpu.source.stamps import Stamp
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.process import Finished
    from scons_gpu.toolchain.tools import Tool

__all__ = ["LENIENT", "SDK", "SYSTEM", "Compiled", "command", "compile_cuda", "environ", "from_top", "prefix_maps", "settled"]

LENIENT = "-Wno-error=register"
"""nvcc and g++ only warn of `register`, which C++17 has not any more, and real sources are full of it."""
SDK = "12.9"
"""What clang knows; it shapes which launch functions it calls, not which headers it can read."""
# They would change what is compiled without being seen in the command line. SOURCE_DATE_EPOCH is what __DATE__ and __TIME__ tell.
_HIDDEN_INPUTS = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CCC_OVERRIDE_OPTIONS", "CUDA_PATH", "CUDA_HOME", "SDKROOT")
_TRIES = 3
"""How often a source is compiled whose files change meanwhile: what is recorded of them has to be what clang read."""
_FIXED = {"LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
SYSTEM = (Path("/"), Path("/usr"), Path("/usr/local"))
"""Folders of which no environment is made."""


@dataclass(frozen=True)
class Compiled:
    """What else came out: the files that were read (relative to the top where they lie below it), and clang's warnings."""

    dependencies: tuple[str, ...]
    output: str
    cpu: float = 0.0  # seconds
    peak_kib: int = 0  # 0 where it cannot be told
    failed: bool = False  # a tolerant compilation that clang refused
    missing: tuple[str, ...] = ()  # headers that it looked for in vain then


def command(  # noqa: PLR0913 - one keyword for each thing that decides
    clang: Tool, source: str, *, target: Target, options: ClangOptions, headers: str, output: str, depfile: str, top: str
) -> list[str]:
    """The command line, to be run in `top`. Paths below the top are made relative, so that it does not matter how they were spelled."""
    return [
        clang.path,
        *("-x", "cuda", "--cuda-device-only", *_architecture(target), f"--cuda-path={headers}"),
        *("-S", "-emit-llvm", "-O3", "-Xclang", "-disable-llvm-passes"),
        *("-nocudalib", "-Xclang", f"-target-sdk-version={SDK}", "-Wno-unknown-cuda-version"),
        *(() if options.relocatable else ("--no-cuda-version-check",)),  # there clang says that it has no use for it
        LENIENT,
        *("-stdlib=libstdc++", "--no-default-config", "-fno-crash-diagnostics", "-fno-color-diagnostics"),
        *prefix_maps(clang, source, headers=headers, top=top),
        *_code_flags(options),
        *(relocatable.flags(options.relocatable) if options.relocatable else ()),
        *(f"-D{define}" for define in options.defines),
        *(f"-I{from_top(folder, top)}" for folder in options.cpppath),
        *options.from_nvcc,
        *options.flags,
        *("-MD", "-MT", "x", "-MF", depfile, "-o", output, from_top(source, top)),
    ]


def _architecture(target: Target) -> list[str]:
    """Clang 22 has no names for families of GPUs: their code is that of the plain GPU, told that it is for the family.

    The macros are those of nvcc, which clang leaves out; CUDA's headers ask for them.
    """
    family = [f"-D__CUDA_ARCH_FAMILY_SPECIFIC__={target.number}0"]
    if target.suffix == "f":
        return [f"--offload-arch=sm_{target.number}", *family]
    specific = [f"-D__CUDA_ARCH_SPECIFIC__={target.number}0"] if target.suffix == "a" else []
    return [f"--offload-arch={target.cpu}", *specific, *(family if specific and target.number >= 100 else [])]


def _code_flags(options: ClangOptions) -> list[str]:
    flags = ["-ffast-math"] if options.fast_math else []
    flags += ["-fgpu-flush-denormals-to-zero"] if options.ftz or options.fast_math else []
    if options.debug:
        # Without the second, clang cuts debug information of optimised device code down to lines.
        return [*flags, "-g", "--cuda-noopt-device-debug", "-fdebug-compilation-dir=."]
    return [*flags, "-gline-tables-only", "-fdebug-compilation-dir=."] if options.lineinfo else flags


def prefix_maps(clang: Tool, source: str, *, headers: str, top: str) -> list[str]:
    """`__FILE__` and line information name files as seen from the top, from the toolkit, from the environment: never where these lie."""
    environment = Path(clang.path).parent.parent
    maps = {f"{Path(top).absolute()}/": ""}
    if environment not in SYSTEM:
        maps[f"{environment}/"] = "clang/"
    if not _below(Path(source), Path(top)):
        maps.setdefault(f"{Path(source).absolute().parent}/", "")
    if headers:
        maps[f"{Path(headers).absolute()}/"] = "cuda/"
    # One may hold another; clang takes the longest that fits.
    return [f"-ffile-prefix-map={old}={new}" for old, new in sorted(maps.items())]


def _below(path: Path, top: Path) -> bool:
    return (top.absolute() / path).is_relative_to(top.absolute()) and ".." not in path.parts


def from_top(path: str, top: str) -> str:
    """A path as clang is given it when it runs in `top`: relative where it lies below."""
    base = Path(top).absolute()
    whole = base / path
    return str(whole.relative_to(base)) if whole.is_relative_to(base) else path


def compile_cuda(  # noqa: PLR0913 - one keyword for each thing that decides
    clang: Tool,
    source: str,
    *,
    target: Target,
    options: ClangOptions,
    headers: str,
    output: Path,
    top: str,
    tolerant: bool = False,
) -> Compiled:
    """Compiles one source for one architecture and puts its IR, as text, at `output`, whole or not at all.

    `tolerant`: a source that clang refuses becomes the text that says so (`source.failed`), with the files that clang had read.
    Raises SourceError with clang's own words, ToolMissingError if there are no CUDA headers or no C++ library, ToolKilledError.
    """
    if not headers:
        msg = "clang needs CUDA's headers, and none were found"
        hint = "pip install 'scons-gpu[clang]' brings them, or name a toolkit of 12.9 or older in GPU_CUDA_HEADERS"
        raise ToolMissingError(msg, source=source, arch=target.name, hint=hint)
    if not (Path(top) / source).is_file():
        msg = "there is no such file"
        raise SourceError(msg, source=source)
    compilation = _Compilation(clang, source, target=target, options=options, headers=headers, output=output, top=top, tolerant=tolerant)
    return settled(compilation.once, source, output=output, top=top, arch=target.name)


def settled(once: Callable[[], Compiled], source: str, *, output: Path, top: str, arch: str = "") -> Compiled:
    """What `once` made of a source when neither that nor what it reads changed meanwhile. Raises SourceError where they keep changing."""
    known: Mapping[str, Stamp] = {}
    for _ in range(_TRIES):
        begun = time.time_ns()
        compiled = once()
        before, known = known, stamps((from_top(source, top), *compiled.dependencies), top=top)
        moving = moved(known, before, begun=begun)
        if not moving:
            return compiled
    output.unlink(missing_ok=True)
    msg = f"{moving[0]} changes while it is compiled"
    raise SourceError(msg, source=source, arch=arch, hint="build again when it is left alone")


@dataclass(frozen=True)
class _Compilation:
    """What `compile_cuda` was asked for."""

    clang: Tool
    source: str
    _: KW_ONLY
    target: Target
    options: ClangOptions
    headers: str
    output: Path
    top: str
    tolerant: bool

    def once(self) -> Compiled:
        """One run of clang, whatever changes meanwhile."""
        with private_folder() as folder:
            private, depfile = folder / "out.ll", folder / "out.d"
            argv = command(
                self.clang,
                self.source,
                target=self.target,
                options=self.options,
                headers=self.headers,
                output=str(private),
                depfile=str(depfile),
                top=self.top,
            )
            done = run(argv, cwd=self.top, environ=environ())
            if done.status != 0:
                return self._refused(classify(done, source=self.source, target=self.target), done, argv=argv, depfile=depfile)
            if not private.is_file() or not private.stat().st_size:
                msg = "clang said that it succeeded and made nothing"
                raise ToolSilentError(msg, source=self.source, arch=self.target.name, output=done.output)
            ir = private.read_bytes()
            ir = relocatable.plain(ir) if self.options.relocatable else ir
            write_atomic(self.output, _renamed(ir, _seen_from_top(self.source, self.top)))
            return Compiled(self._read(depfile), output=warnings_of(done.stderr), cpu=done.cpu, peak_kib=done.peak_kib)

    def _refused(self, failure: GpuError, done: Finished, *, argv: Sequence[str], depfile: Path) -> Compiled:
        """What clang refused: the failure in place of IR, for who wants that. Clang takes the depfile away where a header is missing."""
        if not self.tolerant or not isinstance(failure, SourceError):
            raise failure
        if not depfile.is_file():
            run([*argv, "-M", "-MG"], cwd=self.top, environ=environ())
        if not depfile.is_file():
            raise failure
        read = tuple(path for path in self._read(depfile) if Path(self.top, path).is_file())  # -MG names those that are not there too
        write_atomic(self.output, failed.to_ir(failure))
        return Compiled(read, output="", cpu=done.cpu, peak_kib=done.peak_kib, failed=True, missing=missing_headers(done.output))

    def _read(self, depfile: Path) -> tuple[str, ...]:
        """The files that clang read, besides the source."""
        own = from_top(self.source, self.top)
        return tuple(path for path in read_depfile(depfile.read_text(errors="surrogateescape"), top=self.top) if path != own)


def _seen_from_top(source: str, top: str) -> str:
    return from_top(source, top) if _below(Path(source), Path(top)) else Path(source).name


def _renamed(ir: bytes, name: str) -> bytes:
    """The two lines that tell the source's path as clang was given it, which no prefix map reaches."""
    quoted = name.encode(errors="surrogateescape")
    ir = re.sub(rb"\A; ModuleID = '[^\n]*'", lambda _: b"; ModuleID = '" + quoted + b"'", ir, count=1)
    escaped = b"".join(bytes([byte]) if 32 <= byte < 127 and byte not in b'"\\' else b"\\%02X" % byte for byte in quoted)
    return re.sub(rb'^source_filename = "[^\n]*"', lambda _: b'source_filename = "' + escaped + b'"', ir, count=1, flags=re.MULTILINE)


def environ() -> dict[str, str]:
    """What clang is started with: nothing that changes what it compiles without being seen in its command line."""
    kept = {name: value for name, value in os.environ.items() if name not in _HIDDEN_INPUTS}
    return {**kept, **_FIXED}
