"""Starts Python with this very package, for what is not to run in the process of a build."""

from __future__ import annotations

import sys
from pathlib import Path

import scons_gpu

__all__ = ["command"]

# Not `-m`: that puts the current folder first, and a project's own `select.py` or `json.py` would be taken for Python's. The folder
# given leads for the one import of the package, so that it is this very one; then it stands last, behind the standard library.
_START = """
import sys
sys.path[:] = [folder for folder in sys.path if folder]
sys.path.insert(0, sys.argv.pop(1))
import scons_gpu
sys.path.append(sys.path.pop(0))
"""


def command(code: str, *arguments: str) -> list[str]:
    """What starts a process that runs `code`; it finds `arguments` in `sys.argv[1:]`."""
    return [sys.executable, "-c", _START + code, str(Path(scons_gpu.__file__).parent.parent), *arguments]
