"""What a Makefile does for one program: its sources with their flags and what is linked, read from the commands that `make -n` shows."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import PurePosixPath

__all__ = ["Program", "Source", "arch_flags", "host_flags", "read"]

_NVCC = "nvcc"
_HOST = ("g++", "gcc", "c++", "cc", "clang++", "clang")
_SUFFIXES = (".cu", ".cpp", ".cc", ".cxx", ".c", ".C")
_WITH_VALUE = (
    *("-o", "-x", "--x", "-I", "-D", "-L", "-l", "-include", "-isystem", "-ccbin", "-Xcompiler", "-Xptxas", "-Xlinker", "-gencode"),
    *("-arch", "-code", "-std", "-maxrregcount", "--default-stream", "-MF", "-MT"),
)
_ARCH = ("-arch", "--gpu-architecture", "-gencode", "--generate-code", "-code", "--gpu-code")
_RELOCATABLE = ("-dc", "--device-c", "-rdc=true", "--relocatable-device-code=true", "-dlink", "--device-link")
_LINKER = ("-l", "-L", "-Xlinker")


@dataclass(frozen=True)
class Source:
    """One compilation."""

    path: str
    flags: tuple[str, ...]
    cuda: bool
    """Whether nvcc takes it for CUDA; else it is the host compiler's, through nvcc or not."""
    compiler: str


@dataclass
class Program:
    """All that becomes one executable."""

    name: str = "main"
    sources: list[Source] = field(default_factory=list)
    libraries: list[str] = field(default_factory=list)
    """-l, -L and -Xlinker, in their order."""
    openmp: bool = False
    """Whether the link is given -fopenmp."""
    relocatable: bool = False
    """Whether device code is linked across sources."""
    others: list[str] = field(default_factory=list)
    """First words of commands that nobody here understands."""


def read(said: str) -> Program:
    """The program of the commands in `said`, as `make -n` prints them."""
    program = Program()
    for line in said.replace("\\\n", " ").splitlines():
        words = _words(line)
        if not words or words[0].startswith("make"):
            continue
        tool = PurePosixPath(words[0]).name
        if tool == _NVCC or tool in _HOST:
            _enter(program, tool, _options(words[1:]))
        else:
            program.others.append(words[0])
    return program


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _options(words: list[str]) -> list[tuple[str, ...]]:
    """Each option with its value, whether they are one word or two."""
    rest = iter(words)
    return [(word, next(rest, "")) if word in _WITH_VALUE else (word,) for word in rest]


def _enter(program: Program, tool: str, options: list[tuple[str, ...]]) -> None:
    names = [option[0] for option in options]
    sources = [name for name in names if name.endswith(_SUFFIXES) and not name.startswith("-")]
    program.relocatable |= any(name in _RELOCATABLE for name in names)
    as_cuda = any(option in (("-x", "cu"), ("--x", "cu"), ("-x=cu",), ("--x=cu",)) for option in options)
    flags = tuple(word for option in options if _is_flag(option) for word in option)
    for path in sources:
        program.sources.append(Source(path=path, flags=flags, cuda=tool == _NVCC and (as_cuda or path.endswith(".cu")), compiler=tool))
    if "-c" not in names and not any(name in _RELOCATABLE[:2] for name in names):
        program.name = next((PurePosixPath(option[1]).name for option in options if option[0] == "-o"), "a.out")
        program.libraries = [word for option in options if option[0].startswith(_LINKER) for word in option]
        program.openmp = any("-fopenmp" in option for option in options)


def _is_flag(option: tuple[str, ...]) -> bool:
    """Whether it shapes how a source is compiled, wherever for."""
    name = option[0]
    dropped = ("-c", "-o", "-x", "--x", "-MF", "-MT", "-MD", "-MMD", "-M", *_RELOCATABLE)
    return name.startswith("-") and name not in dropped and not name.startswith((*_LINKER, *_ARCH, "-x=", "--x="))


def arch_flags(arch: str) -> tuple[str, ...]:
    """What stands in the place of the Makefile's architectures, which nvcc 13 mostly does not know any more."""
    return (f"-arch={arch}",)


def host_flags(flags: tuple[str, ...]) -> list[str]:
    """Those of nvcc's flags that are the host compiler's, for a source that is no CUDA."""
    found: list[str] = []
    for option in _options(list(flags)):
        if option[0] == "-Xcompiler":
            found += re.split(r"(?<!\\),", option[1])
        elif option[0].startswith(("-O", "-g", "-std", "-D", "-I", "-include", "-isystem", "-f", "-W", "-m", "-pthread")):
            found += option if option[0] != "-std" else [f"-std={option[1]}"]
    return [flag for flag in found if not flag.startswith(("-maxrregcount", "-fmad", "-ftz", "-forward", "-gencode"))]
