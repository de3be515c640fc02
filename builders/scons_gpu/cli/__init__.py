"""The command `scons-gpu`: every step of a build by hand, and what shows what was built."""

from __future__ import annotations

from scons_gpu.cli.program import main, program

__all__ = ["main", "program"]
