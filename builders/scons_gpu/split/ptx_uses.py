"""What a PTX function does with an address: whether it calls through one, takes a function's, or no more than reads at a variable's.

A small, conservative data flow over one function's text: what it does not understand counts as the worst.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["READERS", "Call", "calls", "only_read"]

READERS = frozenset(("vprintf", "__assertfail"))
"""Functions of the device that read what they are given, and keep nothing of it."""

_CALL = re.compile(r"\bcall(?:\.uni)?\s+(?:\([^)]*\)\s*,\s*)?(?P<callee>[\w$%]+)\s*(?P<rest>[^;]*);")
_WORD = re.compile(r"[\w$%]+")
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
    if symbol not in text:
        return True
    statements = list(_statements(text))
    tainted, grown = {symbol}, True
    while grown:
        found: set[str] = set()
        for start, statement in statements:
            made = _use(text, start, statement, tainted)
            if made is None:
                return False
            found |= made
        grown = not found <= tainted
        tainted |= found
    return True


def _statements(text: str) -> Iterator[tuple[int, str]]:
    start = 0
    for match in re.finditer(r";|\n\{|\{(?=\s*\.)|\}(?=\s*(?:\n|$))|:(?=\n)", text):
        yield start, text[start : match.start()]
        start = match.end()


def _use(text: str, start: int, statement: str, tainted: Collection[str]) -> set[str] | None:
    """The registers that the statement makes addresses of; None where an address escapes or is written through."""
    if not any(word in tainted for word in _WORD.findall(statement)):
        return set()
    found = _INSTRUCTION.match(statement.strip())
    if found is None:
        return None
    opcode, operands = found["opcode"], found["operands"]
    target, _, rest = operands.partition(",")
    if opcode.startswith(_PASSED_ON) and "{" not in operands:
        return set(_WORD.findall(target)) if _holds(rest, tainted) else set()
    harmless = (
        (opcode.startswith("ld") and "[" in rest)
        or opcode.startswith(_COMPARED)
        or (opcode.startswith("st.param") and _handed_to_reader(text, start + len(statement), target))
        or not _holds(operands, tainted)
    )
    return set() if harmless else None


def _holds(text: str, words: Collection[str]) -> bool:
    return any(word in words for word in _WORD.findall(text))


def _handed_to_reader(text: str, start: int, target: str) -> bool:
    """Whether the parameter that was stored to goes to a function that only reads: the next call's."""
    match = _CALL.search(text, start)
    return match is not None and match["callee"] in READERS and bool(Call(match).arguments.intersection(_WORD.findall(target)))
