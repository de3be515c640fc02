"""The graph of what was built: programs, modules, images, units, sources and headers as nodes, and what is made of what as edges.

It is a value without a graph library: `inspect/graph_walk.py` walks it, `inspect/graph_formats.py` writes it, the report's page shows it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from scons_gpu.inspect import graph_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from scons_gpu.inspect.graph_files import Half, Module, Program
    from scons_gpu.plan.model import Part

__all__ = ["KINDS", "Graph", "Node", "graph", "read"]

KINDS = ("program", "module", "bundle", "fatbin", "image", "object", "deferred", "unit", "state", "table", "source", "header", "tool")
"""From what a user loads down to what a user writes; `state` and `table` are objects of a module that hold no kernel."""

_FRONT_ENDS = ("clang", "nvrtc", "nvcc")
_CUDA = (".cu", ".cuh", ".cpp", ".cc", ".cxx")
"""Sources that a front end compiles; others are LLVM's or PTX."""


@dataclass(frozen=True)
class Node:
    """One thing that was built, or that something was built of."""

    kind: str
    """One of KINDS."""
    name: str
    """How people call it: a path below the top, a module, a readable kernel, an object's key."""
    id: str
    """What tells it from all others: its kind, and a path, a digest, or program and module."""
    arch: str = ""
    digest: str = ""
    """Of a unit, a state or a table object; of an object its key."""
    body: str = ""
    """Of a unit: the digest with the kernel's own name taken out. Units of one body and architecture are twins."""
    modules: tuple[str, ...] = ()
    """Owners of a unit or an object: `program/module`, sorted. One owner of an image, a fatbin, a bundle or a module: itself."""
    aliases: tuple[str, ...] = ()
    """Other names it goes by: a kernel's symbols, a program's manifest."""
    facts: tuple[tuple[str, str], ...] = ()
    """What else there is to say, in words: `bypassed`, a candidate's values, why kernels were joined, what language a slice has."""
    ours: bool = True
    """Whether it is part of the user's tree: no tool, and no header that lies outside or that a toolkit brings."""

    @property
    def label(self) -> str:
        """The name, with as much of the digest and the architecture as tells two of one name apart."""
        short = f" {self.digest[:8]}" if self.digest else ""
        return f"{self.name}{short if short.strip() not in self.name else ''}{f' {self.arch}' if self.arch else ''}"


@dataclass(frozen=True)
class Graph:
    """Nodes in order of kind and name; edges as places of (what something is made of, what is made of it), sorted."""

    nodes: tuple[Node, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader has to know of it: a plan that is not there, a build that was killed."""
    top: str = ""
    """The folder that names of files are below; others are absolute."""

    def only(self, kept: set[int]) -> Graph:
        """The graph of these nodes alone."""
        places = {old: new for new, old in enumerate(sorted(kept))}
        edges = tuple((places[one], places[other]) for one, other in self.edges if one in places and other in places)
        return Graph(nodes=tuple(self.nodes[old] for old in places), edges=edges, notes=self.notes, top=self.top)


def read(store: Path, *, manifests: Sequence[Path] = (), build: str | None = None) -> Graph:
    """The graph of these manifests' programs; where there are none, of all programs of a build, by default of the last that made anything.

    Raises UsageError where there is no such build or manifest, DamagedError for a file that does not read.
    """
    found = graph_files.of_manifests(store, manifests) if manifests else graph_files.of_build(store, build=build)
    return graph(found.programs, notes=found.notes, top=found.top)


def graph(programs: tuple[Program, ...], *, notes: tuple[str, ...] = (), top: str = "") -> Graph:
    """The graph of these programs. What several of them share is one node."""
    made = _Making()
    for program in programs:
        _program(made, program)
    return replace(made.graph(), notes=notes, top=top)


@dataclass
class _Making:
    """Nodes by id, edges by pairs of ids: each once, however often it is met."""

    nodes: dict[str, Node] = field(default_factory=dict)
    edges: set[tuple[str, str]] = field(default_factory=set)
    owners: dict[str, set[str]] = field(default_factory=dict)
    read: set[tuple[str, int]] = field(default_factory=set)
    """Sources with lists of headers that are there; one list, one object."""

    def node(self, node: Node, *, owner: str = "") -> str:
        known = self.nodes.get(node.id)
        if known is None:
            self.nodes[node.id] = node
        elif node.aliases != known.aliases:
            self.nodes[node.id] = replace(known, aliases=tuple(sorted({*known.aliases, *node.aliases})))
        if owner and known is not None:
            self.owners.setdefault(node.id, {*known.modules}).add(owner)
        return node.id

    def edge(self, made_of: str, user: str) -> None:
        self.edges.add((made_of, user))

    def graph(self) -> Graph:
        for name, owners in self.owners.items():
            if len(owners) > 1:
                self.nodes[name] = replace(self.nodes[name], modules=tuple(sorted(owners)))
        nodes = sorted(self.nodes.values(), key=_order)
        places = {node.id: place for place, node in enumerate(nodes)}
        edges = sorted([(places[one], places[other]) for one, other in self.edges])
        return Graph(nodes=tuple(nodes), edges=tuple(edges))


_RANK = {kind: rank for rank, kind in enumerate(KINDS)}


def _order(node: Node) -> tuple[int, str, str, str]:
    return (_RANK[node.kind], node.name, node.arch, node.id)


def _program(made: _Making, program: Program) -> None:
    top = made.node(Node("program", program.stem, f"program:{program.stem}", aliases=(f"{program.stem}.json", program.name)))
    ids = {module.name: _module(made, program, module) for module in program.modules}
    reached = {name for module in program.modules for name in module.submodules}
    for module in program.modules:
        for name in module.submodules:
            if name in ids:
                made.edge(ids[name], ids[module.name])
        if module.name not in reached:
            made.edge(ids[module.name], top)


def _module(made: _Making, program: Program, module: Module) -> str:
    owner = f"{program.stem}/{module.name}"
    facts = tuple((name, value) for name, value in (("bypassed", "yes" if module.bypass else ""), ("link", module.link)) if value)
    place = made.node(Node("module", module.name, f"module:{owner}", aliases=(owner,), facts=facts, modules=(owner,)), owner=owner)
    packed = ""
    for kind, path in (("fatbin", module.fatbin), ("bundle", module.bundle)):
        if path:
            packed = made.node(Node(kind, path, f"{kind}:{path}", modules=(owner,)), owner=owner)
            made.edge(packed, place)
            _tool(made, program, "fatbinary" if kind == "fatbin" else "", packed)
    for half in module.halves:
        _half(made, program, half, owner=owner, packed=packed or place)
    return place


def _half(made: _Making, program: Program, half: Half, *, owner: str, packed: str) -> None:
    """One architecture of a module: its image, and all that is linked."""
    target = packed
    if half.image:
        target = made.node(Node("image", half.image, f"image:{half.image}", arch=half.arch, modules=(owner,)), owner=owner)
        made.edge(target, packed)
        if half.image.endswith(".cubin"):
            _tool(made, program, half.linker, target)
    for part in half.parts:
        unit = _part(made, program, half, part, owner=owner)
        key = half.objects.get(part.digest, "")
        if not key:
            made.edge(unit, target)
            continue
        kind = "deferred" if key.endswith(".dptx") else "object"
        key = key.removesuffix(".dptx")
        taken = made.node(Node(kind, key, f"{kind}:{key}", arch=half.arch, digest=key, modules=(owner,)), owner=owner)
        made.edge(unit, taken)
        made.edge(taken, target)
        if kind == "object":
            _tool(made, program, half.assembler, taken)


def _part(made: _Making, program: Program, half: Half, part: Part, *, owner: str) -> str:
    symbols = tuple(sorted({name for kernel in part.kernels for name in (kernel.symbol, kernel.readable)} - {part.readable}))
    told = (("candidate", part.candidate), ("joined", part.joined), ("language", part.language if part.language != "ir" else ""))
    node = Node(
        part.role,
        part.readable,
        f"{part.role}:{part.digest}",
        arch=half.arch,
        digest=part.digest,
        body=part.body if part.role == "unit" else "",
        modules=(owner,),
        aliases=symbols,
        facts=tuple((name, value) for name, value in told if value),
    )
    place = made.node(node, owner=owner)
    for source in dict.fromkeys((part.source, *(joined.source for joined in part.joins))):
        if source:
            made.edge(_source(made, program, half, source, owner=owner), place)
    for name in _lowering(part):
        _tool(made, program, name, place)
    return place


def _source(made: _Making, program: Program, half: Half, source: str, *, owner: str) -> str:
    place = made.node(Node("source", source, f"source:{source}", modules=(owner,)), owner=owner)
    headers = half.headers.get(source, ())
    if (place, id(headers)) in made.read:
        return place
    made.read.add((place, id(headers)))
    for header in headers:
        made.edge(made.node(Node("header", header.path, f"header:{header.path}", ours=header.ours)), place)
    if source.endswith(_CUDA):
        for name in _FRONT_ENDS:
            _tool(made, program, name, place)
    return place


def _lowering(part: Part) -> tuple[str, ...]:
    by: Mapping[str, str] = dict(part.key)
    lowered = by.get("lowered-by", "") if part.language == "ir" else ""
    return (lowered, *(("libdevice",) if part.libdevice else ()))


def _tool(made: _Making, program: Program, name: str, user: str) -> None:
    """An edge from the tool of that name, where the program's manifest knows one."""
    version = program.tools.get(name)
    if version is not None:
        made.edge(made.node(Node("tool", f"{name} {version}".strip(), f"tool:{name} {version}", aliases=(name,), ours=False)), user)
