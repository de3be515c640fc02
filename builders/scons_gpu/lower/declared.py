"""Variables that others define and a unit only sees: `available_externally` in its IR, so that they fold, and declarations in its PTX.

libNVVM prints them as weak definitions, and LLVM does at level 0. A linker would take such a one for another variable of that name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["declared", "seen"]

_DEFINITION = re.compile(
    r"^\.(?:weak|visible|common) (?P<what>\.(?:global|const)\b[^;={]*?(?P<name>[\w$]+)(?:\[\d+\])?)(?: = [^;]*)?;\n", re.MULTILINE
)


def seen(module: Any) -> frozenset[str]:  # noqa: ANN401 - llvmlite has no types
    """The names of those variables."""
    return frozenset(variable.name for variable in module.global_variables if variable.linkage.name == "available_externally")


def declared(text: str, names: Collection[str]) -> str:
    """PTX in which the variables of these names are declared at most: one that was folded away is not there at all."""

    def declaration(match: re.Match[str]) -> str:
        if match["name"] not in names:
            return match[0]
        return f".extern {match['what']};\n" if _is_used(text, match["name"]) else ""

    return _DEFINITION.sub(declaration, text) if names else text


def _is_used(text: str, name: str) -> bool:
    """Whether the name stands anywhere but in its definition. It goes by the name's own letters first, which is what `re` is quick at."""
    places = re.finditer(rf"{re.escape(name)}(?![\w$])", text)
    return sum(not re.match(r"[\w$]", text[place.start() - 1]) for place in places) > 1
