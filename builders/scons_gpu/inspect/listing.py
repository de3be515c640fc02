"""Which constants and functions a function of a PTX module names, and whether two functions' PTX is the same."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["Listing"]

_FUNCTION = re.compile(
    r"^(?:\.visible |\.weak )?\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$%]+)\s*\(([^;{}]*?)\)[^;{}]*\{.*?^\}", re.MULTILINE | re.DOTALL
)
_CONSTANT = re.compile(r"^(?:\.visible |\.weak )?\.const (?:\.align \d+ )?\.\w+ ([\w$%]+)", re.MULTILINE)
_VARIABLE = re.compile(
    r"^(?:\.visible |\.weak |\.extern )?\.(?:const|global) (?:\.attribute\([^)]*\) )?(?:\.align \d+ )?\.\w+ ([\w$%]+)[^;]*;\n", re.MULTILINE
)
_DEMOTED = re.compile(r"^\t// demoted variable\n\t\.shared [^;]*;\n", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_$%][\w$]*")
_LABEL = re.compile(r"\$L_\w+|__local_depot\d+|\bcallseq \d+, \d+")


class Listing:
    """PTX as LLVM prints it."""

    def __init__(self, ptx: str) -> None:
        self._ptx = ptx

    @cached_property
    def _functions(self) -> Mapping[str, str]:
        return {match[1]: match[0][match.start(2) - match.start() :] for match in _FUNCTION.finditer(self._ptx)}

    @cached_property
    def _constants(self) -> frozenset[str]:
        return frozenset(_CONSTANT.findall(self._ptx))

    def tables(self, name: str) -> tuple[str, ...]:
        """Symbols in constant memory that the function, or one that it calls, names; sorted."""
        words: set[str] = set()
        for function in self._closure(name):
            words |= set(_WORD.findall(self._functions[function]))
        return tuple(sorted(words & self._constants))

    def with_kernels(self, kernels: Collection[str]) -> str:
        """The module without its other kernels."""
        return _FUNCTION.sub(lambda match: match[0] if match[1] in kernels or ".entry" not in match[0].partition("(")[0] else "", self._ptx)

    def without_unused(self) -> str:
        """The module without the variables that neither a function nor a variable that stays names."""
        defined = {match[1]: match[0] for match in _VARIABLE.finditer(self._ptx)}
        kept: set[str] = set()
        waiting = set(_WORD.findall(_VARIABLE.sub("", self._ptx))) & defined.keys()
        while waiting:
            kept |= waiting
            waiting = {word for name in waiting for word in _WORD.findall(defined[name])} & defined.keys() - kept
        return _VARIABLE.sub(lambda match: match[0] if match[1] in kept else "", self._ptx)

    def same(self, name: str, other: Listing) -> bool:
        """Whether the function and all that it calls read alike in both, but for the numbers of labels."""
        mine, theirs = self._closure(name), other._closure(name)
        return bool(mine) and mine == theirs and all(self._text(one) == other._text(one) for one in mine)

    def _closure(self, name: str) -> frozenset[str]:
        found: set[str] = set()
        waiting = [name] if name in self._functions else []
        while waiting:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                waiting += set(_WORD.findall(self._functions[one])) & self._functions.keys()
        return frozenset(found)

    def _text(self, name: str) -> str:
        """Labels and call sequences are numbered through the module: here through the function.

        Where a shared variable is declared does not count: LLVM moves one that a single kernel uses into that kernel.
        """
        numbers: dict[str, str] = {}
        text = _DEMOTED.sub("", self._functions[name])
        return _LABEL.sub(lambda match: numbers.setdefault(match[0], f"#{len(numbers)}"), text)
