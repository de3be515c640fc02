"""What a PTX function does with an address: whether it calls through one, takes a function's, or no more than reads at a variable's.

A small, conservative data flow over one function's text: what it does not understand counts as the worst.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["READERS", "Call", "calls", "only_read"]

READERS = frozenset(("vprintf", "__assertfail"))
"""Functions of the device that read what they are given, and keep nothing of it."""

_CALL = re.compile(r"\bcall(?:\.uni)?\s+(?:\([^)]*\)\s*,\s*)?(?P<callee>[\w$%]+)\s*(?P<rest>[^;]*);")
_WORD = re.compile(r"[\w$%]+")
_END = re.compile(r";|\n\{|\{(?=\s*\.)|\}(?=\s*(?:\n|$))|:(?=\n)")
"""Where a statement ends, or a scope begins or ends."""
_INSTRUCTION = re.compile(r"(?:@!?[\w$%]+\s+)?(?P<opcode>[a-z][\w.:]*)\s+(?P<operands>[^;]*)")
_PASSED_ON = ("mov.", "add.", "sub.", "cvta.", "selp.", "mad.", "cvt.")
"""Instructions whose result is an address where an operand was one."""
_COMPARED = ("setp.", "isspacep.", "prefetch.", "prefetchu.")


class Call:
    """One call: whom, and what it is given."""

    def __init__(self, match: re.Match[str]) -> None:
        self.callee = match["callee"]
        self.arguments = frozenset(_WORD.findall(match["rest"]))
        self.start = match.start()


def calls(text: str) -> Iterator[Call]:
    """Every call in a body."""
    return (Call(match) for match in _CALL.finditer(text)) if "call" in text else iter(())


def only_read(text: str, symbol: str) -> bool:
    """Whether the body `text` does no more than load from `symbol`, and hand it to functions that do no more."""
    statements, places = _indexed(text)
    todo, seen = [symbol], {symbol}
    while todo:
        word = todo.pop()
        for place in places.get(word, ()):
            made = _use(text, *statements[place], word)
            if made is None:
                return False
            todo += made - seen
            seen |= made
    return True


@lru_cache(maxsize=32)
def _indexed(text: str) -> tuple[list[tuple[int, str]], dict[str, list[int]]]:
    """A body's statements, each with where it ends, and for each word those that hold it: a source may have hundreds of strings."""
    statements = list(_statements(text))
    places: dict[str, list[int]] = {}
    for place, (_, statement) in enumerate(statements):
        for word in set(_WORD.findall(statement)):
            places.setdefault(word, []).append(place)
    return statements, places


def _statements(text: str) -> Iterator[tuple[int, str]]:
    start = 0
    for match in _END.finditer(text):
        yield match.start(), text[start : match.start()]
        start = match.end()


def _use(text: str, end: int, statement: str, word: str) -> set[str] | None:
    """The registers that the statement makes addresses of, `word` being one; None where it escapes or is written through."""
    found = _INSTRUCTION.match(statement.strip())
    if found is None:
        return None
    opcode, operands = found["opcode"], found["operands"]
    target, _, rest = operands.partition(",")
    if opcode.startswith(_PASSED_ON) and "{" not in operands:
        return set(_WORD.findall(target)) if word in _WORD.findall(rest) else set()
    harmless = (
        (opcode.startswith("ld") and "[" in rest)
        or opcode.startswith(_COMPARED)
        or (opcode.startswith("st.param") and _handed_to_reader(text, end, target))
        or word not in _WORD.findall(operands)
    )
    return set() if harmless else None


def _handed_to_reader(text: str, start: int, target: str) -> bool:
    """Whether the parameter that was stored to goes to a function that only reads: the next call's."""
    match = _CALL.search(text, start)
    return match is not None and match["callee"] in READERS and bool(Call(match).arguments.intersection(_WORD.findall(target)))
