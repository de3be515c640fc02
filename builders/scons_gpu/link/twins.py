"""One object for kernels that differ in nothing but names: a unit's PTX with its own names taken out."""

from __future__ import annotations

import re

from scons_gpu.source import ptx_reader

__all__ = ["ANONYMOUS", "anonymous"]

ANONYMOUS = "__kernel"
"""What the entry of a shared object is called: a name that C++ keeps from users, since variables of theirs keep their names beside it."""

_TOKEN = re.compile(rf"(?P<skip>{ptx_reader.SKIP})|(?P<name>{ptx_reader.NAME})", re.DOTALL)
_PARAMETER = re.compile(r"(?P<owner>.+)(?P<tail>_param_\d+)")
"""How LLVM names a function's parameters."""


def anonymous(text: str) -> str:
    """PTX of one kernel with the entry called `__kernel` and every local name numbered by first appearance.

    Two units of one body give the same text. What others define, and what is visible, keeps its name.
    """
    module = ptx_reader.read(text, label="unit")
    names: dict[str, str] = {}
    for statement in module.statements if module else ():
        if statement.kind == "function" and re.search(r"\.entry\b", statement.text.partition("(")[0]):
            names[statement.names[0]] = ANONYMOUS
        elif statement.kind in {"function", "prototype", "variable"} and not statement.linkage:
            for name in statement.names:
                names.setdefault(name, f"__local_{len(names)}")
    # Comments carry the old names.
    bare = re.sub(rf"{ptx_reader.SKIP}", lambda match: match[0] if match[0].startswith('"') else "", text, flags=re.DOTALL)
    return _TOKEN.sub(lambda match: match[0] if match["skip"] else _new(match[0], names), bare)


def _new(name: str, names: dict[str, str]) -> str:
    parameter = _PARAMETER.fullmatch(name)
    if parameter and parameter["owner"] in names:
        return names[parameter["owner"]] + parameter["tail"]
    return names.get(name, name)
