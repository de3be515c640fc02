"""What the report's page is given, as values: rows of its tables, nodes and edges of its graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Edge", "Failure", "File", "Kernel", "Lane", "Module", "Node", "Overview", "Reason", "Report", "Step", "Tool", "Twin", "Unit"]


@dataclass(frozen=True)
class Overview:
    """The build as a whole."""

    build: str = ""
    """Its id; empty where the store knows of none."""
    state: str = "none"
    """`done`, `failed`, `running` (the report is a step of it), `killed`, or `none`."""
    began: float = 0.0
    """Seconds since 1970."""
    wall_seconds: float = 0.0
    jobs: int = 1
    argv: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    """Names of the programs that are shown."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """As `scons-gpu stats` has them."""
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    """By stage."""
    notes: tuple[str, ...] = ()
    """What the reader has to know of the figures: a manifest that is older than the build, for one."""


@dataclass(frozen=True)
class File:
    """One file that a program is made of: an image, a fatbin, a bundle."""

    path: str
    """Relative to the manifest."""
    arch: str
    """Of an image; empty for what holds several."""
    bytes: int | None
    """None where it is not there."""


@dataclass(frozen=True)
class Module:
    """One module of one program."""

    name: str
    program: str
    root: bool
    bypass: bool
    link: str
    """`image`, `bundle` or `whole`; empty where nobody says."""
    submodules: tuple[str, ...]
    kernels: int
    references: int
    """Its units, for each architecture."""
    compiled: int
    """Units of it that this build compiled."""
    failed: int
    files: tuple[File, ...] = ()


@dataclass(frozen=True)
class Unit:
    """One unit, which several modules may have in common."""

    digest: str
    name: str
    """Readable."""
    arch: str
    result: str
    """`compiled`, `reused`, `deferred`, `failed`, `candidate` (compiled to choose from), or `kept`: not due in this build."""
    seconds: float | None
    """What its lowering and assembling took when it was last made; None where the log does not know."""
    slice_bytes: int
    modules: tuple[str, ...]
    sources: tuple[str, ...]
    joined: str = ""
    """Why it holds several kernels."""


@dataclass(frozen=True)
class Kernel:
    """One kernel of one module for one architecture. None: not known."""

    name: str
    """Readable."""
    symbol: str
    program: str
    module: str
    source: str
    arch: str
    unit: int
    """Which row of the units; -1 where none is known."""
    registers: int | None
    spill_bytes: int | None
    shared_bytes: int
    stack_bytes: int | None
    constant_bytes: int | None
    max_threads: int | None
    occupancy: float | None
    """The most that blocks of any size within the launch bounds fill of an SM's warps, in per cent."""
    code_bytes: int | None
    lowered_by: str
    chosen: str = ""
    """Which of several candidates was taken, and why."""


@dataclass(frozen=True)
class Lane:
    """One line of the timeline."""

    name: str


@dataclass(frozen=True)
class Step:
    """One bar of the timeline."""

    stage: str
    name: str
    arch: str
    result: str
    lane: int
    start: float
    """Seconds since the build began."""
    seconds: float
    cpu: float
    peak_kib: int
    unit: int
    modules: tuple[str, ...]


@dataclass(frozen=True)
class Reason:
    """Why one step ran."""

    stage: str
    name: str
    arch: str
    modules: tuple[str, ...]
    why: str
    unit: int


@dataclass(frozen=True)
class Failure:
    """One step that failed."""

    stage: str
    name: str
    arch: str
    modules: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Twin:
    """One of several units that differ in nothing but names."""

    group: int
    unit: int
    object: str
    """Key of its object; equal for twins that share one."""


@dataclass(frozen=True)
class Tool:
    """One tool that took part."""

    program: str
    name: str
    version: str
    identity: str


@dataclass(frozen=True)
class Node:
    """One node of the graph."""

    kind: str
    """As in inspect/graph.py."""
    name: str
    module: str
    """Its owner; empty where there are several, or none."""
    row: int = -1
    """Of a unit or a module: which row of those."""
    result: str = ""


@dataclass(frozen=True)
class Edge:
    """`user` is made from `input`: both are rows of the nodes."""

    input: int
    user: int


@dataclass(frozen=True)
class Report:
    """All of it."""

    overview: Overview = Overview()
    modules: tuple[Module, ...] = ()
    units: tuple[Unit, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    steps: tuple[Step, ...] = ()
    lanes: tuple[Lane, ...] = ()
    reasons: tuple[Reason, ...] = ()
    failures: tuple[Failure, ...] = ()
    twins: tuple[Twin, ...] = ()
    tools: tuple[Tool, ...] = ()
    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
