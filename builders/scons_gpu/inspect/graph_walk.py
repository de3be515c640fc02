"""Ways through the graph: what something is made of, what is made of it, how two things hang together, and parts of it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import ToolMissingError
from scons_gpu.inspect.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import rustworkx

__all__ = ["Walk", "library", "only_of_kernel", "only_of_module"]


def library() -> Any:  # noqa: ANN401 - loaded only where it is used
    """Rustworkx. Raises ToolMissingError where it is not installed."""
    try:
        import rustworkx  # noqa: PLC0415 - only who walks a graph loads it
    except ImportError:
        msg = "the graph is walked with rustworkx, which is not installed"
        raise ToolMissingError(msg, hint="pip install 'scons-gpu[graph]' brings it") from None
    return rustworkx


class Walk:
    """A graph with an index of its edges, made when first asked. Places are those of the graph's nodes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    @functools.cached_property
    def _down(self) -> rustworkx.PyDiGraph[int, None]:
        """Edges from what something is made of to what is made of it."""
        made: rustworkx.PyDiGraph[int, None] = library().PyDiGraph()
        made.add_nodes_from(range(len(self.graph.nodes)))
        made.add_edges_from_no_data(list(self.graph.edges))
        return made

    @functools.cached_property
    def _up(self) -> rustworkx.PyDiGraph[int, None]:
        made = self._down.copy()
        made.reverse()
        return made

    def inputs(self, places: Iterable[int]) -> set[int]:
        """All that these are made of, over any number of steps."""
        return set().union(*(library().ancestors(self._down, place) for place in places))

    def users(self, places: Iterable[int]) -> set[int]:
        """All that is made of these, over any number of steps."""
        return set().union(*(library().descendants(self._down, place) for place in places))

    def path(self, start: Sequence[int], end: Sequence[int]) -> tuple[int, ...]:
        """The shortest way from one of `start` to one of `end`, each made of the one before; the first of equals. Empty where none is."""
        best: tuple[int, ...] = ()
        for one in start:
            if one in end:
                return (one,)
            ways = library().digraph_dijkstra_shortest_paths(self._down, one)
            for other in end:
                way = tuple(ways[other]) if other in ways else ()
                if way and (not best or len(way) < len(best)):
                    best = way
        return best

    def near(self, places: Sequence[int], depth: int, *, both: bool) -> set[int]:
        """What is at most `depth` steps down from these: what they are made of; with `both`, what is made of them too."""
        found: set[int] = set()
        for index in (self._up, self._down) if both else (self._up,):
            layers = library().bfs_layers(index, list(places))
            found |= {place for layer in layers[: depth + 1] for place in layer}
        return found

    def roots(self) -> list[int]:
        """Those that nothing is made of."""
        used = {one for one, _ in self.graph.edges}
        return [place for place in range(len(self.graph.nodes)) if place not in used]


def only_of_module(graph: Graph, places: Sequence[int]) -> set[int]:
    """Modules with all that they themselves are made of; their submodules stand there with nothing below."""
    kind = [node.kind for node in graph.nodes]
    edges = tuple(edge for edge in graph.edges if not (kind[edge[0]] == kind[edge[1]] == "module"))
    own = Walk(Graph(nodes=graph.nodes, edges=edges)).inputs(places)
    submodules = {one for one, other in graph.edges if other in places and kind[one] == "module"}
    return own | submodules | set(places)


def only_of_kernel(graph: Graph, places: Sequence[int]) -> set[int]:
    """Units with what they are made of and what is made of them."""
    walk = Walk(graph)
    return walk.inputs(places) | walk.users(places) | set(places)
