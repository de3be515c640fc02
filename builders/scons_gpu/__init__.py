"""GPU kernels as first-class build nodes: a SCons tool that builds a GPU module unit by unit.

Importing this costs nothing and starts nothing. A SConstruct finds the tool with `toolpath=[scons_gpu.TOOLPATH]`; a program that runs what
was built finds kernels with `scons_gpu.load("build/net.json")["then"]["relu"]`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from scons_gpu.loading.program import Program

__all__ = ["INCLUDE", "TOOLPATH", "__version__", "load"]

__version__ = "0.1.0"
TOOLPATH = str(Path(__file__).resolve().parent / "tools")
INCLUDE = str(Path(__file__).resolve().parent / "include")
"""Where scons_gpu.hpp is, for CPPPATH."""


def load(path: str | os.PathLike[str]) -> Program:
    """A program's modules and kernels, from the manifest that `GpuProgram` wrote: docs/loading.md.

    Listing them needs neither GPU nor CUDA. Raises errors.DamagedError for what is no manifest.
    """
    from scons_gpu.loading import program  # noqa: PLC0415 - a build loads nothing

    return program.load(path)
