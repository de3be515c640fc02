"""What a source offers the others of its module: each function that they can call and each constant, as a text of its own.

A text holds one definition and what it alone reaches. Other exports are declared in it: so no function's text is made twice, what a
call leads to is followed through all sources alike, and a weak definition gives way wherever it is called.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from scons_gpu.split import signature
from scons_gpu.split.canonical import write
from scons_gpu.split.closure import plain
from scons_gpu.split.holding import Holding
from scons_gpu.split.index import Export, Offer, Type
from scons_gpu.split.state import GLOBAL_SPACES, SHARED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from scons_gpu.split.closure import Graph
    from scons_gpu.split.module import Function, Module, Variable
    from scons_gpu.split.pieces import Piece
    from scons_gpu.split.units import Splitter

__all__ = ["Exports", "as_linkage"]

_INLINE = ("linkonce_odr", "available_externally")
"""Linkage of what every source that uses it defines: it is never missing."""


class Exports:
    """Those of one source. Without other sources (`wanted` is false) nothing is offered, and nothing left out of any text."""

    def __init__(self, module: Module, graph: Graph, splitter: Splitter, *, wanted: bool) -> None:
        self._module = module
        self._graph = graph
        self._splitter = splitter
        self.wanted = wanted
        self._functions = [found for found in module.functions.values() if wanted and _offered(found)]
        self._variables = [found for found in module.variables.values() if wanted and self._is_offered(found)]
        both: list[Function | Variable] = [*self._functions, *self._variables]
        self.replaceable = frozenset(found.symbol for found in both if found.weak)
        """What another source may define for this one too."""
        kept = {found.symbol for found in self._variables if not found.weak and splitter.tables.hoisted(found)}
        self.left = frozenset(found.symbol for found in both) - kept
        """What texts of exports, and kernels that other sources may bring too, leave to be joined."""

    def _is_offered(self, variable: Variable) -> bool:
        """State is the link's, and shared memory each source's own, as CUDA has it: `extern __shared__` is what the launch gives."""
        seen = not variable.local and not variable.declared and variable.linkage not in _INLINE
        return seen and variable.symbol not in self._splitter.state and variable.space in GLOBAL_SPACES

    def all(self, put: Callable[[str], str]) -> tuple[Export, ...]:
        """Every export, sorted, its text put."""
        return tuple(sorted(self._all(put), key=lambda export: export.symbol))

    def _all(self, put: Callable[[str], str]) -> Iterator[Export]:
        offered = {found.symbol for found in self._functions}
        for function in self._module.functions.values():
            if not function.kernel and not function.local and function.linkage != "available_externally":
                offer = self._offer(function.symbol, put) if function.symbol in offered else None
                yield Export(symbol=plain(function.symbol), weak=function.weak, offer=offer)
        for variable in self._variables:
            yield Export(symbol=plain(variable.symbol), weak=variable.weak, offer=self._offer(variable.symbol, put))
        for alias, (symbol, weak) in self._module.alias_exports.items():
            offer = self._offer(symbol, put, alias=alias) if self.wanted and not weak else None
            yield Export(symbol=plain(alias), weak=weak, offer=offer)

    def _offer(self, symbol: str, put: Callable[[str], str], *, alias: str = "") -> Offer:
        splitter, module = self._splitter, self._module
        left = self.left - {symbol}
        symbols = splitter.as_declared(self._graph.members([symbol], stop=splitter.stop | left))
        holding = Holding(pinned=(symbol,), left=left, open=True)
        members = [splitter.member(name, symbols, holding) for name in symbols]
        if alias:  # a definition of that name: what an alias names is not inlined before the link
            members = [replace(member, name=alias) if member.symbol == symbol else member for member in members]
        written = write(module, members)
        lacking = splitter.lacking((symbol,), symbols, left=left)
        names = {member.symbol: plain(member.name) for member in members if member.name}
        return Offer(
            slice=put(written.text),
            name=names[symbol] if names[symbol] != plain(symbol) else "",
            bytes=len(written.text),
            type=self._type(symbol),
            state=self._memory(symbols, names),
            tables=splitter.tables_of(symbols, names),
            names=splitter.named_of(symbols),
            needs=lacking.needs,
            lacks=lacking.lacks,
            libdevice=lacking.libdevice,
            indirect=splitter.indirect(symbols),
            shared=splitter.shared_of(symbols),
            dynamic_shared=splitter.dynamic_shared(symbols),
            odr=(module.functions.get(symbol) or module.variables[symbol]).linkage == "weak_odr",
            refused=self._refused(symbols),
        )

    def _type(self, symbol: str) -> Type:
        if symbol in self._module.variables:
            return signature.of_variable(self._module.variables[symbol], self._module)
        head = self._module.functions[symbol].piece.text().partition(" {\n")[0]
        return signature.of_function(head, symbol, self._module.types)

    def _memory(self, symbols: Sequence[str], names: dict[str, str]) -> tuple[str, ...]:
        splitter = self._splitter
        kernels: Collection[str] = () if splitter.apart else self._graph.kernels
        return tuple(sorted(names.get(symbol, plain(symbol)) for symbol in symbols if symbol in splitter.state or symbol in kernels))

    def _refused(self, symbols: Sequence[str]) -> str:
        variables = [self._module.variables[symbol] for symbol in symbols if symbol in self._module.variables]
        if self._graph.needs_assembly(symbols):
            return "goes with assembly at file scope"
        if any(found.space == SHARED and found.linkage == "private" and not found.declared for found in variables):
            return "uses shared memory without a name"
        return ""


def _offered(function: Function) -> bool:
    seen = not function.kernel and not function.local and function.linkage not in _INLINE
    return seen and not plain(function.symbol).startswith("__nv_")


def as_linkage(piece: Piece, linkage: str) -> Piece:
    """A function's definition with other linkage than `internal`."""
    first = piece.literals[0].replace("define internal ", f"define {linkage}", 1)
    return replace(piece, literals=[first, *piece.literals[1:]], _shape="")
