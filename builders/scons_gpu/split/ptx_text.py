"""Canonical PTX: what a function's text, a variable's and a header's come to once nothing is left in them that does not matter.

Comments and blanks go, labels are numbered by first use. Lines stay lines, so that an assembler's message has one to name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.source.ptx_reader import LOC, NAME, plain
from scons_gpu.split.pieces import Piece

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["Declarator", "body", "cut", "declarators", "head", "labels", "renamed"]

_WORD = re.compile(r'("[^"\n]*"|[\w$%.]+)')
"""A symbol is never less than a whole run of these: a register, an opcode and a number are other runs."""
_LOC = re.compile(LOC)
_BEHIND = re.compile(rf"{NAME}\s*$")
_INNER = re.compile(r"[\w$.%]")
_DEPOT = re.compile(r"__local_depot\d+")
_COUNTED = re.compile(r"\d+(?:_\d+)*$")
_LINKAGE = re.compile(r"^\.(?:extern|visible|weak|common)\s+")
_PARENTHESES = r"\((?:[^()]|\([^()]*\))*\)"
_VARIABLE = re.compile(
    rf"(?P<space>\.(?:global|const|shared|tex))\b(?P<modifiers>(?:\s*\.\w+\s*(?:{_PARENTHESES}|\d+\b)?)*)\s*(?P<rest>.+);", re.DOTALL
)
_DECLARED = re.compile(
    r"\s*(?P<name>[A-Za-z_$%][\w$]*)(?:<(?P<count>\d+)>)?\s*(?P<sizes>(?:\[[^\]]*\]\s*)*)(?:=\s*(?P<value>.+))?", re.DOTALL
)
_ALIGN = re.compile(r"\.align\s*(\d+)")
_VECTOR = re.compile(r"\.v([248])\b")
_BITS = re.compile(r"\.[a-z]+(\d+)(x2)?$")
_POINTER = 8
"""Bytes of what has no size in its type: a texture, sampler or surface reference."""


@dataclass(frozen=True)
class Declarator:
    """One variable of a declaration."""

    name: str
    space: str
    """`global`, `const`, `shared` or `tex`."""
    start: str
    """Its text up to the name, without a linkage: `.global .align 4 .b8`."""
    sizes: str
    """`[4][2]`, an open first one closed by what the initial value has; empty for no array."""
    value: str
    """Its initial value as text; empty for none."""
    bytes: int
    align: int

    @property
    def declared(self) -> str:
        """Its text without linkage and value."""
        return f"{self.start} {self.name}{self.sizes}"

    @property
    def text(self) -> str:
        """The definition without linkage."""
        return f"{self.declared} = {self.value};" if self.value else f"{self.declared};"


def declarators(text: str) -> list[Declarator]:
    """Every variable that one statement declares; none where it does not read."""
    match = _VARIABLE.fullmatch(_LINKAGE.sub("", plain(text)))
    if match is None:
        return []
    start = " ".join(f"{match['space']} {match['modifiers']}".split())
    found: list[Declarator] = []
    for each in _parts(match["rest"]):
        declared = _DECLARED.fullmatch(each)
        if declared is None:
            return []
        count = declared["count"]
        names = [declared["name"]] if count is None else [f"{declared['name']}{number}" for number in range(int(count))]
        found += (_declarator(name, match["space"][1:], start, declared) for name in names)
    return found


def _declarator(name: str, space: str, start: str, declared: re.Match[str]) -> Declarator:
    value = (declared["value"] or "").strip()
    lengths = re.findall(r"\[([^\]]*)\]", declared["sizes"])
    if lengths and not lengths[0].strip() and value.startswith("{"):
        lengths[0] = str(len(_parts(value[1:-1])))
    vector, align, bits = _VECTOR.search(start), _ALIGN.search(start), _BITS.search(start)
    element = (int(bits[1]) // 8 * (2 if bits[2] else 1) if bits else _POINTER) * (int(vector[1]) if vector else 1)
    total = element
    for length in lengths:
        total *= _number(length)
    sizes = "".join(f"[{length.strip()}]" for length in lengths)
    return Declarator(
        name=name, space=space, start=start, sizes=sizes, value=value, bytes=total, align=int(align[1]) if align else max(element, 1)
    )


def _number(text: str) -> int:
    try:
        return int(text.strip().rstrip("uU") or "0", 0)
    except ValueError:
        return 0


def _parts(text: str) -> list[str]:
    """What stands between the commas that no bracket encloses."""
    parts, depth, begin = [], 0, 0
    for match in re.finditer(r'"[^"\n]*"|[,(){}\[\]]', text):
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(match[0], 0)
        if match[0] == "," and depth == 0:
            parts.append(text[begin : match.start()])
            begin = match.end()
    return [*parts, text[begin:]]


def head(text: str) -> str:
    """A function's text up to its body or semicolon, on one line and without a linkage: `.entry k(.param .u64 p) .maxntid 32`."""
    tight = re.sub(r"\s*([(),])\s*", r"\1", _LINKAGE.sub("", plain(text)))
    return re.sub(r"^(\.\w+)\(", r"\1 (", tight).replace(",", ", ").replace(")", ") ").rstrip()


def body(text: str, *, lines: bool, symbols: Collection[str]) -> str:
    """A function's body between its braces: without blanks, without `.loc` unless `lines`, its labels numbered by first use."""
    placed = _LOC.sub(r"\n.loc \g<file>\g<line>\n" if lines else "\n", text) if ".loc" in text else text
    kept = "\n".join(_line(line) for line in placed.split("\n") if line and not line.isspace())
    return _relabelled(kept, symbols)


def _line(line: str) -> str:
    if '"' not in line:
        return " ".join(line.split())
    return "".join(each if each[:1] == '"' else re.sub(r"\s+", " ", each) for each in re.split(r'("[^"]*")', line)).strip()


def labels(text: str) -> list[str]:
    """What stands before a colon, each name once: labels, and lists of the targets of a branch or call. Colons are rare, words are not."""
    found, at = dict[str, None](), text.find(":")
    while at >= 0:
        if text[at + 1 : at + 2] == ":":  # `.L2::128B`
            at += 1
        elif match := _BEHIND.search(text, max(0, text.rfind("\n", 0, at)), at):
            found[match[0].rstrip()] = None
        at = text.find(":", at + 1)
    return list(found)


def _relabelled(text: str, symbols: Collection[str]) -> str:
    """Compilers count labels through a whole module, so that another function would change these."""
    named = [*labels(text), *(_DEPOT.findall(text) if "__local_depot" in text else ())]
    names: dict[str, str] = {}
    counts: dict[str, int] = {}
    for name in dict.fromkeys(name for name in named if name[-1].isdigit()):
        stem = _COUNTED.sub("", name)
        counts[stem] = counts.get(stem, -1) + 1
        names[name] = f"{stem}_{counts[stem]}"
    if not names or not names.keys().isdisjoint(symbols) or any(re.search(rf"{re.escape(stem)}_\d+(?![\w$])", text) for stem in counts):
        return text
    pattern = re.compile("|".join(rf"{re.escape(stem)}\d+(?:_\d+)*(?![\w$])" for stem in sorted(counts, key=len, reverse=True)))
    return pattern.sub(lambda match: _renumbered(match, names), text)


def _renumbered(match: re.Match[str], names: dict[str, str]) -> str:
    """The tail of a longer word is no label."""
    begins = match.start() == 0 or not _INNER.match(match.string, match.start() - 1)
    return names.get(match[0], match[0]) if begins else match[0]


def cut(text: str, symbols: Collection[str], *, aliases: dict[str, str], owner: str = "") -> Piece:
    """`text` with a reference `@name` for each of `symbols`, `#n` for a file of a `.loc`, and the parameters of `owner` called after it."""
    parts = _WORD.split(text)
    words = parts[1::2]
    own = f"{owner}_param_"
    wanted = {word: f"@{aliases.get(word, word)}" for word in set(words) if word in symbols}
    wanted |= {word: f"@{owner}" for word in set(words) if owner and word.startswith(own) and word not in wanted}
    places = [place for place, word in enumerate(words) if word in wanted and not (word in _BARE and _is_opcode(parts, 2 * place + 1))]
    lines = {place + 1 for place, word in enumerate(words) if word == ".loc"} if ".loc" in text else set[int]()
    literals, order, refs, done = list[str](), list[int](), dict[str, int](), 0
    for place in sorted(lines.union(places)):
        word, index = words[place], 2 * place + 1
        order.append(refs.setdefault(f"#{word}" if place in lines else wanted[word], len(refs)))
        literals.append("".join(parts[done:index]))
        tail = owner and place not in lines and word.startswith(own) and word not in symbols
        parts[index] = word[len(owner) :] if tail else ""
        done = index
    return Piece([*literals, "".join(parts[done:])], order, tuple(refs))


_BARE = frozenset(("bra", "brkpt", "call", "exit", "nop", "ret", "trap"))
"""Opcodes that may stand without a modifier, and so read like a symbol."""


def _is_opcode(parts: list[str], index: int) -> bool:
    before = parts[index - 1].rstrip(" \n")
    return before[-1:] not in {",", "[", "(", "="} and not (parts[index - 2].startswith("call") and index > 1)


def renamed(text: str, names: dict[str, str]) -> str:
    """A slice with some of its symbols called otherwise."""
    if not names:
        return text
    parts = _WORD.split(text)
    parts[1::2] = [names.get(word, word) for word in parts[1::2]]
    return "".join(parts)
