"""Text as it is kept between reading and writing: literals, and between them references that each unit names in its own way."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scons_gpu.split import digest
from scons_gpu.split.parse import pattern

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NAME", "Piece", "Tokeniser"]

NAME = r'(?:"[^"]*"|[-\w$.]+)'
"""A name behind its sigil. LLVM prints quotes and line breaks in names and strings as escapes, so a quote always ends one."""

_OTHERS = frozenset('%";')
"""What tokens start with that are no references: types and quoted values, strings, comments."""

_SOURCE_PLACE = ", !srcloc "
"""In front of the node that says where in the source file some inline assembly stands: a byte offset, so any comment would move it."""


@dataclass
class Piece:
    """One function, variable, declaration or metadata node: `literals[0] ref literals[1] ref … literals[-1]`."""

    literals: list[str]
    order: list[int]
    """Which of `refs` stands between the literals, each time."""
    refs: tuple[str, ...]
    """Each `@name`, `#N` and `!N` once, in the order of first use."""
    types: tuple[str, ...] = ()
    """Named types, under their canonical names, in the order of first use."""
    _shape: str = field(default="", repr=False)

    def render(self, names: Mapping[str, str]) -> str:
        """The text with every reference called as `names` says. Looks references up in the order of first use."""
        called = [names[ref] for ref in self.refs]
        out = [""] * (2 * len(self.order) + 1)
        out[::2] = self.literals
        out[1::2] = [called[index] for index in self.order]
        return "".join(out)

    def text(self) -> str:
        """The text with the references as they were read."""
        out = [""] * (2 * len(self.order) + 1)
        out[::2] = self.literals
        out[1::2] = [self.refs[index] for index in self.order]
        return "".join(out)

    @property
    def shape(self) -> str:
        """A hash over all but what the references are called: made once, however many units hold the piece."""
        if not self._shape:
            self._shape = digest.content("\0".join(self.literals).encode() + b"\0\0" + array("I", self.order).tobytes())
        return self._shape

    def names(self) -> tuple[str, ...]:
        """The globals it refers to, in the order of first use."""
        return tuple(ref for ref in self.refs if ref[0] == "@")


class Tokeniser:
    """Cuts text into pieces. `types` maps a module's type names to canonical ones, `aliases` a symbol to what it stands for."""

    def __init__(self, types: Mapping[str, str], aliases: Mapping[str, str]) -> None:
        self._types = types
        self._aliases = aliases
        # Every branch starts with a literal character: the scan between two matches is then one loop in C.
        branches = [rf"@{NAME}", r"!\d+", r"#\d+", r'"[^"]*"', r";[^\n]*"]
        if types:
            branches.append(pattern(types))
        self._tokens = re.compile(f"({'|'.join(branches)})")

    def piece(self, text: str) -> Piece:
        """`text` as a piece: comments and `!srcloc` dropped, strings left alone, types called by their content."""
        parts = self._tokens.split(text)
        types: dict[str, None] = {}
        others = [index for index in range(1, len(parts), 2) if parts[index][0] in _OTHERS]
        if others:
            parts = self._merged(parts, others, types)
        if ", !srcloc " in text:
            parts = _without_places(parts)
        tokens = parts[1::2]
        if self._aliases:
            tokens = [self._aliases.get(token, token) for token in tokens]
        refs = {ref: number for number, ref in enumerate(dict.fromkeys(tokens))}
        return Piece(parts[::2], [refs[token] for token in tokens], tuple(refs), tuple(types))

    def _merged(self, parts: list[str], others: list[int], types: dict[str, None]) -> list[str]:
        """`parts` with all but references joined to the literals beside them."""
        merged: list[str] = []
        run: list[str] = []  # what makes up the literal before the next reference
        done = 0
        for index in others:
            if index > done + 1:  # there are references in between
                merged.append("".join([*run, parts[done]]))
                merged += parts[done + 1 : index - 1]
                run = []
                done = index - 1
            token = parts[index]
            if token[0] == ";":
                run.append(parts[done].rstrip(" "))
            else:
                if token in self._types:
                    token = self._types[token]
                    types[token] = None
                run += (parts[done], token)
            done = index + 1
        merged.append("".join([*run, parts[done]]))
        merged += parts[done + 1 :]
        return merged


def _without_places(parts: list[str]) -> list[str]:
    kept = [parts[0]]
    for index in range(1, len(parts), 2):
        if parts[index][0] == "!" and kept[-1].endswith(_SOURCE_PLACE):
            kept[-1] = kept[-1][: -len(_SOURCE_PLACE)] + parts[index + 1]
        else:
            kept += parts[index : index + 2]
    return kept
