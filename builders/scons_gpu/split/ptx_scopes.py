"""Names that a PTX function declares for itself, taken out of the way where they hide a symbol of the module."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from scons_gpu.split.ptx_text import labels

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["unhidden"]

_SPACES = frozenset((".reg", ".local", ".param", ".shared", ".const", ".global"))
_DECLARATION = re.compile(r"\.(?:reg|local|param|shared|const|global) [^;]*;")
_TOKEN = re.compile(r'("[^"\n]*"|[{};=]|[\w$%.]+)')
_WORD = re.compile(r"[\w$%.]+")


def unhidden(name: str, head: str, body: str, symbols: Collection[str]) -> tuple[str, str]:
    """Head and body of the function `name`, with what it declares itself called otherwise where a symbol is called so."""
    mine = {word for word in _WORD.findall(head) if word in symbols and word != name}
    targets = {label for label in labels(body) if label in symbols}
    declared = {word for text in _DECLARATION.findall(body) for word in _WORD.findall(text) if word in symbols}
    if not (mine or targets or declared):
        return head, body
    suffix = "$own"
    while suffix in body or suffix in head:
        suffix += "$"
    parts = _WORD_SPLIT.split(head)
    parts[1::2] = [word + suffix if word in mine else word for word in parts[1::2]]
    return "".join(parts), _Scopes(mine | targets, symbols, suffix).renamed(body)


_WORD_SPLIT = re.compile(r"([\w$%.]+)")


class _Scopes:
    """Walks through a body and knows at each place which symbols are hidden."""

    def __init__(self, outermost: set[str], symbols: Collection[str], suffix: str) -> None:
        self._scopes = [outermost]
        self._symbols = symbols
        self._suffix = suffix
        self._declares = False
        self._begins = True

    def renamed(self, body: str) -> str:
        """The body with what hides a symbol called otherwise."""
        parts = _TOKEN.split(body)
        for index in range(1, len(parts), 2):
            parts[index] = self._token(parts[index])
        return "".join(parts)

    def _token(self, token: str) -> str:
        if token in _SPACES and self._begins:
            self._declares = True
        elif token in ("{", "}"):
            self._brace(token)
        elif token in (";", "="):
            self._declares = False
        elif token in self._symbols and token[:1] != '"':
            if self._declares:
                self._scopes[-1].add(token)
            if any(token in scope for scope in self._scopes):
                token += self._suffix
        self._begins = token in (";", "{", "}")
        return token

    def _brace(self, brace: str) -> None:
        """A vector's braces open and close a scope as well, in which nothing is declared."""
        if brace == "{":
            self._scopes.append(set())
        elif len(self._scopes) > 1:
            self._scopes.pop()
