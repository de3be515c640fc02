"""What two sources must agree on of a name that one defines and the other uses, as text that compares and that people read.

LLVM links a call of another type in silence and then takes the caller for one that never gets there; so types are compared beforehand.
Attributes count where they say how an argument is passed; those that only say what is known of it may differ between two headers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from scons_gpu.split.index import Type
from scons_gpu.split.pieces import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scons_gpu.split.module import Module, Variable

__all__ = ["declaration", "of_function", "of_variable"]

_PASSED = re.compile(r"(?:byval|sret|byref|inalloca|preallocated)\(|(?:inreg|signext|zeroext|nest|swift\w+)$")
_POINTED = re.compile(r"(?:byval|sret|byref|inalloca|preallocated)\(")
_CONVENTION = re.compile(r"\w*cc|ptx_\w+|spir_\w+|\d+")
_NAMED = re.compile(rf"%{NAME}")


def of_function(text: str, symbol: str, types: Mapping[str, str]) -> Type:
    """The type of a function whose declaration, or whose definition's first line, is `text`: `i32 (i32, ptr byval({ i32 }) align 4)`."""
    return Type(_spelled(text, symbol, types, called=" "))


def declaration(text: str, symbol: str, types: Mapping[str, str], *, weak: bool = False) -> str:
    """The function as any source declares it that agrees on its type: what else is said of it, the definition says."""
    return f"declare {'extern_weak ' if weak else ''}{_spelled(text, symbol, types, called=f' {symbol}')}"


def _spelled(text: str, symbol: str, types: Mapping[str, str], *, called: str) -> str:
    start = text.index(f"{symbol}(")
    before = [word for word in _words(text[:start]) if word not in ("define", "declare")]
    size = 2 if before[-1].startswith("addrspace(") else 1
    kept = [word for word in before[:-size] if _CONVENTION.fullmatch(word)]
    kept += [word for word in before[:-size] if _PASSED.match(word)]
    given = [_parameter(list(_words(parameter))) for parameter in _parameters(text, start + len(symbol))]
    return _expanded(f"{' '.join([*kept, *before[-size:]])}{called}({', '.join(given)})", types)


def of_variable(variable: Variable, module: Module) -> Type:
    """The type of a variable, with what a link does not look at: where it lies, its size and its alignment."""
    return Type(_expanded(variable.type, module.types), space=variable.space, bytes=variable.bytes, align=variable.alignment)


def _parameter(words: list[str]) -> str:
    size = 2 if len(words) > 1 and words[1].startswith("addrspace(") else 1
    kept = [word for word in words[size:] if _PASSED.match(word)]
    if any(_POINTED.match(word) for word in kept) and "align" in words:
        kept += ["align", words[words.index("align") + 1]]
    return " ".join([*words[:size], *kept])


def _parameters(text: str, start: int) -> Iterator[str]:
    """What stands between the parentheses that open at `start`, cut at its commas."""
    depth, begin = 0, start + 1
    for found in re.finditer(r'"[^"]*"|[(\[{<>}\]),]', text[start:]):
        place, mark = start + found.start(), found[0]
        depth += 1 if mark in "([{<" else -1 if mark in ")]}>" else 0
        if not depth or (depth == 1 and mark == ","):
            if text[begin:place].strip():
                yield text[begin:place]
            begin = place + 1
        if not depth:
            return


def _words(text: str) -> Iterator[str]:
    """Cut at spaces, but not inside brackets and quotes."""
    depth, word = 0, ""
    for part in re.findall(r'"[^"]*"|[(\[{<]|[>}\])]|\s+|[^\s"(\[{<>}\])]+', text):
        if part.isspace() and not depth:
            yield from [word] if word else []
            word = ""
            continue
        depth += 1 if part in "([{<" else -1 if part in ")]}>" else 0
        word += part
    yield from [word] if word else []


def _expanded(text: str, types: Mapping[str, str]) -> str:
    """Without names of types, which no reader knows once they are made of content. An opaque one keeps its name."""

    def body(found: re.Match[str]) -> str:
        definition = types.get(found[0], "opaque")
        return found[0] if definition == "opaque" else _expanded(definition, types)

    return _NAMED.sub(body, text)
