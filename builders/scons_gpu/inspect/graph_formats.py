"""The graph as text: a tree for people, DOT, JSON and GraphML for programs. Equal graphs give equal bytes."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import ToolMissingError
from scons_gpu.inspect.graph_walk import Walk, library

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scons_gpu.inspect.graph import Graph, Node

__all__ = ["FORMATS", "SCHEMA", "dot", "graphml", "node_json", "to_json", "tree"]

SCHEMA = "scons-gpu/graph/1"
_SHAPES = {
    "program": "doubleoctagon",
    "module": "folder",
    "fatbin": "box3d",
    "bundle": "box3d",
    "image": "component",
    "object": "box",
    "deferred": "box",
    "unit": "ellipse",
    "state": "cylinder",
    "table": "cylinder",
    "source": "note",
    "header": "note",
    "tool": "cds",
}


def tree(graph: Graph) -> Iterator[str]:
    """What each thing is made of below it, a line each; what was shown before is named, with nothing below."""
    inputs: dict[int, list[int]] = defaultdict(list)
    for one, other in graph.edges:
        inputs[other].append(one)
    shown: set[int] = set()
    waiting = [(root, 0) for root in reversed(Walk(graph).roots())]
    while waiting:
        place, depth = waiting.pop()
        again = place in shown and bool(inputs[place])
        yield f"{'  ' * depth}{line(graph.nodes[place])}{' (see above)' if again else ''}"
        if not again:
            shown.add(place)
            waiting += [(each, depth + 1) for each in reversed(inputs[place])]


def line(node: Node) -> str:
    """One node in words."""
    told = [name if value == "yes" else f"{name}: {value}" for name, value in node.facts if name != "link"]
    more = f" ({_plain('; '.join(told))})" if told else ""
    return f"{node.kind} {_plain(node.label)}{more}"


def _plain(text: str) -> str:
    """On one line, whatever is in a name."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def node_json(node: Node) -> dict[str, Any]:
    """One node as `--json` has it; without what is empty."""
    fields = {**vars(node), "modules": list(node.modules), "aliases": list(node.aliases), "facts": dict(node.facts)}
    return {name: value for name, value in fields.items() if value not in ("", [], {})}


def to_json(graph: Graph) -> dict[str, Any]:
    """Nodes, and edges as pairs of their places: what something is made of, what is made of it."""
    return {
        "schema": SCHEMA,
        "nodes": [node_json(node) for node in graph.nodes],
        "edges": [list(edge) for edge in graph.edges],
        "notes": list(graph.notes),
    }


def dot(graph: Graph) -> str:
    """For Graphviz."""
    try:
        import graphviz  # noqa: PLC0415 - only who writes DOT loads it
    except ImportError:
        msg = "DOT is written with the package graphviz, which is not installed"
        raise ToolMissingError(msg, hint="pip install 'scons-gpu[graph]' brings it") from None
    drawn = graphviz.Digraph("scons_gpu", graph_attr={"rankdir": "LR"}, node_attr={"fontname": "sans-serif"})
    kind = ""
    for place, node in enumerate(graph.nodes):
        if node.kind != kind:
            kind = node.kind
            drawn.attr("node", shape=_SHAPES[kind], **{"class": kind})
        drawn.node(f"n{place}", label=graphviz.escape(_plain(node.label)))
    drawn.body += [f"\tn{one} -> n{other}\n" for one, other in graph.edges]  # nothing to quote, and 60,000 calls take a second
    return str(drawn.source)


def graphml(graph: Graph) -> str:
    """For yEd, Gephi, Cytoscape, networkx. Nodes go by their ids."""
    rustworkx = library()
    made = rustworkx.PyDiGraph()
    made.add_nodes_from([_attributes(node) for node in graph.nodes])
    made.add_edges_from([(*edge, {}) for edge in graph.edges])
    with tempfile.TemporaryDirectory(prefix="scons-gpu-") as folder:
        path = Path(folder) / "graph.graphml"
        rustworkx.write_graphml(made, str(path))
        return path.read_text(encoding="utf-8") + "\n"


def _attributes(node: Node) -> dict[str, str]:
    fields = {"id": node.id, "kind": node.kind, "name": node.name, "arch": node.arch, "digest": node.digest}
    return {name: _plain(value) for name, value in {**fields, "label": node.label, "modules": ", ".join(node.modules)}.items()}


def json_text(graph: Graph) -> str:
    """As `--json` prints it."""
    return json.dumps(to_json(graph), indent=None, sort_keys=True, ensure_ascii=False, separators=(",", ":")) + "\n"


FORMATS = {"text": lambda graph: "".join(f"{each}\n" for each in tree(graph)), "dot": dot, "json": json_text, "graphml": graphml}
