"""GPU kernels as first-class build nodes: a SCons tool that builds a GPU module unit by unit.

Importing this costs nothing and starts nothing. A SConstruct finds the tool with `toolpath=[scons_gpu.TOOLPATH]`.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["TOOLPATH", "__version__"]

__version__ = "0.1.0"
TOOLPATH = str(Path(__file__).resolve().parent / "tools")
