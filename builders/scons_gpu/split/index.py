"""The index: what the split of one source found, and its file.

An index holds everything that the plan has to know of a source, and no text: texts are slices, which the store holds by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from scons_gpu.errors import DamagedError
from scons_gpu.split import INDEX_FORMAT
from scons_gpu.store.lines import to_lines

__all__ = [
    "CALLED",
    "FORMAT",
    "RUNTIME",
    "Export",
    "Index",
    "Kernel",
    "Offer",
    "Shared",
    "State",
    "Table",
    "Type",
    "Unit",
    "from_text",
    "to_text",
]

FORMAT = INDEX_FORMAT

RUNTIME = frozenset(("vprintf", "malloc", "free", "__assertfail", "__nvvm_reflect"))
"""Functions the device itself brings."""
CALLED = RUNTIME - {"__nvvm_reflect"}
"""Those of them that code calls: their addresses lie in memory of the module."""


@dataclass(frozen=True)
class Type:
    """What a name stands for, as its declaration or its definition says: sources that disagree must not be joined."""

    text: str
    """A function's type with what of its parameters both sides must agree on, or a variable's; empty where nobody asks."""
    space: int | None = None
    """A variable's address space; None for a function."""
    bytes: int = 0
    align: int = 1


@dataclass(frozen=True)
class Shared:
    """One `__shared__` variable of a kernel's closure."""

    symbol: str
    bytes: int
    align: int = 1


@dataclass(frozen=True)
class Kernel:
    """One entry point."""

    symbol: str
    readable: str
    """Demangled name; the symbol itself where it is not mangled."""
    weak: bool = False
    """`weak_odr`/`linkonce_odr`: a template instance that other sources may bring too."""
    max_threads: int | None = None
    """`maxntid` or `reqntid`, multiplied out; threads per block."""
    min_blocks: int | None = None
    dynamic_shared: bool = False


@dataclass(frozen=True)
class Unit:
    """One closed compile job."""

    kernels: tuple[Kernel, ...]
    slice: str
    """Name of the unit's canonical text in the store."""
    bytes: int
    """Length of that text: the scheduler's guess where no time was recorded."""
    body: str
    """32 hex digits over the text with every local name numbered; units of one body are twins."""
    joined: str = ""
    """Why the unit holds what it holds, where it is more than one kernel: state, indirect-call, kernel-reference, asm."""
    state: tuple[str, ...] = ()
    """Symbols of the state it declares (image form), sorted."""
    tables: tuple[str, ...] = ()
    """Symbols of the hoisted tables it sees as available_externally (image form), sorted."""
    names: tuple[str, ...] = ()
    """Kernels that it names and does not hold, and functions of `CALLED` (image form), sorted."""
    needs: tuple[tuple[str, str], ...] = ()
    """(undefined function, its caller), sorted: nobody in this source defines it and no device runtime does. Also what the source
    defines and the text leaves out: what other sources could replace, or are to have in the same way."""
    lacks: tuple[tuple[str, str], ...] = ()
    """The same of what may stay undefined: it is `extern_weak`, and never called."""
    libdevice: bool = False
    """Whether it calls `__nv_…` functions."""
    indirect: tuple[str, ...] = ()
    """`calls` through memory, `takes` functions' addresses; told in a bundle of several sources."""
    shared: tuple[Shared, ...] = ()
    constant_bytes: int = 0
    """Bytes of constant memory that the unit itself defines (its copied tables in address space 4)."""


@dataclass(frozen=True)
class State:
    """One variable that lives on between launches. In an image it is defined once, in the source's state object."""

    symbol: str
    """The name in the image: as written where the host can see it, `<name>.<16 hex>` where it is private."""
    name: str
    """The name in the source."""
    bytes: int
    space: str
    """`global` or `constant`."""
    private: bool
    weak: bool
    content: str
    """32 hex digits over the canonical definition: equal weak definitions of two sources are one."""
    type: Type = Type("")


@dataclass(frozen=True)
class Table:
    """A read-only private array that an image holds once, as an object of its own."""

    symbol: str
    slice: str
    bytes: int
    space: str


@dataclass(frozen=True)
class Offer:
    """The text that joins who needs an export: its definition, with what it alone reaches. Other exports are left out of it."""

    slice: str
    bytes: int
    type: Type
    name: str = ""
    """What the text calls it, where that is not its own name: a table is an object of its own, named by content."""
    state: tuple[str, ...] = ()
    """State that the text declares; in closed form also kernels that it names: a bundle's unit could share neither."""
    tables: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    needs: tuple[tuple[str, str], ...] = ()
    lacks: tuple[tuple[str, str], ...] = ()
    libdevice: bool = False
    indirect: tuple[str, ...] = ()
    shared: tuple[Shared, ...] = ()
    dynamic_shared: bool = False
    odr: bool = False
    """Whether every source has it alike, by the rules of its language: `weak_odr`."""
    refused: str = ""
    """Why no other source can have it."""


@dataclass(frozen=True)
class Export:
    """A function that other sources could call, or memory of constant value that they could name."""

    symbol: str
    weak: bool
    offer: Offer | None = None
    """None for an inline function, which every source that calls it defines, and in a source that is its module's only one."""


@dataclass(frozen=True)
class Index:
    """What one source holds, for one architecture and link form."""

    source: str
    """The source as the user wrote it, for messages; never part of a digest."""
    arch: str
    form: str
    """`apart` (image, whole, merged PTX: state and tables are outside the units) or `closed` (bundle)."""
    units: tuple[Unit, ...] = ()
    state: tuple[State, ...] = ()
    state_slice: str = ""
    """Name of the text that defines all of `state`; empty where there is none."""
    state_libdevice: bool = False
    """Whether that text calls `__nv_…` functions."""
    state_needs: tuple[tuple[str, str], ...] = ()
    """(what nobody in this source defines, who names it), sorted, of all that the state's initial values lead to."""
    state_lacks: tuple[tuple[str, str], ...] = ()
    state_shared: tuple[str, ...] = ()
    """Shared memory of functions that initial values lead to."""
    state_names: tuple[str, ...] = ()
    """Kernels, and functions of `CALLED`, that initial values lead to."""
    tables: tuple[Table, ...] = ()
    exports: tuple[Export, ...] = ()
    declared: tuple[tuple[str, Type], ...] = ()
    """What is needed or lacked, as this source declares it."""
    format: str = FORMAT
    notes: tuple[str, ...] = field(default=())
    """What LLVM said while parsing, to be shown again when the index is reused."""
    language: str = "ir"
    """`ir`, or `ptx`: what its slices are. PTX is not lowered."""
    failure: dict[str, str] | None = None
    """Why there is nothing: JSON of the error. Of a candidate alone, whose front end may fail without failing the build."""


def to_text(index: Index) -> str:
    """The index as its file holds it: a line for each unit."""
    return to_lines(vars(index))


def from_text(text: str, *, path: str = "index") -> Index:
    """Reads what `to_text` wrote. Raises DamagedError for anything else."""
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            msg = f"{path}: format {data['format']!r} is not {FORMAT!r}"
            raise DamagedError(msg, hint="remove the file; the next build makes it anew")
        return _index(data)
    except (ValueError, KeyError, TypeError) as error:
        msg = f"{path}: not an index: {error}"
        raise DamagedError(msg, hint="remove the file; the next build makes it anew") from None


def _index(data: dict[str, Any]) -> Index:
    return Index(
        **{
            **data,
            "units": tuple(map(_unit, data["units"])),
            "state": tuple(State(**{**state, "type": Type(**state["type"])}) for state in data["state"]),
            "state_needs": _pairs(data["state_needs"]),
            "state_lacks": _pairs(data["state_lacks"]),
            "state_shared": tuple(data["state_shared"]),
            "state_names": tuple(data["state_names"]),
            "tables": tuple(Table(**table) for table in data["tables"]),
            "exports": tuple(map(_export, data["exports"])),
            "declared": tuple((symbol, Type(**kind)) for symbol, kind in data["declared"]),
            "notes": tuple(data["notes"]),
        }
    )


def _unit(data: dict[str, Any]) -> Unit:
    return Unit(**{**_common(data), "kernels": tuple(Kernel(**kernel) for kernel in data["kernels"])})


def _export(data: dict[str, Any]) -> Export:
    offer = data["offer"]
    return Export(**{**data, "offer": Offer(**{**_common(offer), "type": Type(**offer["type"])}) if offer else None})


def _common(data: dict[str, Any]) -> dict[str, Any]:
    """What a unit and an offer have alike."""
    return {
        **data,
        "state": tuple(data["state"]),
        "tables": tuple(data["tables"]),
        "names": tuple(data["names"]),
        "needs": _pairs(data["needs"]),
        "lacks": _pairs(data["lacks"]),
        "indirect": tuple(data["indirect"]),
        "shared": tuple(Shared(**shared) for shared in data["shared"]),
    }


def _pairs(data: list[list[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, user) for name, user in data)
