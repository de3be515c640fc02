"""The names by which a person asks for a kernel."""

from __future__ import annotations

__all__ = ["names_of"]


def names_of(symbol: str, readable: str) -> tuple[str, str, str]:
    """The kernel's symbol, its readable name, and that without its parameters."""
    return symbol, readable, _without_parameters(readable)


def _without_parameters(readable: str) -> str:
    """`void f<int (*)(int)>(float*)` → `void f<int (*)(int)>`: from the end, since template arguments may have brackets too."""
    depth = 0
    for place in range(len(readable) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(readable[place], 0)
        if readable[place] == "(" and not depth:
            return readable[:place]
    return readable
