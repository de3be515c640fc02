"""Text as it is kept between reading and writing: literals, and between them references that each unit names in its own way."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scons_gpu.split import digest
from scons_gpu.split.parse import pattern

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NAME", "Piece", "Tokeniser"]

NAME = r'(?:"[^"]*"|[-\w$.]+)'
"""A name behind its sigil. LLVM prints quotes and line breaks in names and strings as escapes, so a quote always ends one."""

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
            self._shape = digest.content(("\0".join(self.literals) + "\0\0" + ",".join(map(str, self.order))).encode())
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
        literals: list[str] = []
        order: list[int] = []
        refs: dict[str, int] = {}
        types: dict[str, None] = {}
        run = [parts[0]]  # what makes up the next literal
        for index in range(1, len(parts), 2):
            token, behind = parts[index], parts[index + 1]
            start = token[0]
            if start in "@!#":
                if start == "@" and self._aliases:
                    token = self._aliases.get(token, token)
                elif start == "!" and run[-1].endswith(_SOURCE_PLACE):
                    run[-1] = run[-1][: -len(_SOURCE_PLACE)]
                    run.append(behind)
                    continue
                literals.append(run[0] if len(run) == 1 else "".join(run))
                order.append(refs.setdefault(token, len(refs)))
                run = [behind]
            elif start == ";":
                run[-1] = run[-1].rstrip(" ")
                run.append(behind)
            else:
                if start == "%" and token in self._types:
                    token = self._types[token]
                    types[token] = None
                run += (token, behind)
        literals.append("".join(run))
        return Piece(literals, order, tuple(refs), tuple(types))
