"""GPU kernels as first-class build nodes: a SCons tool that builds a GPU module unit by unit.

Importing this costs nothing and starts nothing. A SConstruct finds the tool with `toolpath=[scons_gpu.TOOLPATH]`.
"""

from __future__ import annotations

import os.path

__all__ = ["TOOLPATH", "__version__"]

__version__ = "0.1.0"
TOOLPATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools")
