"""The plan: what one module's image for one architecture is made of, and its file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from scons_gpu.errors import DamagedError
from scons_gpu.store.lines import to_lines

__all__ = ["FORMAT", "Part", "Plan", "PlannedKernel", "PlannedState", "from_text", "to_text"]

FORMAT = "scons-gpu/plan/1"


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


@dataclass(frozen=True)
class PlannedState:
    """One state variable of the module's image."""

    symbol: str
    bytes: int
    space: str
    source: str


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
    libdevice: bool = False
    refused: str = ""
    """Why the part cannot be built (JSON of the error), where the rest of the module can: an undefined function."""

    @property
    def readable(self) -> str:
        """How people call it: `softmax<256>(float*)`, `one and 2 more`, `state of a.cu`, `table lut`."""
        if self.role == "unit":
            rest = len(self.kernels) - 1
            return self.kernels[0].readable + (f" and {rest} more" if rest else "")
        return f"state of {self.source}" if self.role == "state" else f"table {self.defines[0]}"


@dataclass(frozen=True)
class Plan:
    """All of it, in link order."""

    module: str
    arch: str
    """As spelled in full: `sm_90a`, or `compute_90` for a module whose PTX goes into the fatbin."""
    link: str
    """`image` or `bundle`."""
    parts: tuple[Part, ...] = ()
    """Units by their first kernel's symbol, then state, then tables."""
    state: tuple[PlannedState, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    """(source, what was said while it was read)."""
    format: str = FORMAT

    @property
    def units(self) -> tuple[Part, ...]:
        """The parts that are units."""
        return tuple(part for part in self.parts if part.role == "unit")

    @property
    def kernels(self) -> tuple[PlannedKernel, ...]:
        """Every kernel, sorted by symbol."""
        return tuple(sorted((kernel for part in self.parts for kernel in part.kernels), key=lambda kernel: kernel.symbol))


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
    parts = tuple(
        Part(
            **{
                **part,
                "key": tuple((name, value) for name, value in part["key"]),
                "kernels": tuple(PlannedKernel(**kernel) for kernel in part["kernels"]),
                "renames": tuple((old, new) for old, new in part["renames"]),
                "defines": tuple(part["defines"]),
                "uses": tuple(part["uses"]),
            }
        )
        for part in data["parts"]
    )
    state = tuple(PlannedState(**state) for state in data["state"])
    return Plan(**{**data, "parts": parts, "state": state, "notes": tuple((source, text) for source, text in data["notes"])})
