"""The graph as the report's page shows it: nodes and edges as rows, without tools, and without headers that are not the user's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scons_gpu.inspect.report.model import Edge, Node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scons_gpu.inspect import graph
    from scons_gpu.inspect.report.model import Unit

__all__ = ["rows"]


def rows(
    made: graph.Graph, *, modules: Mapping[str, int], units: Mapping[str, int], of: Sequence[Unit]
) -> tuple[tuple[Node, ...], tuple[Edge, ...]]:
    """Nodes and edges. `modules`: a module's id in the graph → its row; `units`: digest → row of `of`.

    Every unit is made with the same few tools, and a view of its own lists them; a `.cu` reads some 300 headers of the toolkit.
    """
    kept = made.only({place for place, node in enumerate(made.nodes) if node.ours and node.kind != "tool"})
    nodes = [_node(node, modules=modules, units=units, of=of) for node in kept.nodes]
    return tuple(nodes), tuple(Edge(one, other) for one, other in kept.edges)


def _node(node: graph.Node, *, modules: Mapping[str, int], units: Mapping[str, int], of: Sequence[Unit]) -> Node:
    row = units.get(node.digest, -1) if node.kind == "unit" else modules.get(node.id, -1)
    owner = node.modules[0].rpartition("/")[2] if len(node.modules) == 1 else ""
    return Node(node.kind, node.name, owner, row, of[row].result if node.kind == "unit" and row >= 0 else "")
