"""Where cuda-python's bindings of a library are, without loading any of it."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path

__all__ = ["bindings", "lacking"]


def bindings(name: str) -> str:
    """The file of `cuda.bindings.<name>`; "" where there is none.

    Not by `find_spec`: that asks whatever goes by the name of cuda in this process, and SCons enters a project's tool under its bare name.
    """
    spec = PathFinder.find_spec("cuda")
    folders = spec.submodule_search_locations or () if spec else ()
    return next((str(path) for folder in folders for path in sorted(Path(folder, "bindings").glob(f"{name}.*"))), "")


def lacking() -> str:
    """What to say of a library whose bindings are not there."""
    return f"it is called through cuda-python (cuda.bindings), which is not installed for {sys.executable}"
