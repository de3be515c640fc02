"""What a kernel names, and what that names: the members of a unit, in the order of first use."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from scons_gpu.split.module import Module, Variable
    from scons_gpu.split.pieces import Piece

__all__ = ["Graph", "components", "plain"]

_INDIRECT_CALL = re.compile(r'\bcall [^\n]*%(?:"[^"\n]*"|[-\w$.]+)\(')
_ASM_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ASM_KERNEL = re.compile(r"\.entry\s+([A-Za-z_$%][\w$]*)")
_ASM_VISIBLE = re.compile(r"\.(?:visible|weak|common)\s+\.(?:global|const)\b[^;={]*?\.[bsuf]\d+\s+([A-Za-z_$%][\w$]*)")
_ASM_DEFINES = re.compile(r"\.(?:[bsuf]\d+|pred|texref|samplerref|surfref|entry|func(?:\s*\([^)]*\))?)\s+([A-Za-z_$%][\w$]*)")
_NODE = re.compile(r"!\d+")
_ASM_NAMES = re.compile(r"[A-Za-z_$%][\w$]*")


def plain(symbol: str) -> str:
    """A symbol as tools and people know it: without `@`, quotes and LLVM's escapes."""
    name = symbol[1:]
    if name[:1] != '"':
        return name
    data = re.sub(rb"\\([0-9A-Fa-f]{2})", lambda found: bytes([int(found[1], 16)]), name[1:-1].encode())
    return data.decode(errors="replace")


class Graph:
    """Who names whom in one module."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._carriers = self._metadata_names()
        self.names: dict[str, tuple[str, ...]] = {}
        for symbol, function in module.functions.items():
            self.names[symbol] = self._of(function.piece)
        for symbol, variable in module.variables.items():
            self.names[symbol] = self._of_variable(variable)
        for symbol, piece in module.aliases.items():
            self.names[symbol] = self._of(piece)
        self.kernels = {symbol for symbol, function in module.functions.items() if function.kernel}
        self.assembly_defines: set[str] = set()
        self.assembly_names: tuple[str, ...] = ()
        self.assembly_kernels: tuple[str, ...] = ()
        self.assembly_visible: tuple[str, ...] = ()
        """Variables that the host may know by name."""
        if module.assembly:
            self._read_assembly()

    def _of(self, piece: Piece) -> tuple[str, ...]:
        names = piece.names()
        if self._carriers:
            more = [name for ref in piece.refs if ref in self._carriers for name in self._carriers[ref]]
            return tuple(dict.fromkeys((*names, *more)))
        return names

    def _of_variable(self, variable: Variable) -> tuple[str, ...]:
        if not (self._carriers and variable.attachments):
            return variable.names
        attached = [name for ref in _NODE.findall(variable.attachments) for name in self._carriers.get(ref, ())]
        return tuple(dict.fromkeys((*variable.names, *attached)))

    def _metadata_names(self) -> dict[str, tuple[str, ...]]:
        """Metadata nodes that lead to a global (`!callees`, a template's argument in debug info), and which."""
        metadata = self._module.metadata
        found = {node: dict.fromkeys(piece.names()) for node, piece in metadata.items() if piece.names()}
        parents: dict[str, list[str]] = {}
        if found:
            for node, piece in metadata.items():
                for ref in piece.refs:
                    parents.setdefault(ref, []).append(node)
        todo = list(found)
        while todo:
            node = todo.pop()
            for parent in parents.get(node, ()):
                known = found.setdefault(parent, {})
                if not known.keys() >= found[node].keys():
                    known.update(found[node])
                    todo.append(parent)
        return {node: tuple(sorted(names)) for node, names in found.items()}

    def members(self, roots: Iterable[str], *, stop: Collection[str] = ()) -> list[str]:
        """The roots and all they lead to, breadth first; of what is in `stop` the names are not followed, of roots they are."""
        seen = dict.fromkeys(roots)
        todo = list(seen)
        first = len(todo)
        for index, symbol in enumerate(todo):
            if index >= first and symbol in stop:
                continue
            for name in self.names.get(symbol, ()):
                if name not in seen:
                    seen[name] = None
                    todo.append(name)
        return todo

    def users(self, symbols: Collection[str]) -> dict[str, list[str]]:
        """For each of `symbols`, who names it."""
        found: dict[str, list[str]] = {symbol: [] for symbol in symbols}
        for user, names in self.names.items():
            for name in names:
                if name in found and name != user:
                    found[name].append(user)
        return found

    def calls_through_memory(self, symbol: str) -> bool:
        """Whether a function calls what it does not name."""
        return _INDIRECT_CALL.search(self._module.functions[symbol].piece.text()) is not None

    def calls(self, user: str, symbol: str) -> bool:
        """Whether a function calls another by name, rather than to compare or pass on its address."""
        if user not in self._module.functions:
            return False
        piece = self._module.functions[user].piece
        return any(piece.refs[index] == symbol and piece.literals[place + 1].startswith("(") for place, index in enumerate(piece.order))

    def taken(self, symbol: str) -> bool:
        """Whether a member takes a function's address: names it anywhere but in front of a call's arguments."""
        functions = self._module.functions
        if symbol not in functions:
            return any(name in functions for name in self.names.get(symbol, ()))
        piece = functions[symbol].piece
        wanted = {index for index, ref in enumerate(piece.refs) if ref in functions}
        places = enumerate(piece.order)
        return any(index in wanted and not piece.literals[place + 1].startswith("(") for place, index in places)

    def _read_assembly(self) -> None:
        text = "\n".join(self._module.assembly).replace("\\09", "\t").replace("\\22", '"')
        code = _ASM_COMMENT.sub(" ", text)
        self.assembly_kernels = tuple(_ASM_KERNEL.findall(code))
        self.assembly_visible = tuple(_ASM_VISIBLE.findall(code))
        self.assembly_defines = set(_ASM_DEFINES.findall(text))
        words = set(_ASM_NAMES.findall(text))
        module = self._module
        known = (*module.functions, *module.variables, *module.declarations)
        self.assembly_names = tuple(sorted(symbol for symbol in known if plain(symbol) in words))

    def needs_assembly(self, members: Sequence[str]) -> bool:
        """Whether members name what the file's assembly names or defines, in IR or in assembly of their own."""
        if not self._module.assembly:
            return False
        if not set(self.assembly_names).isdisjoint(members):
            return True
        texts = (self._module.functions[symbol].piece.text() for symbol in members if symbol in self._module.functions)
        inline = {word for text in texts if " asm " in text for word in _ASM_NAMES.findall(text)}
        return not self.assembly_defines.isdisjoint(inline)


def components(keys: Mapping[str, Iterable[tuple[str, str]]]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Kernels that must be one unit, and why. `keys` gives each kernel its (reason, thing): those that share a thing belong together.

    Transitive; kernels and reasons sorted, so nothing depends on the order of the source.
    """
    parent = {kernel: kernel for kernel in keys}

    def find(kernel: str) -> str:
        while parent[kernel] != kernel:
            parent[kernel] = parent[parent[kernel]]
            kernel = parent[kernel]
        return kernel

    first: dict[tuple[str, str], str] = {}
    shared: list[tuple[str, str]] = []
    for kernel, things in keys.items():
        for thing in things:
            if thing in first and first[thing] != kernel:
                parent[find(kernel)] = find(first[thing])
                shared.append((thing[0], kernel))
            first.setdefault(thing, kernel)
    groups: dict[str, list[str]] = {}
    for kernel in keys:
        groups.setdefault(find(kernel), []).append(kernel)
    reasons: dict[str, set[str]] = {}
    for reason, kernel in shared:
        reasons.setdefault(find(kernel), set()).add(reason)
    return sorted((tuple(sorted(group)), tuple(sorted(reasons.get(root, ())))) for root, group in groups.items())
