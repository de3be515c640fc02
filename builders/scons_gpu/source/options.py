"""What a user sets for one source: what the front end is told."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ClangOptions"]


@dataclass(frozen=True)
class ClangOptions:
    """What the user sets for a source."""

    cpppath: tuple[str, ...] = ()  # include folders, relative to the top
    defines: tuple[str, ...] = ()  # "A" or "A=1"
    flags: tuple[str, ...] = ()  # GPU_CLANGFLAGS, after all others, so that they win
    from_nvcc: tuple[str, ...] = ()  # clang's flags for what GPU_NVCCFLAGS says, before `flags`
    nvcc_flags: tuple[str, ...] = ()  # what of GPU_NVCCFLAGS nvcc and NVRTC are given as it is
    fast_math: bool = False  # as nvcc's -use_fast_math: ftz, approximate division, roots and transcendentals
    ftz: bool = False  # denormal floats count as zero
    lineinfo: bool = False  # lines for profilers (.loc), no variables
    debug: bool = False  # full debug information
    relocatable: str = ""  # what tells the source from others of its program, where its device code is linked with theirs
