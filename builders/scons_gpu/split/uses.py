"""What a function does with the address of a global: a small, conservative data flow over one function's text.

Only loads are let pass, through address arithmetic, casts, phis and selects, and reads by memcpy.
Anything not understood counts as an escape.
"""

from __future__ import annotations

import re

from scons_gpu.split.pieces import NAME

__all__ = ["only_read"]

_DEFINED = re.compile(rf"  (%{NAME}) = (?:tail |musttail |notail )?([a-z]+)")
_MEMORY_COPY = re.compile(r"  (?:tail )?call void @llvm\.mem(?:cpy|move)\.[\w.]*\(")
_PASSED_ON = frozenset(("getelementptr", "addrspacecast", "bitcast", "phi", "select", "freeze"))


def only_read(text: str, symbol: str, *, compared: bool = False) -> bool:
    """Whether the function whose text is given does no more than load from `symbol`.

    `compared` says whether an address may meet another one's (a phi, a select): no matter for reading, but it is where addresses count.
    """
    todo, seen = [symbol], {symbol}
    while todo:
        name = todo.pop()
        for line in _lines(text, name):
            made = _use(line, name, compared=compared)
            if made is None:
                return False
            if made and made not in seen:
                seen.add(made)
                todo.append(made)
    return True


def _lines(text: str, name: str) -> list[str]:
    """The lines in which `name` stands other than as what the line defines."""
    found = []
    for match in re.finditer(re.escape(name) + r"(?![-\w$.])", text):
        start = text.rfind("\n", 0, match.start()) + 1
        if start + 2 == match.start() and text.startswith(" = ", match.end()):
            continue
        end = text.find("\n", match.end())
        found.append(text[start : end if end >= 0 else len(text)])
    return found


def _use(line: str, name: str, *, compared: bool) -> str | None:
    """The value that `line` makes of the address, empty if it only reads there, None if the address escapes or is written through."""
    if line.startswith("    #dbg_"):
        return ""
    if "ptrtoint" in line or "ptrtoaddr" in line:
        return None
    defined = _DEFINED.match(line)
    if defined:
        passed_on = defined[2] in _PASSED_ON and not (compared and defined[2] in ("phi", "select"))
        return "" if defined[2] == "load" else defined[1] if passed_on else None
    copy = _MEMORY_COPY.match(line)
    if copy:
        target, rest = _first_argument(line, copy.end())
        return "" if not _names(target, name) and _names(rest, name) else None
    return None


def _first_argument(line: str, start: int) -> tuple[str, str]:
    """The call's first argument, which may be a constant expression with commas of its own, and all that follows."""
    depth = 0
    for index in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[index], 0)
        if line[index] == "," and not depth:
            return line[start:index], line[index:]
    return line[start:], ""


def _names(text: str, name: str) -> bool:
    return re.search(re.escape(name) + r"(?![-\w$.])", text) is not None
