"""Slices of PTX: the same members give the same bytes, whatever else the source holds and in whatever order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.errors import SourceError
from scons_gpu.split import digest, ptx_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from scons_gpu.split.pieces import Piece
    from scons_gpu.split.ptx_graph import PtxGraph
    from scons_gpu.split.ptx_module import PtxModule, Variable

__all__ = ["Writer", "Written"]

_COUNTED = re.compile(r"\$str|.*\d")
"""Names of compilers that they count through a module."""


@dataclass(frozen=True)
class Written:
    """One canonical text."""

    text: str
    body: str
    """32 hex digits over the text with every local name numbered."""


class _Names(dict[str, str]):
    """What a slice calls each reference. Files of `.loc` get the next number when first asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[str] = []

    def __missing__(self, ref: str) -> str:
        self.files.append(ref[1:])
        self[ref] = number = str(len(self.files))
        return number


class Writer:
    """Writes the slices of one module in one form."""

    def __init__(self, module: PtxModule, graph: PtxGraph, *, apart: bool) -> None:
        self._module = module
        self._graph = graph
        self._apart = apart
        self._place = {name: index for index, name in enumerate(module.variables)}
        self._declared: dict[str, Piece] = {}

    def unit(self, kernels: Sequence[str], members: Sequence[str]) -> Written:
        """A unit of these kernels, whose members come in the order of first use."""
        return self._written(kernels, members, state=self._seen)

    def state(self) -> Written:
        """The definitions of all that is state, with the functions that initial values lead to."""
        return self._defining(sorted(self._graph.state))

    def definition(self, name: str) -> Written:
        """One of them alone, so that equal ones of two sources are told."""
        return self._defining([name])

    def _defining(self, names: Sequence[str]) -> Written:
        return self._written((), self._graph.members(names, stop=self._graph.kernels), state=self._seen_from_outside)

    def _written(self, kernels: Collection[str], members: Sequence[str], *, state: Callable[[Variable], tuple[str, Piece]]) -> Written:
        module = self._module
        variables = self._variables(members)
        functions = [name for name in members if name in module.functions]
        bodies = [name for name in functions if module.functions[name].defined and (name in kernels or not module.functions[name].entry)]
        bodies = _callees_first(bodies, self._graph.names)
        outside = [name for name in functions if name not in set(bodies)]
        late = self._late([*variables, *bodies])
        names, local = self._names(members, outside)
        sections = [
            [self._outside(name) for name in outside],
            [(".visible " if module.functions[name].entry else "", self._prototype(name)) for name in late],
            [self._variable(module.variables[name], state) for name in variables],
            *([self._function(name)] for name in bodies),
        ]
        header = [f".version {module.version}", f".target {', '.join(module.target)}", ".address_size 64", *module.pragmas]
        texts = [[prefix + piece.render(names) for prefix, piece in section] for section in sections]
        files = [f".file {names[f'#{number}']} {self._file(number)}" for number in names.files]
        shapes = [
            prefix + piece.shape + " ".join([local.get(ref) or names[ref] for ref in piece.refs])
            for section in sections
            for prefix, piece in section
        ]
        text = "\n\n".join("\n".join(section) for section in [header, *texts, files] if section) + "\n"
        return Written(text=text, body=digest.content("\n".join((*header, *shapes, *files)).encode()))

    def _names(self, members: Sequence[str], outside: Collection[str]) -> tuple[_Names, dict[str, str]]:
        """What each member is called, and a number for each that nobody outside knows."""
        names, local, count = _Names(), dict[str, str](), 0
        for index, name in enumerate(members):
            variable = self._module.variables.get(name)
            names[f"@{name}"] = name
            if name in outside or (variable and (variable.declared or name in self._graph.state)):
                continue
            local[f"@{name}"] = f"@{index}"
            if variable and variable.space != "shared" and _COUNTED.fullmatch(name):
                names[f"@{name}"], count = f"__private_{count}", count + 1
        return names, local

    def _file(self, number: str) -> str:
        if number not in self._module.files:
            msg = f"a .loc names file {number}, and there is no .file of that number"
            raise SourceError(msg)
        return self._module.files[number]

    def _variables(self, members: Sequence[str]) -> list[str]:
        """Those of a function in the source's order: assemblers lay them out so, and code follows. What a value names comes before it."""
        found = [name for name in members if name in self._module.variables]
        waiting = set(found)
        place = {name: index for index, name in enumerate(found)}
        for user in members if len(waiting) > 1 else ():
            own = [name for name in self._graph.names.get(user, ()) if name in waiting]
            waiting.difference_update(own)
            places = sorted(place[name] for name in own)
            for index, name in zip(places, sorted(own, key=self._place.__getitem__), strict=True):
                found[index] = name
        return _callees_first(found, self._graph.names)

    def _late(self, order: Sequence[str]) -> list[str]:
        """Functions that are named before their body stands."""
        functions, placed, late = self._module.functions, set[str](), dict[str, None]()
        bodies = {name for name in order if name in functions}
        for name in order:
            placed.add(name)
            late.update((each, None) for each in self._graph.names[name] if each in bodies and each not in placed)
        return list(late)

    def _outside(self, name: str) -> tuple[str, Piece]:
        linkage = self._module.functions[name].linkage
        return ".weak " if linkage == "weak" and not self._module.functions[name].defined else ".extern ", self._prototype(name)

    def _prototype(self, name: str) -> Piece:
        piece = self._module.functions[name].prototype
        if piece is None:
            msg = f"{name} has no prototype: this is a bug"
            raise AssertionError(msg)
        return piece

    def _function(self, name: str) -> tuple[str, Piece]:
        function = self._module.functions[name]
        if function.piece is None:
            msg = f"{name} has no body: this is a bug"
            raise AssertionError(msg)
        return ".visible " if function.entry else "", function.piece

    def _variable(self, variable: Variable, state: Callable[[Variable], tuple[str, Piece]]) -> tuple[str, Piece]:
        if variable.declared:
            return ".extern ", variable.piece
        return state(variable) if variable.name in self._graph.state else ("", variable.piece)

    def _seen(self, variable: Variable) -> tuple[str, Piece]:
        """State as a unit has it: declared where another object defines it, else as the source has it."""
        if not self._apart:
            return f".{variable.linkage} " if variable.linkage else "", variable.piece
        if variable.name not in self._declared:
            self._declared[variable.name] = ptx_text.cut(f"{variable.declarator.declared};", {variable.name}, aliases={})
        return ".extern ", self._declared[variable.name]

    def _seen_from_outside(self, variable: Variable) -> tuple[str, Piece]:
        return f".{variable.linkage or 'visible'} ", variable.piece


def _callees_first(names: Sequence[str], graph: dict[str, tuple[str, ...]]) -> list[str]:
    """`names` so that what one names comes before it, where that can be."""
    wanted, done = set(names), dict[str, None]()
    for root in names:
        stack: list[tuple[str, Iterator[str]]] = [(root, iter(_inner(root, graph, wanted)))]
        on_way = {root}
        while stack:
            name, rest = stack[-1]
            following = next((each for each in rest if each not in done and each not in on_way), None)
            if following is None:
                done.setdefault(name)
                on_way.discard(stack.pop()[0])
            else:
                on_way.add(following)
                stack.append((following, iter(_inner(following, graph, wanted))))
    return list(done)


def _inner(name: str, graph: dict[str, tuple[str, ...]], wanted: Collection[str]) -> Iterable[str]:
    return [each for each in graph.get(name, ()) if each in wanted]
