"""Canonical text: the same members give the same bytes, whatever else the source holds and in whatever order.

Types are called by their content (the reader did that), attribute groups and metadata are numbered by first use, private names too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.split import digest
from scons_gpu.split.pieces import NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scons_gpu.split.module import Module, Variable
    from scons_gpu.split.pieces import Piece

__all__ = ["Member", "Written", "variable_text", "write"]

_FLAG = re.compile(r'!?\{i32 \d+, !"([^"]*)"')
_FLAGS_DROPPED = frozenset(
    (
        "SDK Version",
        "wchar_size",
        "CUDA Language",
        "PIC Level",
        "PIE Level",
        "uwtable",
        "frame-pointer",
        "EnableSplitLTOUnit",
        "Virtual Function Elim",
        "CG Profile",
    )
)
_FLAGS_OF_DEBUG = frozenset(("Debug Info Version", "Dwarf Version", "DWARF64", "CodeView", "CodeViewGHash"))
_ROWS = "nvvm.annotations"


@dataclass(frozen=True)
class Member:
    """One global of a unit."""

    symbol: str
    piece: Piece
    name: str = ""
    """What the unit calls it; empty: a number, by first use."""
    local: bool = True
    """Whether the name is the unit's own affair: `body` then numbers it."""
    defined: bool = True
    kind: str = "function"
    """`variable`, `alias`, `declaration` or `function`: the order in which a text lists them."""


@dataclass(frozen=True)
class Written:
    """One canonical text."""

    text: str
    body: str
    """32 hex digits over the text with every local name numbered."""


def variable_text(variable: Variable, *, linkage: str) -> str:
    """A variable's line with this linkage: `external` declares it, empty defines it for all to see."""
    kind = "constant" if variable.constant else "global"
    space = f"addrspace({variable.space}) " if variable.space else ""
    outside = "externally_initialized " if variable.initialised_outside else ""
    if linkage in ("external", "extern_weak"):
        return f"{variable.symbol} = {linkage} {space}{outside}{kind} {variable.type}{variable.align}"
    shown = f"{linkage} " if linkage else ""
    tail = f"{variable.section}{variable.align}{variable.attachments}"
    return f"{variable.symbol} = {shown}{variable.unnamed}{space}{outside}{kind} {variable.type} {variable.initialiser}{tail}"


class _Names(dict[str, str]):
    """What a unit calls each reference. Symbols are put in beforehand, groups and nodes get the next number when first asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[str] = []
        self.nodes: list[str] = []

    def __missing__(self, ref: str) -> str:
        if ref[0] == "@":
            msg = f"{ref} is named and no member"
            raise KeyError(msg)
        numbered = self.groups if ref[0] == "#" else self.nodes
        self[ref] = name = f"{ref[0]}{len(numbered)}"
        numbered.append(ref)
        return name


def write(module: Module, members: Sequence[Member], *, assembly: Sequence[str] = (), used: bool = True) -> Written:
    """The text of these members, which come in the order of first use and are closed: whatever one names is among them.

    `used` says whether members that `llvm.used` and its like name are kept alive here too.
    """
    return _Writer(module, members, assembly).written(used=used)


class _Writer:
    def __init__(self, module: Module, members: Sequence[Member], assembly: Sequence[str]) -> None:
        self._module = module
        self._members = members
        self._assembly = assembly
        self._names = _Names()
        self._local: dict[str, str] = {}
        self._shapes: list[str] = []
        self._types: dict[str, None] = {}
        self._debug = False
        self._node_texts: dict[str, str] = {}
        self._done = 0
        self._call()

    def _call(self) -> None:
        """Gives every member its name. A number never meets a name that stands in the unit."""
        given = {member.name for member in self._members if member.name}
        number = 0
        for index, member in enumerate(self._members):
            name = member.name
            while not name or (not member.name and name in given):
                name = f"@__private.{number}"
                number += 1
            self._names[member.symbol] = name
            if member.local:
                self._local[member.symbol] = f"@{index}"

    def written(self, *, used: bool) -> Written:
        members = {self._names[member.symbol]: member for member in self._members}.values()  # tables of one content are one
        by_kind = {kind: [m for m in members if m.kind == kind] for kind in ("variable", "alias", "declaration", "function")}
        parts = [[self._piece(member.piece) for member in group] for group in by_kind.values()]
        kept = self._used() if used else []
        self._drain()
        flags = self._flags()
        rows = self._rows()
        self._drain()
        units = [node for node in self._names.nodes if node in self._module.compile_units]
        named = [("llvm.dbg.cu", units), ("llvm.module.flags", flags), (_ROWS, rows)]
        lines = [f"!{name} = !{{{', '.join(self._names[node] for node in nodes)}}}" for name, nodes in named if nodes]
        nodes = [f"{self._names[node]} = {self._node_texts[node]}" for node in self._names.nodes]
        groups = [f"attributes #{index} = {self._module.attributes[group]}" for index, group in enumerate(self._names.groups)]
        target = [f'target datalayout = "{self._module.layout}"', f'target triple = "{self._module.triple}"']
        types = self._type_lines()
        assembly = [f'module asm "{line}"' for line in self._assembly]
        sections = [target, types, assembly, [*parts[0], *kept], *parts[1:3], *([text] for text in parts[3]), groups, lines, nodes]
        text = "\n\n".join("\n".join(section) for section in sections if section) + "\n"
        body = digest.content("\n".join((*self._shapes, *target, *types, *assembly, *groups, *lines)).encode())
        return Written(text=text, body=body)

    def _piece(self, piece: Piece) -> str:
        for name in piece.types:
            self._types[name] = None
        text = piece.render(self._names)
        local, names = self._local, self._names
        self._shapes.append(piece.shape + " ".join([local.get(ref) or names[ref] for ref in piece.refs]))
        return text

    def _type_lines(self) -> list[str]:
        todo = list(self._types)
        for name in todo:
            for inner in re.findall(rf"%{NAME}", self._module.types[name]):
                if inner not in self._types:
                    self._types[inner] = None
                    todo.append(inner)
        return [f"{name} = type {self._module.types[name]}" for name in todo]

    def _used(self) -> list[str]:
        """`llvm.used` and its like, cut to members that nothing else keeps: kernels and state stay anyhow."""
        kept = {member.symbol for member in self._members if member.defined and member.local and member.kind != "alias"}
        kept -= {symbol for symbol in kept if symbol in self._module.functions and self._module.functions[symbol].kernel}
        lines = []
        for symbol, entries in self._module.used.items():
            pieces = ((self._module.tokeniser.piece(entry), entry) for entry in entries)
            mine = {piece.names()[0]: entry for piece, entry in pieces if piece.names()[0] in kept}
            if mine:
                ordered = [mine[member.symbol] for member in self._members if member.symbol in mine]
                self._names[symbol] = symbol
                text = f'{symbol} = appending global [{len(ordered)} x ptr] [{", ".join(ordered)}], section "llvm.metadata"'
                lines.append(self._piece(self._module.tokeniser.piece(text)))
        return lines

    def _drain(self) -> None:
        """Writes every node that was asked for, and those that these ask for; compile units last, when it is known what else stands."""
        nodes, later = self._names.nodes, list[str]()
        while self._done < len(nodes) or later:
            if self._done == len(nodes):
                self._compile_unit(later.pop(0))
                continue
            node = nodes[self._done]
            self._done += 1
            if node in self._module.compile_units:
                later.append(node)
            elif node not in self._node_texts:
                self._node_texts[node] = self._piece(self._module.metadata[node])

    def _compile_unit(self, node: str) -> None:
        self._debug = True
        unit = self._module.compile_units[node]
        text = self._piece(unit.piece)
        for field, list_node in unit.lists:
            elements = self._module.metadata[list_node].refs if list_node in self._module.metadata else ()
            kept = [self._names[element] for element in elements if element in self._names]
            if kept:
                key = f"{node} {field}"
                text = f"{text[:-1]}, {field}: {self._names[key]})"
                self._node_texts[key] = f"!{{{', '.join(kept)}}}"
                self._shapes.append(f"{field} {' '.join(kept)}")
        self._node_texts[node] = text

    def _flags(self) -> list[str]:
        """Module flags that matter to this text, by name."""
        rows = []
        for node in self._module.named_metadata.get("llvm.module.flags", ()):
            found = _FLAG.match(self._module.metadata[node].literals[0])
            name = found[1] if found else ""
            if name not in _FLAGS_DROPPED and (self._debug or name not in _FLAGS_OF_DEBUG):
                rows.append((name, self._module.metadata[node].literals, node))
        return self._ask(node for _, _, node in sorted(rows))

    def _rows(self) -> list[str]:
        """The annotations LLVM leaves in metadata (textures, surfaces, managed variables) of this unit's members."""
        place = {member.symbol: index for index, member in enumerate(self._members)}
        rows = []
        for node in self._module.named_metadata.get(_ROWS, ()):
            names = self._module.metadata[node].names()
            if names and all(name in place for name in names):
                rows.append((place[names[0]], self._module.metadata[node].literals, node))
        return self._ask(node for _, _, node in sorted(rows))

    def _ask(self, nodes: Iterable[str]) -> list[str]:
        asked = list(nodes)
        for node in asked:
            self._names[node]  # numbers it
        return asked
