"""A slice that is PTX already: nothing lowers it, so its PTX is its own text, and nothing else shapes that."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from scons_gpu.split.ptx_text import renamed

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FORMAT", "is_ptx", "key", "renamed"]

FORMAT = "scons-gpu/ptx-source/1"
"""Raised when a slice becomes its PTX otherwise."""


def is_ptx(text: str) -> bool:
    """Whether a slice is PTX, not IR."""
    return text.startswith(".version ")


def key(slice_name: str, *, arch: str, renames: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The digest's fields as (field, value), sorted by field."""
    pairs = sorted(renames)
    spelled = json.dumps(pairs, separators=(",", ":")) if pairs else ""
    return (("arch", arch), ("format", FORMAT), ("renames", spelled), ("slice", slice_name))
