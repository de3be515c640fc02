"""What the user asked of this run of SCons, by SCons' public API."""

from __future__ import annotations

import os
from typing import Any

from SCons.Script import COMMAND_LINE_TARGETS, GetOption

__all__ = ["cleaning", "looking", "silent", "wanted"]


def looking() -> bool:
    """Whether this run only looks: `-n`, `-q`, `-c`, `-h`."""
    return any(GetOption(name) for name in ("no_exec", "question", "clean", "help"))


def cleaning() -> bool:
    """Whether it takes away what others made: `-c`."""
    return bool(GetOption("clean"))


def silent() -> bool:
    """Whether nobody wants lines (`-s`; `-Q` does not count)."""
    return bool(GetOption("silent"))


def wanted(fs: Any, *targets: str) -> bool:
    """Whether the command line names one of these, an alias or a path, which is seen from the top, whichever SConscript is being read."""
    top = str(fs.Top.get_abspath())
    asked = [os.path.normpath(os.path.join(top, target)) for target in COMMAND_LINE_TARGETS]  # noqa: PTH118 - aliases too
    return any(target in COMMAND_LINE_TARGETS or target in asked for target in targets)
