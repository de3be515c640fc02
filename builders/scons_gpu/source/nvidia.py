"""What nvcc and NVRTC have in common as front ends: their options, what they said, and the PTX that no longer tells where it was made."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import SourceError
from scons_gpu.store.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.source.options import ClangOptions
    from scons_gpu.toolchain.arch import Target

__all__ = ["architecture", "code_flags", "left_out", "meant", "refusal", "spelled", "undefined", "write_ptx"]

_FILE = re.compile(rb'(\.file\s+\d+\s+")([^"\n]+)')
_NEXT = rb"(?:,|\s*\n\s*\.b8\s+)"
_NUMBER = re.compile(rb"(" + _NEXT + rb")\d+")
_SPELT = re.compile(
    rb"(" + _NEXT.join(str(byte).encode() for byte in b"_INTERNAL_") + rb")((?:" + _NEXT + rb"\d+){8})(?=" + _NEXT + rb"95\b)"
)
"""The same name as debug sections spell it, byte by byte."""
_INTERNAL = re.compile(rb"_INTERNAL_[0-9a-f]{8}_")
"""What stands in the names of private functions: a hash of where and how the file was compiled."""


def architecture(target: Target) -> str:
    """`compute_90a` of `sm_90a`."""
    return target.cpu.replace("sm_", "compute_")


def code_flags(options: ClangOptions) -> list[str]:
    """What shapes code, in the spelling of both. Of clang's own flags the language standard is taken over, and nothing else."""
    flags = ["--use_fast_math"] if options.fast_math else ["-ftz=true"] if options.ftz else []
    flags += ["-G"] if options.debug else ["-lineinfo"] if options.lineinfo else []
    flags += [flag for flag in options.flags if flag.startswith("-std=")]
    return [*flags, *(f"-D{define}" for define in options.defines)]


def undefined(options: ClangOptions) -> ClangOptions:
    """The same without defines, for who spells them himself."""
    return replace(options, defines=())


def left_out(options: ClangOptions) -> str:
    """What to tell of clang's flags that were not passed on; empty where there are none."""
    others = [flag for flag in options.flags if not flag.startswith("-std=")]
    return f"GPU_CLANGFLAGS are clang's: {' '.join(others)} left out; GPU_NVCCFLAGS is for nvcc and NVRTC" if others else ""


def refusal(tool: str, said: str, *, source: str, target: Target | None) -> SourceError:
    """The error for a source that the compiler does not take, with its own words."""
    lines = said.strip().splitlines()
    errors = [line for line in lines if "error" in line] or lines or ["it does not say why"]
    hint = ""
    if tool == "nvrtc" and "cannot open source file" in said:
        hint = "NVRTC has no headers of the host's: leave them out where __CUDACC_RTC__ is defined, or take clang or nvcc (GPU_FRONTEND)"
    return SourceError(
        f"{tool}: {errors[0].strip()}", source=source, arch=target.name if target else "", output="\n".join(lines), hint=hint
    )


def write_ptx(data: bytes, output: Path, *, top: str, tool: str) -> None:
    """Puts PTX at `output`. Private names lose what the path made of them, at equal length: C++ writes that length before a name.

    Line information names files as seen from `top`, or from the toolkit that `tool` is of: never where these lie.
    """
    home = str(Path(tool).absolute().parent.parent)
    places = ((f"{Path(top).absolute()}/", ""), (f"{home}/", "cuda/"))
    named = _FILE.sub(lambda match: match[1] + _seen(match[2].decode(errors="surrogateescape"), places), data)
    spelt = _SPELT.sub(lambda match: match[1] + _NUMBER.sub(rb"\g<1>48", match[2]), named) if b".section" in named else named
    write_atomic(output, _INTERNAL.sub(b"_INTERNAL_00000000_", spelt))


def _seen(path: str, places: Sequence[tuple[str, str]]) -> bytes:
    plain = os.path.normpath(path)
    for folder, name in places:
        if plain.startswith(folder):
            plain = name + plain[len(folder) :]
            break
    return plain.encode(errors="surrogateescape")


def meant(flags: Sequence[str], tool: str) -> list[str]:
    """The flags without those that only the other of the two knows."""
    from scons_gpu.source.nvcc_options import rows  # noqa: PLC0415 - a build by clang never asks

    known = [(flag, rows(flag.partition("=")[0])) for flag in flags]
    return [flag for flag, found in known if not found or not found[0].kept or tool in found[0].kept]


def spelled(flags: Sequence[str]) -> list[str]:
    """Flags that a user wrote with two words, as NVRTC wants them: `-I` and its folder are one."""
    joined: list[str] = []
    for flag in flags:
        if joined and joined[-1] in ("-I", "-D", "-U"):
            joined[-1] += flag
        else:
            joined.append(flag)
    return joined
