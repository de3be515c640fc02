"""Which class a kernel falls into, and why. A class is given for what was shown on machine code, never for what is merely likely."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from scons_gpu.inspect.sass import IDENTICAL, PLACED, TIMED, relate, same_work

if TYPE_CHECKING:
    from scons_gpu.inspect.cubin import Resources
    from scons_gpu.inspect.disassembly import Program
    from scons_gpu.inspect.reference import Reference

__all__ = ["CLASSES", "Built", "Figures", "Judge", "Verdict"]

SAME, PLACEMENT, SCHEDULE, EXPOSED, OTHER = CLASSES = (
    "identical",
    "constant placement",
    "other schedule",
    "private state made visible",
    "different",
)
UNEXPLAINED = "not explained"


@dataclass(frozen=True)
class Figures:
    """One kernel on one side."""

    registers: int
    stack_bytes: int | None
    shared_bytes: int
    barriers: int
    instructions: int
    local_accesses: int
    """Instructions that load or store local memory: what spills are made of."""
    spill_bytes: int | None = None


@dataclass(frozen=True)
class Built:
    """One kernel as the build made it."""

    symbol: str
    readable: str
    program: Program
    entry: str
    """Its symbol in `program`."""
    mates: tuple[str, ...] = ()
    """The kernels of its unit."""
    spill_bytes: int | None = None

    @property
    def there(self) -> bool:
        """Whether the program holds it."""
        return self.entry in self.program.cubin.kernels and self.entry in self.program.functions


@dataclass(frozen=True)
class Verdict:
    """How one kernel relates to the undivided build's."""

    kind: str
    """One of CLASSES."""
    cause: str = ""
    """What is known of why: empty for an identical kernel."""
    undivided: Figures | None = None
    built: Figures | None = None


@dataclass
class Judge:
    """Classifies the kernels of one module."""

    reference: Reference
    state: frozenset[str] = frozenset()
    """Symbols of state, as the image and as the source has them."""
    private: tuple[str, ...] = ()
    """Private state, as the source has it."""
    linked: bool = True
    """Whether the kernels went through relocatable assembly."""
    _exposed: Reference | None = None
    _alone: dict[tuple[int, tuple[str, ...]], Reference] = field(default_factory=dict)

    def verdict(self, symbol: str, built: Built | None) -> Verdict:
        """The class, its cause, and the figures of both sides."""
        whole = self.reference.whole
        before = _figures(whole, symbol, self.reference.spills.get(symbol)) if symbol in whole.functions else None
        after = _figures(built.program, built.entry, built.spill_bytes) if built and built.there else None
        if built is None or after is None:
            return Verdict(OTHER, "the build lacks the kernel", before, after)
        if before is None:
            return Verdict(OTHER, "the undivided build lacks the kernel", before, after)
        kind, cause = self._classify(self.reference, symbol, built)
        if cause.startswith(UNEXPLAINED) and self.private:
            kind, cause = self._expose(symbol, built) or (kind, cause)
        return Verdict(kind, cause, before, after)

    def _expose(self, symbol: str, built: Built) -> tuple[str, str] | None:
        """What it is where private state can be seen in the undivided build too; None where that explains nothing."""
        self._exposed = self._exposed or self.reference.exposing(self.private)
        kind, cause = self._classify(self._exposed, symbol, built)
        if cause.startswith(UNEXPLAINED):
            return None
        seen = f"as in an undivided build in which {', '.join(self.private)} can be seen"
        whole = self._exposed.whole.cubin.resources(symbol)
        grew = kind == OTHER and _grew(*_known(whole, built.program.cubin.resources(built.entry)))
        return (OTHER if grew else EXPOSED), "; ".join(part for part in (seen, cause) if part)

    def _classify(self, reference: Reference, symbol: str, built: Built) -> tuple[str, str]:
        """A promise that differs decides before any code is looked at; nothing but equal resources makes a schedule the only difference."""
        whole = reference.whole
        promised = whole.cubin.contract(symbol).differs(built.program.cubin.contract(built.entry))
        if promised:
            return OTHER, f"{UNEXPLAINED}: promised otherwise ({', '.join(promised)})"
        mine, theirs = _known(whole.cubin.resources(symbol), built.program.cubin.resources(built.entry))
        relation = self._relate(reference, whole, symbol, built)
        if relation in {IDENTICAL, PLACED} and mine == theirs:
            return (SAME, "") if relation == IDENTICAL else (PLACEMENT, "constants lie elsewhere, and hold the same")
        kind, cause = self._explain(reference, symbol, built, relation=relation, equal=mine == theirs)
        cause = "; ".join(part for part in (cause, _unequal(mine, theirs)) if part)
        kept = mine == theirs or (kind == PLACEMENT and not _grew(mine, theirs))
        return kind if kept else OTHER, cause

    def _explain(self, reference: Reference, symbol: str, built: Built, *, relation: str, equal: bool) -> tuple[str, str]:
        """Another build of the undivided IR that makes the very same code, and so tells what the difference comes from."""
        if self.linked and self._relate(reference, reference.relocatable, symbol, built) in {IDENTICAL, PLACED}:
            return SCHEDULE, "relocatable assembly alone makes the same code"
        if equal and relation == TIMED:
            return SCHEDULE, "the same instructions in the same order, timed otherwise"
        if equal and not reference.listing.tables(symbol) and same_work(reference.whole, symbol, built.program, built.entry):
            return SCHEDULE, "the same instructions in another order"
        alone = self._keeping(reference, built.mates or (symbol,))
        if self._relate(alone, alone.relocatable if self.linked else alone.whole, symbol, built) not in {IDENTICAL, PLACED}:
            return OTHER, UNEXPLAINED
        if not reference.listing.same(symbol, alone.listing):
            return OTHER, "the module without its other kernels makes the same code: they change what is inlined or folded"
        return (SCHEDULE if self.linked else PLACEMENT), "the same PTX; without the other kernels' variables the code is the same"

    def _relate(self, reference: Reference, program: Program, symbol: str, built: Built) -> str:
        tables = reference.listing.tables(symbol)
        return relate(program, symbol, built.program, built.entry, state=self.state, tables=tables)

    def _keeping(self, reference: Reference, kernels: tuple[str, ...]) -> Reference:
        """Made once for the kernels of one unit."""
        key = (id(reference), kernels)
        if key not in self._alone:
            self._alone[key] = reference.keeping(kernels)
        return self._alone[key]


def _known(mine: Resources, theirs: Resources) -> tuple[Resources, Resources]:
    """Both sides, without a stack that one of them does not know."""
    if mine.stack is not None and theirs.stack is not None:
        return mine, theirs
    return replace(mine, stack=None), replace(theirs, stack=None)


def _grew(mine: Resources, theirs: Resources) -> bool:
    pairs = zip(asdict(mine).values(), asdict(theirs).values(), strict=True)
    return any(after > before for before, after in pairs if before is not None)


def _unequal(mine: Resources, theirs: Resources) -> str:
    pairs = zip(asdict(mine).items(), asdict(theirs).values(), strict=True)
    return ", ".join(f"{name} {before} -> {after}" for (name, before), after in pairs if before != after)


def _figures(program: Program, name: str, spill_bytes: int | None) -> Figures:
    code, resources = program.functions[name], program.cubin.resources(name)
    return Figures(
        registers=resources.registers,
        stack_bytes=resources.stack,
        shared_bytes=resources.shared,
        barriers=resources.barriers,
        instructions=code.length,
        local_accesses=code.local,
        spill_bytes=spill_bytes,
    )
