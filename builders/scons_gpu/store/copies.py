"""Copies of plans, by content: what an image was made of before is not in the build folder any more when somebody asks why it changed."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from scons_gpu.store import names
from scons_gpu.store.files import write_atomic

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["KIND", "keep", "load", "name_of"]

KIND = "plan"
"""The folder of the store, in which `gc` looks too."""
_FAST = 1
"""Level of compression: a plan of 10,000 kernels takes 60 ms, and a tenth of its length."""


def name_of(text: bytes) -> str:
    """What its copy is called."""
    return names.content(text)


def keep(root: Path, text: bytes) -> str:
    """Keeps a copy in the store at `root`, and gives its name. Not synced: a copy that is lost costs an explanation."""
    name = name_of(text)
    path = _path(root, name)
    if not path.exists():
        write_atomic(path, zlib.compress(text, _FAST), sync=False)
    return name


def load(root: Path, name: str) -> bytes | None:
    """The text of that name; None where there is none, or something else under its name."""
    try:
        text = zlib.decompress(_path(root, name).read_bytes())
    except (OSError, zlib.error):
        return None
    return text if name_of(text) == name else None


def _path(root: Path, name: str) -> Path:
    return root / KIND / name[:2] / f"{name}.z"
