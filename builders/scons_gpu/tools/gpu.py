"""The SCons tool: `Environment(tools=["default", "gpu"], toolpath=[scons_gpu.TOOLPATH])`.

It adds methods and variables to an environment; it starts nothing, looks for nothing and imports neither LLVM nor CUDA.
"""

from __future__ import annotations

from typing import Any

from scons_gpu.scons import api


def generate(env: Any) -> None:
    """Adds `GpuModule`, `GpuSource`, `GpuProgram`, the step builders, and defaults for the variables that are not set."""
    api.add_to(env)


def exists(env: Any) -> bool:  # noqa: ARG001 - SCons' signature
    """Always: what is missing of LLVM or CUDA is said when something needs it."""
    return True
