"""How a text holds what it leads to, and what it leaves to others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["Holding", "Lacking"]


@dataclass(frozen=True)
class Holding:
    """How a text holds what it leads to."""

    roots: Collection[str] = ()
    """The kernels that are the text's own; others are declared."""
    pinned: Collection[str] = ()
    """What others see by its name."""
    left: frozenset[str] = frozenset()
    """What is declared, because it joins the text before it is optimised."""
    open: bool = False
    """Whether something joins the text. Then inline functions show that they are: one that several sources bring is one function."""


@dataclass(frozen=True)
class Lacking:
    """What a text names and leaves to others: each name with who names it."""

    needs: tuple[tuple[str, str], ...] = ()
    lacks: tuple[tuple[str, str], ...] = ()
    """What may stay undefined."""
    libdevice: bool = False
