"""What several modules have in common, and what differs in names alone: `scons-gpu shared` and `scons-gpu twins`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scons_gpu.inspect.graph import Graph, Node
    from scons_gpu.inspect.tables import Cell

__all__ = ["SHARED_COLUMNS", "TWIN_COLUMNS", "Twin", "shared", "shared_rows", "shared_to_json", "twin_rows", "twins", "twins_to_json"]

SHARED_COLUMNS = ("kernel", "arch", "unit", "modules")
TWIN_COLUMNS = ("group", "kernel", "arch", "unit", "modules", "object")


@dataclass(frozen=True)
class Twin:
    """One unit of a group whose units differ in nothing but names."""

    group: int
    unit: Node
    object: str
    """Its object's key, equal for twins that share one; empty where it has none."""


def shared(graph: Graph) -> tuple[Node, ...]:
    """Units that more than one module takes: compiled once."""
    return tuple(node for node in graph.nodes if node.kind == "unit" and len(node.modules) > 1)


def twins(graph: Graph) -> tuple[Twin, ...]:
    """Units that have a twin, group by group, in order of name."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, node in enumerate(graph.nodes):
        if node.kind == "unit" and node.body:
            groups[node.body, node.arch].append(place)
    objects = {one: graph.nodes[other].digest for one, other in graph.edges if graph.nodes[other].kind == "object"}
    found = sorted(places for places in groups.values() if len(places) > 1)
    return tuple(
        Twin(number, graph.nodes[place], objects.get(place, "")) for number, places in enumerate(found, start=1) for place in places
    )


def shared_rows(units: tuple[Node, ...]) -> list[tuple[Cell, ...]]:
    """Of the table."""
    return [(node.name, node.arch, node.digest[:12], ", ".join(node.modules)) for node in units]


def twin_rows(found: tuple[Twin, ...]) -> list[tuple[Cell, ...]]:
    """Of the table."""
    return [
        (each.group, each.unit.name, each.unit.arch, each.unit.digest[:12], ", ".join(each.unit.modules), each.object[:12] or None)
        for each in found
    ]


def shared_to_json(units: tuple[Node, ...]) -> dict[str, Any]:
    """What `--json` prints."""
    return {"schema": "scons-gpu/shared/1", "kernels": [_json(node) for node in units]}


def twins_to_json(found: tuple[Twin, ...]) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "schema": "scons-gpu/twins/1",
        "kernels": [{"group": each.group, **_json(each.unit), "body": each.unit.body, "object": each.object or None} for each in found],
    }


def _json(node: Node) -> dict[str, Any]:
    return {"kernel": node.name, "symbols": list(node.aliases), "arch": node.arch, "unit": node.digest, "modules": list(node.modules)}
