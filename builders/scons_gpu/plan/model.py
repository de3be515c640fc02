"""The plan: what one module's image for one architecture is made of, and its file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from scons_gpu.errors import DamagedError
from scons_gpu.store.lines import to_lines

__all__ = [
    "FORMAT",
    "Joined",
    "Part",
    "Plan",
    "PlannedCandidate",
    "PlannedKernel",
    "PlannedProblem",
    "PlannedState",
    "from_text",
    "part_from_json",
    "to_text",
]

FORMAT = "scons-gpu/plan/4"


@dataclass(frozen=True)
class PlannedKernel:
    """One kernel of the module, with all that a message or the manifest says of it."""

    symbol: str
    readable: str
    source: str
    max_threads: int | None = None
    min_blocks: int | None = None
    shared_bytes: int = 0
    dynamic_shared: bool = False
    chosen: dict[str, Any] | None = None
    """Of a kernel that had candidates: which was taken, by what, and out of how many."""
    origin: dict[str, Any] | None = None
    """`ir` and `options` of a kernel that does not come from the module's own sources as they are: a candidate's, a helper's."""


@dataclass(frozen=True)
class PlannedState:
    """One state variable of the module's image."""

    symbol: str
    bytes: int
    space: str
    source: str


@dataclass(frozen=True)
class Joined:
    """What a part takes of one source before it is optimised."""

    source: str
    """For messages, and to make slices again that the store lost."""
    slices: tuple[str, ...]
    renames: tuple[tuple[str, str], ...] = ()
    """As a part's, of that source's private state."""
    own: bool = False
    """Whether that source is the part's own: then private names of both mean the same."""
    dropped: tuple[str, ...] = ()
    """Weak state of its own that another source defines for it."""
    shows: tuple[str, ...] = ()
    """State that comes along in a bundle, of which what the host can see stays visible."""


@dataclass(frozen=True)
class Part:
    """One compile job: a unit, or the module's own state or table object."""

    digest: str
    """Name of its PTX: a hash over `key`."""
    key: tuple[tuple[str, str], ...]
    """All that shapes the PTX, as (field, value), sorted by field. Compared whole wherever the digest is looked up."""
    slice: str
    role: str
    """`unit`, `state` or `table`."""
    source: str
    bytes: int
    body: str = ""
    kernels: tuple[PlannedKernel, ...] = ()
    joined: str = ""
    renames: tuple[tuple[str, str], ...] = ()
    """(symbol in the slice, symbol in the image): private state of one content that two sources bring."""
    defines: tuple[str, ...] = ()
    """Symbols of state or tables that the part defines."""
    uses: tuple[str, ...] = ()
    """Symbols of state or tables that the part leaves to others."""
    names: tuple[str, ...] = ()
    """Kernels of other parts that it names, functions of the device's runtime, and its own kernels that other parts name."""
    libdevice: bool = False
    language: str = "ir"
    """`ir`, or `ptx`: what its slice is. PTX is not lowered."""
    joins: tuple[Joined, ...] = ()
    """What other sources define of what it needs, and its own source replaceably; the own source's first, then by content."""
    refused: str = ""
    """Why the part cannot be built (JSON of the error), where the rest of the module can: an undefined function."""
    lower: dict[str, Any] | None = None
    """`LowerOptions` of its own, where they are not the module's."""
    assemble: dict[str, Any] | None = None
    """`AssembleOptions` of its own, where they are not the module's."""
    candidate: str = ""
    """The values that it was compiled with, where its kernel has candidates."""

    @property
    def readable(self) -> str:
        """How people call it: `softmax<256>(float*)`, `gemm [TILE=64]`, `one and 2 more`, `state of a.cu`, `table lut`."""
        if self.role == "unit":
            rest = len(self.kernels) - 1
            name = self.kernels[0].readable + (f" and {rest} more" if rest else "")
            return f"{name} [{self.candidate}]" if self.candidate else name
        return f"state of {self.source}" if self.role == "state" else f"table {self.defines[0]}"


@dataclass(frozen=True)
class PlannedCandidate:
    """One of several ways to compile a kernel."""

    values: dict[str, str]
    """Defines and GPU_ variables; empty for the source as it is."""
    part: Part | None = None
    failure: dict[str, str] | None = None
    """Why there is no part: JSON of the error."""
    needs: tuple[str, ...] = ()
    """Kernels of helper modules that it asks for, where it is chosen."""
    launch: dict[str, Any] | None = None
    """How `bench` launches it."""
    ir: str = ""
    """The IR it came from, beside the plan."""


@dataclass(frozen=True)
class PlannedProblem:
    """One kernel that has candidates."""

    kernel: PlannedKernel
    keys: dict[str, str]
    """What the user tells it from others by: a shape, a type."""
    candidates: tuple[PlannedCandidate, ...]


@dataclass(frozen=True)
class Plan:
    """All of it, in link order."""

    module: str
    arch: str
    """As spelled in full: `sm_90a`, or `compute_90` for a module whose PTX goes into the fatbin."""
    link: str
    """`image`, `bundle` or `whole`."""
    parts: tuple[Part, ...] = ()
    """Units by their first kernel's symbol, then state, then tables."""
    state: tuple[PlannedState, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    """(source, what was said while it was read)."""
    problems: tuple[PlannedProblem, ...] = ()
    """What is still to be decided. A plan that an image is made of has none."""
    format: str = FORMAT

    @property
    def units(self) -> tuple[Part, ...]:
        """The parts that are units."""
        return tuple(part for part in self.parts if part.role == "unit")

    @property
    def kernels(self) -> tuple[PlannedKernel, ...]:
        """Every kernel, sorted by symbol."""
        return tuple(sorted((kernel for part in self.parts for kernel in part.kernels), key=lambda kernel: kernel.symbol))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to make an image of: no kernel, and no variable that the host may set. Tables alone nobody reads."""
        return all(part.role == "table" for part in self.parts)


def to_text(plan: Plan) -> str:
    """The plan as its file holds it: a line for each part, so that two plans diff."""
    return to_lines(vars(plan))


def from_text(text: str, *, path: str = "plan") -> Plan:
    """Reads what `to_text` wrote. Raises DamagedError for anything else."""
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            msg = f"{path}: format {data['format']!r} is not {FORMAT!r}"
            raise DamagedError(msg, hint="remove the file; the next build makes it anew")
        return _plan(data)
    except (ValueError, KeyError, TypeError) as error:
        msg = f"{path}: not a plan: {error}"
        raise DamagedError(msg, hint="remove the file; the next build makes it anew") from None


def _plan(data: dict[str, Any]) -> Plan:
    return Plan(
        **{
            **data,
            "parts": tuple(map(part_from_json, data["parts"])),
            "state": tuple(PlannedState(**state) for state in data["state"]),
            "notes": tuple((source, text) for source, text in data["notes"]),
            "problems": tuple(map(_problem, data["problems"])),
        }
    )


def part_from_json(part: dict[str, Any]) -> Part:
    """One part of a plan's file."""
    return Part(
        **{
            **part,
            "key": tuple((name, value) for name, value in part["key"]),
            "kernels": tuple(PlannedKernel(**kernel) for kernel in part["kernels"]),
            "renames": tuple((old, new) for old, new in part["renames"]),
            "defines": tuple(part["defines"]),
            "uses": tuple(part["uses"]),
            "names": tuple(part["names"]),
            "joins": tuple(map(_joined, part["joins"])),
        }
    )


def _joined(joined: dict[str, Any]) -> Joined:
    lists = {name: tuple(joined[name]) for name in ("slices", "dropped", "shows")}
    return Joined(**{**joined, **lists, "renames": tuple((old, new) for old, new in joined["renames"])})


def _problem(problem: dict[str, Any]) -> PlannedProblem:
    candidates = tuple(
        PlannedCandidate(**{**each, "part": part_from_json(each["part"]) if each["part"] else None, "needs": tuple(each["needs"])})
        for each in problem["candidates"]
    )
    return PlannedProblem(kernel=PlannedKernel(**problem["kernel"]), keys=problem["keys"], candidates=candidates)
