"""Symbols as people write them: `_Z7softmaxILi256EEvPf` is `softmax<256>(float*)`."""

from __future__ import annotations

import functools
import importlib
import re
from typing import Any

__all__ = ["demangle"]

_APART = re.compile(r"__(?:intern|static)__[0-9a-f]+$")
"""How clang tells private names of two sources apart that are linked: nothing that a demangler knows."""


@functools.cache
def _library() -> Any:  # noqa: ANN401 - an extension module without types
    """LLVM's demangler as pydemumble binds it; None where it does not load: names are a comfort, never a reason to fail."""
    try:
        return importlib.import_module("pydemumble")
    except ImportError:
        return None


def demangle(symbol: str) -> str:
    """The demangled name without a leading `void `; the symbol itself where it is not mangled or cannot be told."""
    if not symbol.startswith("_Z") or (library := _library()) is None:
        return symbol
    name: str = library.demangle(_APART.sub("", symbol))
    return name.removeprefix("void ") or symbol
