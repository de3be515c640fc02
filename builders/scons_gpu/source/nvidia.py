"""What nvcc and NVRTC have in common as front ends: their options, what they said, and the PTX that no longer tells where it was made."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from scons_gpu.errors import SourceError
from scons_gpu.store.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scons_gpu.source.options import ClangOptions
    from scons_gpu.toolchain.arch import Target

__all__ = ["architecture", "code_flags", "left_out", "refusal", "write_ptx"]

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


def left_out(options: ClangOptions) -> str:
    """What to tell of clang's flags that were not passed on; empty where there are none."""
    others = [flag for flag in options.flags if not flag.startswith("-std=")]
    return f"GPU_CLANGFLAGS are clang's: {' '.join(others)} left out; GPU_NVCCFLAGS is for nvcc and NVRTC" if others else ""


def refusal(tool: str, said: str, *, source: str, target: Target) -> SourceError:
    """The error for a source that the compiler does not take, with its own words."""
    lines = said.strip().splitlines()
    errors = [line for line in lines if "error" in line] or lines or ["it does not say why"]
    hint = ""
    if tool == "nvrtc" and "cannot open source file" in said:
        hint = "NVRTC has no headers of the host's: leave them out where __CUDACC_RTC__ is defined, or take clang or nvcc (GPU_FRONTEND)"
    return SourceError(f"{tool}: {errors[0].strip()}", source=source, arch=target.name, output="\n".join(lines), hint=hint)


def write_ptx(data: bytes, output: Path) -> None:
    """Puts PTX at `output`. Private names lose what the path made of them, at equal length: C++ writes that length before a name."""
    write_atomic(output, _INTERNAL.sub(b"_INTERNAL_00000000_", data))


def spelled(flags: Sequence[str]) -> list[str]:
    """Flags that a user wrote with two words, as NVRTC wants them: `-I` and its folder are one."""
    joined: list[str] = []
    for flag in flags:
        if joined and joined[-1] in ("-I", "-D", "-U"):
            joined[-1] += flag
        else:
            joined.append(flag)
    return joined
