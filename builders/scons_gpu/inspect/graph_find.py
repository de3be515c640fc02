"""Which node of the graph a user means: by path, module, kernel symbol, readable name, a part of one that is no other's, or a digest."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import UsageError
from scons_gpu.inspect.graph import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scons_gpu.inspect.graph import Graph, Node

__all__ = ["find", "spelled"]

_LISTED = 12
_DIGEST = re.compile(r"[0-9a-f]{4,}")


def find(graph: Graph, name: str, *, arch: str = "", module: str = "", kinds: Sequence[str] = KINDS) -> tuple[int, ...]:
    """Places of the nodes of that name: several where they are one thing for several architectures or modules.

    A name may say its kind: `module:ops`. Raises UsageError where nothing has it, and where different things do, which it lists.
    """
    kind, colon, rest = name.partition(":")
    given, kinds = (rest, [kind]) if colon and kind in kinds else (name, kinds)
    wanted = [place for place, node in enumerate(graph.nodes) if node.kind in kinds and _is_of(node, arch, module)]
    for fits in _ways(graph, given):
        found = tuple(place for place in wanted if fits(graph.nodes[place]))
        if len({(graph.nodes[place].kind, graph.nodes[place].name) for place in found}) > 1:
            raise _ambiguous(name, [graph.nodes[place] for place in found])
        if found:
            return found
    raise _none(name, [graph.nodes[place] for place in wanted])


def spelled(node: Node) -> str:
    """A name that finds this node, or it and its like for other architectures."""
    return f"{node.kind}:{node.name}"


def _is_of(node: Node, arch: str, module: str) -> bool:
    owned = not module or any(owner == module or owner.endswith(f"/{module}") for owner in node.modules)
    return owned and arch in ("", node.arch)


def _ways(graph: Graph, name: str) -> tuple[Callable[[Node], bool], ...]:
    """From the strictest on: the first that finds anything decides."""
    path = _below_top(name, graph.top)
    starts = tuple(f"{name.removeprefix('void ')}{bracket}" for bracket in "(<")
    ways: list[Callable[[Node], bool]] = [
        lambda node: name in (node.id, node.name, node.digest) or path == node.name or name in node.aliases
    ]
    if _DIGEST.fullmatch(name):
        ways.append(lambda node: node.digest.startswith(name))
    ways.append(lambda node: node.name.startswith(starts) or any(each.startswith(starts) for each in node.aliases))
    ways.append(lambda node: node.name.endswith(f"/{name}"))
    ways.append(lambda node: name in node.name or any(name in each for each in node.aliases))
    return tuple(ways)


def _below_top(name: str, top: str) -> str:
    """The path that the graph has of a file, given from where the user is."""
    path = os.path.abspath(name)  # noqa: PTH100 - links stay as they were written
    return str(Path(path).relative_to(top)) if top and Path(path).is_relative_to(top) else path


def _ambiguous(name: str, found: Sequence[Node]) -> UsageError:
    names = list(dict.fromkeys(map(spelled, found)))
    more = f"\n  and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    listed = "".join(f"\n  {each}" for each in names[:_LISTED])
    return UsageError(f"{name} may be {len(names)} things:{listed}{more}", hint="give one as it is spelled here, or a digest")


def _none(name: str, nodes: Sequence[Node]) -> UsageError:
    """With what is spelled nearly like it. Comparing long names with 10,000 others takes a second: only those of like length are."""
    known = {each for node in nodes for each in (node.name, *node.aliases, node.name.partition("(")[0]) if abs(len(each) - len(name)) <= 3}
    near = difflib.get_close_matches(name, sorted(known)[:2000], n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "scons-gpu graph shows all there is"
    return UsageError(f"nothing in the graph is called {name}", hint=hint)
