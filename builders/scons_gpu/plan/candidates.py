"""Kernels that are compiled in several ways: their units, one for each candidate, and the plan once it is decided which are taken."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import GpuError, MissingSymbolError, RefusedError, from_json
from scons_gpu.plan.model import Part, Plan, PlannedCandidate, PlannedKernel, PlannedProblem, PlannedState
from scons_gpu.split.readable import demangle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from scons_gpu.plan.plan import Key
    from scons_gpu.split.index import Index, Unit

__all__ = ["Tuned", "Variant", "decided", "problems", "reached"]


_ANONYMOUS = "(anonymous namespace)"


@dataclass(frozen=True)
class Variant:
    """One candidate: a source compiled with values of its own."""

    values: Mapping[str, str]
    label: str
    """What messages call it: `TILE=64 UNROLL=2`."""
    index: Index
    key: Key
    needs: tuple[str, ...] = ()
    launch: Mapping[str, Any] | None = None
    ir: str = ""
    """Its IR's file, beside the plan."""
    lower: Mapping[str, Any] | None = None
    assemble: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Tuned:
    """What a user said of one kernel, or of those that a pattern names, of one source."""

    pattern: str
    source: str
    variants: tuple[Variant, ...]
    keys: Mapping[str, str] = field(default_factory=dict)

    def names(self, symbol: str, readable: str) -> bool:
        """Whether a kernel is meant: by its symbol, by what people call it, with its parameters or without, or by a pattern of these."""
        return any(fnmatchcase(name, self.pattern) or name == self.pattern for name in (symbol, readable, short(readable)))


def short(readable: str) -> str:
    """`void gemm<64>(float const*)` is called `gemm<64>`: without what it returns and takes."""
    depth = 0
    begin, end = 0, len(readable)
    for place, letter in enumerate(readable.replace(_ANONYMOUS, "." * len(_ANONYMOUS))):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if depth == 0 and letter == " ":
            begin = place + 1
        if depth == 0 and letter == "(" and place > begin:
            end = place
            break
    return readable[begin:end]


def problems(
    tuned: Sequence[Tuned], indexes: Iterable[Index], *, make: Callable[[Unit, Variant], Part], failed: Callable[[Part], str]
) -> tuple[PlannedProblem, ...]:
    """Every kernel that has candidates, sorted by symbol.

    `make` gives the part of a candidate's unit or raises a GpuError, `failed` why that part cannot be built (JSON of an error, or nothing).
    Raises RefusedError for a pattern that names no kernel, and for a kernel that two name.
    """
    found: dict[str, tuple[Tuned, PlannedProblem]] = {}
    sources = {index.source: index for index in indexes}
    for each in tuned:
        kernels = _kernels(each, sources[each.source])
        if not kernels:
            raise _nothing(each, sources[each.source])
        for symbol, kernel in kernels.items():
            if symbol in found:
                other = found[symbol][0].pattern
                msg = f"kernel {kernel.readable} has candidates twice: {other} and {each.pattern} both name it"
                raise RefusedError(msg, source=each.source, hint="let one of them name it")
            candidates = tuple(_candidate(symbol, variant, kernel, make=make, failed=failed) for variant in each.variants)
            found[symbol] = (each, PlannedProblem(kernel=kernel, keys=dict(each.keys), candidates=candidates))
    return tuple(problem for _, (_, problem) in sorted(found.items()))


def _kernels(tuned: Tuned, base: Index) -> dict[str, PlannedKernel]:
    """In the source as it is, and where only a candidate defines them: those that the pattern names."""
    kernels: dict[str, PlannedKernel] = {}
    for index in (base, *(variant.index for variant in tuned.variants)):
        for unit in index.units:
            for kernel in unit.kernels:
                if tuned.names(kernel.symbol, kernel.readable):
                    kernels.setdefault(kernel.symbol, PlannedKernel(symbol=kernel.symbol, readable=kernel.readable, source=tuned.source))
    return kernels


def _nothing(tuned: Tuned, base: Index) -> RefusedError:
    failures = [from_json(variant.index.failure) for variant in tuned.variants if variant.index.failure]
    if failures and len(failures) == len(tuned.variants):
        said = "\n".join(f"{variant.label}: {error}" for variant, error in zip(tuned.variants, failures, strict=True))
        return RefusedError(f"no candidate of {tuned.pattern} compiles", source=tuned.source, output=said)
    known = sorted({short(kernel.readable) for unit in base.units for kernel in unit.kernels})
    near = difflib.get_close_matches(tuned.pattern, known, n=3, cutoff=0.5) or known[:3]
    hint = f"it has {', '.join(near)}" if near else "it has no kernel at all"
    return RefusedError(f"candidates are given for {tuned.pattern}, and no kernel is called that", source=tuned.source, hint=hint)


def _candidate(
    symbol: str, variant: Variant, kernel: PlannedKernel, *, make: Callable[[Unit, Variant], Part], failed: Callable[[Part], str]
) -> PlannedCandidate:
    part, failure = None, variant.index.failure
    if failure is None:
        try:
            part = make(_unit(symbol, variant, kernel), variant)
        except GpuError as error:
            failure = error.to_json()
        else:
            refused = failed(part)
            failure = json.loads(refused) if refused else None
    return PlannedCandidate(
        values=dict(sorted(variant.values.items())),
        part=None if failure else part,
        failure=dict(failure) if failure else None,
        needs=variant.needs,
        launch=dict(variant.launch) if variant.launch is not None else None,
        ir=variant.ir,
    )


def _unit(symbol: str, variant: Variant, kernel: PlannedKernel) -> Unit:
    for unit in variant.index.units:
        if any(each.symbol == symbol for each in unit.kernels):
            if len(unit.kernels) > 1:
                others = ", ".join(each.readable for each in unit.kernels if each.symbol != symbol)
                msg = f"it is one unit with {others} ({unit.joined})"
                raise RefusedError(
                    msg, kernel=kernel.readable, hint="a kernel with candidates is compiled alone: take apart what they share"
                )
            return unit
    msg = "the source has no such kernel with these values"
    raise MissingSymbolError(msg, kernel=kernel.readable)


def decided(
    plan: Plan, chosen: Mapping[str, tuple[PlannedCandidate, Mapping[str, Any], Mapping[str, Any]]], helpers: Iterable[Plan]
) -> Plan:
    """The plan that the image is made of. `chosen`: kernel → the candidate taken, what the manifest says of the choice, its origin.

    What candidates ask for comes from `helpers`: those kernels, with the state and tables that they use, and no others. Raises
    RefusedError for a kernel that no helper module has, and for a kernel or a variable that the module has itself.
    """
    units = [part for part in plan.parts if part.role == "unit"]
    asked: dict[str, str] = {}
    for problem in plan.problems:
        candidate, said, origin = chosen[problem.kernel.symbol]
        if candidate.part is None:
            msg = f"kernel {problem.kernel.readable} was decided for a candidate that has no unit"
            raise GpuError(msg, hint="this is a bug in the choice")
        kernels = tuple(replace(kernel, chosen=dict(said), origin=dict(origin)) for kernel in candidate.part.kernels)
        units.append(replace(candidate.part, kernels=kernels))
        asked |= {name: problem.kernel.readable for name in candidate.needs if name not in asked}
    others = [part for part in plan.parts if part.role != "unit"]
    state = list(plan.state)
    taken = {kernel.symbol: kernel.source for part in units for kernel in part.kernels}
    digests = {part.digest: part.key for part in (*units, *others)}
    for helper, its_state in list(_asked(asked, helpers, taken=taken, module=plan.module)):
        for each in its_state:
            _check_twice(each, state, module=plan.module)
        (units if helper.role == "unit" else others).append(_named_apart(helper, digests))
        state += its_state
    used = {symbol for part in (*units, *others) for symbol in part.uses}
    # A table's name is made of its content, so two of one name, lowered by the options of two modules, are one.
    tables = {part.defines[0]: part for part in reversed(others) if part.role == "table" and part.defines[0] in used}
    kept = {part.digest: part for part in (*(part for part in others if part.role == "state"), *tables.values())}
    return replace(
        plan,
        parts=(
            *sorted({part.digest: part for part in units}.values(), key=lambda part: part.kernels[0].symbol),
            *sorted(kept.values(), key=lambda part: (part.role, part.defines, part.source)),
        ),
        state=tuple(sorted(state, key=lambda each: each.symbol)),
        problems=(),
    )


def _check_twice(new: PlannedState, state: Iterable[PlannedState], *, module: str) -> None:
    """Two sources that define one variable, also a private one of equal content, have two: an image would have one of them."""
    other = next((each for each in state if each.symbol == new.symbol), None)
    if other is not None:
        name = demangle(new.symbol.partition("$")[0])
        msg = f"variable {name} is defined in {other.source} and in {new.source}, whose kernel the candidate that was chosen asks for"
        raise RefusedError(msg, module=module, hint="give one of them another name, static or not: an image has one variable of a name")


def _named_apart(helper: Part, digests: dict[str, Any]) -> Part:
    """With another digest where a part of the image has the same one and is something else: a collision between two plans."""
    name, count = helper.digest, 1
    while digests.setdefault(name, helper.key) != helper.key:
        count += 1
        name = f"{helper.digest}.{count}"
    return helper if name == helper.digest else replace(helper, digest=name)


def _asked(
    asked: Mapping[str, str], helpers: Iterable[Plan], *, taken: dict[str, str], module: str
) -> Iterable[tuple[Part, list[PlannedState]]]:
    """The parts that hold these kernels, each with the state that it defines. `taken`: kernel → the source that has it."""
    plans = list(helpers)
    entered: set[tuple[int, str]] = set()
    for name, user in sorted(asked.items()):
        try:
            owner, part = _found(name, plans)
            if (id(owner), part.digest) not in entered:
                _check_names(name, part, taken)
        except RefusedError as error:
            raise error.at(kernel=user, module=module) from None
        for each in (part, *reached(part, owner)):
            if (id(owner), each.digest) not in entered:
                entered.add((id(owner), each.digest))
                yield each, [state for state in owner.state if state.symbol in each.defines]


def _found(name: str, plans: Sequence[Plan]) -> tuple[Plan, Part]:
    """The unit of the kernel of this name, and its plan. Raises RefusedError where there is none, and where it may be any of several."""
    found = [
        (kernel.symbol, plan, part)
        for plan in plans
        for part in plan.units
        for kernel in part.kernels
        if name in (kernel.symbol, short(kernel.readable))
    ]
    if not found:
        known = sorted({short(kernel.readable) for plan in plans for kernel in plan.kernels})
        hint = f"the helpers have {', '.join(known)}" if known else "name the modules that have such kernels: helpers=[...]"
        msg = f"the candidate that was chosen asks for {name}, which no helper has"
        raise RefusedError(msg, hint=hint)
    symbol, owner, part = found[0]
    other = next(((each, plan) for each, plan, unit in found if (each, unit.key, unit.assemble) != (symbol, part.key, part.assemble)), None)
    if other is not None:
        msg = f"the candidate that was chosen asks for {name}, which is {symbol} of {owner.module} and {other[0]} of {other[1].module}"
        raise RefusedError(msg, hint="ask for one of them by its symbol; of two with one symbol, rename one")
    return owner, part


def _check_names(name: str, part: Part, taken: dict[str, str]) -> None:
    """An image has one kernel of a name. Enters those of the part."""
    for kernel in part.kernels:
        if kernel.symbol in taken:
            msg = f"the candidate that was chosen asks for {name}, and {taken[kernel.symbol]} has a {kernel.symbol} too"
            raise RefusedError(msg, hint="rename one of them")
        taken[kernel.symbol] = kernel.source


def reached(part: Part, plan: Plan) -> list[Part]:
    """State and tables that a part uses, and what these use."""
    found: dict[str, Part] = {}
    waiting = list(part.uses)
    while waiting:
        symbol = waiting.pop()
        for other in plan.parts:
            if other.role != "unit" and symbol in other.defines and other.digest not in found:
                found[other.digest] = other
                waiting += other.uses
    return list(found.values())
