"""Where cuda-python's bindings of a library are, without loading any of it."""

from __future__ import annotations

from importlib.machinery import PathFinder
from pathlib import Path

__all__ = ["bindings"]


def bindings(name: str) -> str:
    """The file of `cuda.bindings.<name>`; "" where there is none.

    Not by `find_spec`: that asks whatever goes by the name of cuda in this process, and SCons enters a project's tool under its bare name.
    """
    spec = PathFinder.find_spec("cuda")
    folders = spec.submodule_search_locations or () if spec else ()
    return next((str(path) for folder in folders for path in sorted(Path(folder, "bindings").glob(f"{name}.*"))), "")
