"""What turns PTX into objects or images, as one interface: three operations, and what was found decides which of them exist.

A provider that runs in the process, the driver, or a pair (one compiles, another links) fits the same interface: `capabilities`
says what it can do, a call of what it cannot is a mistake of the caller's (`choose` asks first). Deferral is a provider too: one whose
`compile_relocatable` hands the PTX on, wrapped around one that links; a link's inputs may therefore be objects and deferred PTX mixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scons_gpu.store.record import Resources
    from scons_gpu.toolchain.arch import Target

__all__ = ["AssembleOptions", "Assembled", "Capabilities", "LinkInput", "Linked", "Provider"]


@dataclass(frozen=True)
class AssembleOptions:
    """What a user can ask of assembler and linker. Each field says who honours it."""

    opt: int = 3
    """Optimisation level, 0 to 3. Assembling, and a link of PTX; a link of objects does no optimisation. Every provider."""
    lineinfo: bool = False
    """Line tables for profilers. Assembling, and a link of PTX; linkers keep what the objects have. Every provider."""
    debug: bool = False
    """Full debug information. Every provider, linking too; the opt level goes with it by the caller's choice, never by itself."""
    maxrregcount: int | None = None
    """Upper limit of registers per thread. Assembling, and a link of PTX: linkers apply it to nothing else. Every provider."""
    flags: tuple[str, ...] = ()
    """Further options for the assembler, as the user spelled them. Every provider (nvJitLink: for the ptxas in it) but the driver."""
    fail_on_spill: bool = False
    """A kernel, or a function that it calls, that spills is an error, and there is no object. Every provider, also where PTX is assembled
    by the link; it shapes no byte, but stands in the object's key: an object made without it may be one that it refuses."""
    warn_on_spill: bool = False
    """What spills is told in `output`, and so again when the object is reused. Every provider that reports spills; it shapes no byte, but
    stands in the key as the one above."""
    verbose: bool = False
    """Keep the assembler's resource report in `output` besides what it says on its own. It shapes no byte."""
    seconds: float | None = None
    """CPU seconds that one assembly may take; what takes more is killed. It shapes no byte. Every provider: a library's
    worker is killed with it."""
    unit: str = ""
    """Digest of the unit, for who reads deferred PTX. It shapes no byte of an object. Deferral."""


@dataclass(frozen=True)
class Capabilities:
    """What a provider can do with what was found on this machine."""

    compile: bool
    """PTX to a whole object."""
    relocatable: bool
    """PTX to a relocatable object."""
    link: bool
    """Relocatable objects to an image."""
    clones_functions: bool = False
    """Relocatable kernels keep the registers of whole ones (FACTS: plain `-c` costs the call ABI's 24 registers)."""
    link_ptx: bool = False
    """Its link takes deferred PTX (`assemble/dptx.py`) beside objects."""


@dataclass(frozen=True)
class Assembled:
    """One object."""

    data: bytes
    output: str
    """What the tool said besides its resource report: warnings and advice, to be shown again when the object is reused."""
    resources: tuple[Resources, ...]
    """From the tool's own report, one per kernel, sorted by symbol."""
    seconds: float
    cpu: float = 0.0
    peak_kib: int = 0
    """Peak memory of the tool; 0 where it cannot be told (see toolchain/process.py)."""


@dataclass(frozen=True)
class LinkInput:
    """One input of a link."""

    path: Path
    label: str
    """How messages name it: the kernel with its source, never a file of the store."""
    kernel: str = ""
    """Readable name of its kernel, where it is that of one: an error of this input alone then says it in the kernel's place."""
    source: str = ""
    """Where it comes from, for the same."""
    library: bool = False
    """Whether it is a host's object or archive, of which the linker takes the device code. nvlink."""


@dataclass(frozen=True)
class Linked:
    """One image."""

    data: bytes
    output: str
    seconds: float
    cpu: float = 0.0
    peak_kib: int = 0
    resources: tuple[Resources, ...] = ()
    """Of the kernels whose PTX this link assembled, sorted by symbol; those of objects are known from before."""


class Provider(Protocol):
    """Three operations: functions of their arguments and of the tools' identities, safe in threads. They raise a ToolError or LinkError."""

    @property
    def name(self) -> str:
        """As `GPU_PROVIDER` spells it."""

    @property
    def identity(self) -> str:
        """Identity of what makes objects. One that nobody knows has another in each process, so that nothing it made is reused."""

    @property
    def link_identity(self) -> str:
        """Identity of what makes images; empty where nothing here links."""

    @property
    def capabilities(self) -> Capabilities:
        """Computed from what was found, never assumed from the name."""

    def spelling(self, *, target: Target, options: AssembleOptions, relocatable: bool) -> tuple[str, ...]:
        """Every option that shapes an object's bytes, spelled in the one way this provider spells it. Part of the object's key."""

    def compile(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        """A whole object."""

    def compile_relocatable(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        """A relocatable object."""

    def link(self, inputs: Sequence[LinkInput], *, target: Target, options: AssembleOptions) -> Linked:
        """An image of all inputs, in the order given."""
