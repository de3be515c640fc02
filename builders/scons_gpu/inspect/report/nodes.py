"""The report's graph: sources, units, objects, images, modules and programs, and what is made from what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scons_gpu.inspect.report.model import Edge, Node

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scons_gpu.inspect.report.model import Kernel, Module, Report, Unit

__all__ = ["graph"]


def graph(report: Report, *, objects: Mapping[str, str]) -> tuple[tuple[Node, ...], tuple[Edge, ...]]:
    """Nodes and edges. `objects`: unit's digest → key of its object; a unit without one is linked as PTX."""
    made = _Graph()
    for row, module in enumerate(report.modules):
        made.node(("module", module.program, module.name), Node("module", module.name, module.name, row))
    for module in report.modules:
        _module(made, module)
    ends = [_unit(made, row, unit, objects.get(unit.digest, "")) for row, unit in enumerate(report.units)]
    for kernel in report.kernels:
        if kernel.unit >= 0:
            made.edge(ends[kernel.unit], _taker(made, kernel))
    return tuple(made.nodes), tuple(made.edges)


def _taker(made: _Graph, kernel: Kernel) -> int:
    """What holds the kernel: its image, its bundle; the module itself where neither is known."""
    names = kernel.program, kernel.module
    keys = (("file", *names, kernel.arch), ("file", *names, ""), ("module", *names))
    return next(made.places[key] for key in keys if key in made.places)


def _unit(made: _Graph, row: int, unit: Unit, key: str) -> int:
    """With its sources and its object; gives what a link takes of it."""
    place = made.node(("unit", unit.digest), Node("unit", unit.name, "", row, unit.result))
    for source in unit.sources:
        made.edge(made.node(("source", unit.modules[0], source), Node("source", source, unit.modules[0])), place)
    if not key:
        return place
    made_of_it = made.node(("object", key), Node("object", key, ""))
    made.edge(place, made_of_it)
    return made_of_it


def _module(made: _Graph, module: Module) -> None:
    place = made.places["module", module.program, module.name]
    for name in module.submodules:
        if ("module", module.program, name) in made.places:
            made.edge(made.places["module", module.program, name], place)
    archs = {file.arch for file in module.files if file.arch}
    for file in (file for file in module.files if file.arch or not archs):  # a bundle is all that its module has
        made.edge(made.node(("file", module.program, module.name, file.arch), Node("image", file.path, module.name)), place)
    if module.root:
        made.edge(place, made.node(("program", module.program), Node("program", module.program, "")))


@dataclass
class _Graph:
    """Nodes by what tells them apart, edges each once."""

    places: dict[tuple[str, ...], int] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    edges: dict[Edge, None] = field(default_factory=dict)

    def node(self, key: tuple[str, ...], node: Node) -> int:
        if key not in self.places:
            self.places[key] = len(self.nodes)
            self.nodes.append(node)
        return self.places[key]

    def edge(self, one: int, other: int) -> None:
        self.edges[Edge(one, other)] = None
