"""What of a unit's text is other than before: which function, constant, variable or type. Reads canonical IR, and PTX.

A canonical text calls types and private constants by content or by number, and counts attribute groups and metadata from its own start.
So each is looked up before texts are compared: a table that changed is told as the table, not as every function that reads it.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

from scons_gpu.split.ptx_slice import is_ptx
from scons_gpu.split.readable import demangle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Difference", "differences"]

_SHOWN = 100
"""Characters of a line that are shown."""
_NAME = r'(?:[-\w$.\\]+|"[^"]*")'
_ITEM = re.compile(
    rf"^(?:(?P<function>define [^\n]*?@(?P<f>{_NAME})\([^\n]*\{{\n.*?^\}})|(?P<declared>declare [^\n]*?@(?P<d>{_NAME})\([^\n]*)"
    rf"|@(?P<v>{_NAME}) = (?P<variable>[^\n]*)|%(?P<t>{_NAME}) = type (?P<type>[^\n]*)|attributes (?P<g>#\d+) = (?P<group>[^\n]*)"
    r"|(?P<n>!\d+) = (?P<node>[^\n]*)|!(?P<m>[-\w$.\\]+) = (?P<named>[^\n]*)|(?P<rest>(?:module asm|target) [^\n]*))",
    re.MULTILINE | re.DOTALL,
)
_PRIVATE = re.compile(r"__private[._]\d+")
_CONTENT = re.compile(r"[._$][0-9a-f]{16}(?:[._$]\d+)?$")
"""The end of a name that is made of content: a private table's, in an image."""
_REFERENCE = re.compile(rf'"[^"]*"|@(?:{_NAME})|%(?:{_NAME})|#\d+|!\d+')
_PTX_FUNCTION = re.compile(
    r"^(?:\.(?:visible|weak|extern) )*\.(?P<kind>entry|func)\s+(?:\([^)]*\)\s*)?(?P<name>[\w$%]+)[^;{]*?(?:;|\{.*?^\})",
    re.MULTILINE | re.DOTALL,
)
_PTX_VARIABLE = re.compile(
    r"^(?:\.(?:visible|weak|extern|common) )*\.(?:const|global|shared)\b[^=;\[]*?(?P<name>[\w$%]+)(?=\s*[\[=;])[^;]*;", re.MULTILINE
)
_PTX_HEADER = re.compile(r"^\.(?:version|target|address_size|pragma|file)\b[^\n]*", re.MULTILINE)


@dataclass(frozen=True)
class Difference:
    """One thing in a unit's text."""

    what: str
    """kernel, function, declaration, constant, variable, type, assembly, target, metadata."""
    name: str
    """Readable."""
    change: str
    """`changed`, `added` or `removed`."""
    then: str = ""
    now: str = ""
    """The first line that differs, cut; of a type, its members."""

    def to_json(self) -> dict[str, str]:
        """Without what is empty."""
        return {name: value for name, value in asdict(self).items() if value}


def differences(then: str, now: str) -> tuple[Difference, ...]:
    """What is other in the unit's text; a thing that only changed what it names is not told."""
    read = _read_ptx if is_ptx(then) or is_ptx(now) else _read
    old, new = read(then), read(now)
    _pair(old, new)
    return tuple(_compared(old, new))


@dataclass
class _Item:
    what: str
    name: str
    text: str
    key: str = ""
    """What tells it from others in both texts; the name, where that is its own."""


@dataclass
class _Text:
    items: list[_Item] = field(default_factory=list)
    expanded: dict[str, str] = field(default_factory=dict)
    """`#0`, `!3` → what it stands for."""
    renamed: dict[str, str] = field(default_factory=dict)
    """`%t.…`, `@__private.0` → what both texts call it."""

    def of(self, *kinds: str) -> list[_Item]:
        return [item for item in self.items if item.what in kinds]

    def canonical(self, text: str) -> str:
        """With what it names called alike in both texts."""
        return _REFERENCE.sub(lambda match: self.renamed.get(match[0]) or self.expanded.get(match[0]) or match[0], text)


def _read(text: str) -> _Text:
    found = _Text()
    nodes: dict[str, str] = {}
    for match in _ITEM.finditer(text):
        kind = next(name for name in _MAKE if match[name] is not None)
        if kind == "group":
            found.expanded[match["g"]] = match["group"]
        elif kind == "node":
            nodes[match["n"]] = match["node"]
        else:
            found.items.append(_MAKE[kind](match))
    found.expanded |= {name: _node(name, nodes, ()) for name in nodes}
    return found


def _node(name: str, nodes: Mapping[str, str], inside: tuple[str, ...]) -> str:
    """A metadata node with those that it names written out, to a depth that tells nodes apart."""
    if name in inside or len(inside) > 3 or name not in nodes:
        return "!"
    return re.sub(r'"[^"]*"|!\d+', lambda match: _node(match[0], nodes, (*inside, name)) if match[0][0] == "!" else match[0], nodes[name])


def _function(match: re.Match[str]) -> _Item:
    kernel = re.match(r"define [^@]*\bptx_kernel\b", match["function"])
    return _Item("kernel" if kernel else "function", match["f"], match["function"])


def _variable(match: re.Match[str]) -> _Item:
    constant = re.match(r"(?:[\w()]+ )*?constant ", match["variable"])
    return _Item("constant" if constant else "variable", match["v"], match["variable"])


_MAKE: Mapping[str, Callable[[re.Match[str]], _Item]] = {
    "function": _function,
    "declared": lambda match: _Item("declaration", match["d"], match["declared"]),
    "variable": _variable,
    "type": lambda match: _Item("type", match["t"], match["type"]),
    "group": lambda match: _Item("group", match["g"], match["group"]),
    "node": lambda match: _Item("node", match["n"], match["node"]),
    "named": lambda match: _Item("metadata", match["m"], match["named"]),
    "rest": lambda match: _Item(
        "assembly" if match["rest"][0] == "m" else "target", match["rest"].partition('"')[0].strip(), match["rest"]
    ),
}


def _read_ptx(text: str) -> _Text:
    found = _Text()
    for match in _PTX_FUNCTION.finditer(text):
        what = "kernel" if match["kind"] == "entry" else "function" if match[0].endswith("}") else "declaration"
        found.items.append(_Item(what, match["name"], match[0]))
    rest = _PTX_FUNCTION.sub("", text)
    for match in _PTX_VARIABLE.finditer(rest):
        found.items.append(_Item("constant" if ".const" in match[0].partition("=")[0] else "variable", match["name"], match[0]))
    found.items += [_Item("target", match[0].split()[0], match[0]) for match in _PTX_HEADER.finditer(rest)]
    return found


def _pair(old: _Text, new: _Text) -> None:
    """Gives what has no name of its own a key: by content where both texts have it, then in the order of use."""
    for kinds in (("type",), ("constant", "variable")):
        mine, theirs = ([item for item in text.of(*kinds) if _is_nameless(item)] for text in (old, new))
        _meet(mine, theirs, old, new)
    for text in (old, new):
        for item in text.items:
            item.key = item.key or item.name


def _is_nameless(item: _Item) -> bool:
    return item.what == "type" or bool(_PRIVATE.fullmatch(item.name) or _CONTENT.search(item.name))


def _meet(mine: list[_Item], theirs: list[_Item], old: _Text, new: _Text) -> None:
    there = {(_stem(item), item.text): item for item in reversed(theirs)}
    left: list[_Item] = []
    for item in mine:
        same = there.pop((_stem(item), item.text), None)
        if same is None:
            left.append(item)
        else:
            _name(item, same, old, new)
    rest = [item for item in theirs if not item.key]
    for number, (item, other) in enumerate(zip_longest(left, rest), start=1):
        _name(item, other, old, new, number)


def _name(item: _Item | None, other: _Item | None, old: _Text, new: _Text, number: int = 0) -> None:
    shown = item or other
    assert shown is not None  # noqa: S101 - one of the two is there
    key = f"{_stem(shown)} {number}" if number else f"{_stem(shown)} {shown.text}"
    sigil = "%" if shown.what == "type" else "@"
    for one, text in ((item, old), (other, new)):
        if one is not None:
            one.key = key
            text.renamed[f"{sigil}{one.name}"] = f"{sigil}[{key}]"


def _stem(item: _Item) -> str:
    if item.what == "type":
        return ""
    return "private" if _PRIVATE.fullmatch(item.name) else _CONTENT.sub("", item.name)


def _compared(old: _Text, new: _Text) -> Iterator[Difference]:
    before, after = ({(_class(item), item.key): item for item in text.items} for text in (old, new))
    for place in dict.fromkeys((*after, *before)):
        one, other = before.get(place), after.get(place)
        if one is None or other is None:
            shown = one or other
            assert shown is not None  # noqa: S101 - one of the two is there
            if shown.what not in ("declaration", "target"):  # they follow from what is called
                yield Difference(shown.what, _shown(shown), "added" if one is None else "removed", **_side(shown, one is None))
            continue
        texts = old.canonical(one.text), new.canonical(other.text)
        if texts[0] != texts[1]:
            yield Difference(other.what, _shown(other), "changed", *_lines(one, other, *texts))


def _class(item: _Item) -> str:
    """A function that became a kernel, or a variable that became constant, is the same thing changed."""
    return {"kernel": "function", "constant": "variable"}.get(item.what, item.what)


def _shown(item: _Item) -> str:
    if item.what == "type":
        return "struct"
    if _PRIVATE.fullmatch(item.name):
        return "(private)"
    return demangle(_CONTENT.sub("", item.name) if item.what in ("constant", "variable") else item.name.strip('"'))


def _side(item: _Item, added: bool) -> dict[str, str]:  # noqa: FBT001 - which of two
    return {"now" if added else "then": _cut(item.text)[0]} if item.what in ("type", "constant", "variable") else {}


def _lines(one: _Item, other: _Item, then: str, now: str) -> tuple[str, str]:
    """The first line that differs, as it stands in each text; with what it names written out, where only that differs."""
    pairs = zip_longest(then.splitlines(), now.splitlines(), fillvalue="")
    place, told = next((number, pair) for number, pair in enumerate(pairs) if pair[0] != pair[1])
    shown = tuple(next(iter(text.splitlines()[place : place + 1]), "") for text in (one.text, other.text))
    return _cut(*(shown if shown[0] != shown[1] else told))


def _cut(line: str, other: str = "") -> tuple[str, str]:
    """Two lines where they differ."""
    texts = [" ".join(text.split()) for text in (line, other)]
    same = next((place for place, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    start = max(0, same - _SHOWN // 2) if other and max(map(len, texts)) > _SHOWN else 0
    first, second = (_short(text, start) for text in texts)
    return first, second


def _short(text: str, start: int) -> str:
    shown = f"...{text[start:]}" if start else text
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
