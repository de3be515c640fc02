"""From the indexes of a module's sources to its plan: who defines what, what clashes, what each part is called.

A pure function: it sees indexes and options, no text, no tool and no file.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from scons_gpu.errors import GpuError, MissingSymbolError, RefusedError
from scons_gpu.plan.candidates import problems
from scons_gpu.plan.model import Part, Plan, PlannedKernel, PlannedState
from scons_gpu.split import digest, ptx_slice
from scons_gpu.split.readable import demangle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scons_gpu.plan.candidates import Tuned, Variant
    from scons_gpu.plan.model import PlannedProblem
    from scons_gpu.split.index import Index, Kernel, State, Unit

__all__ = ["CONSTANT_BANK", "Key", "plan", "refusal"]

CONSTANT_BANK = 64 * 1024
"""Bytes of constant memory that one image can have (CUDA C++ Programming Guide, technical specifications)."""

HOST_FUNCTIONS = {
    "printf": "device code prints through vprintf: include <cstdio> and let a CUDA compiler see the call",
    "__assert_fail": "this is the host's assert; the device's is __assertfail",
    "puts": "device code prints through printf alone",
    "memcpy": "device code copies with a loop or llvm.memcpy",
    "exit": 'device code ends with __trap() or asm("exit;")',
    "__cxa_pure_virtual": "clang has none for the device: give the class's pure virtual functions a body",
    **dict.fromkeys(("_Znwm", "_Znam", "_ZdlPv", "_ZdaPv", "_ZdlPvm", "_ZdaPvm"), "#include <new>: there clang defines it for the device"),
}


class Key(Protocol):
    """Gives the fields that a part's digest is made of."""

    def __call__(self, slice_name: str, *, libdevice: bool, renames: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """As (field, value), sorted by field."""


@dataclass(frozen=True)
class _Owners:
    """Who defines what, for the sources that do not: symbol → source."""

    functions: Mapping[str, str]
    variables: Mapping[str, str]


@dataclass
class _Draft:
    """What is known of the module so far."""

    link: str
    key: Key
    kernels: dict[str, Part] = field(default_factory=dict)
    units: dict[str, Part] = field(default_factory=dict)
    state: dict[str, tuple[State, str]] = field(default_factory=dict)
    others: dict[str, Part] = field(default_factory=dict)
    taken: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    renames: dict[str, dict[str, str]] = field(default_factory=dict)
    """Source → what its private state is called in the image."""

    def name(self, key: tuple[tuple[str, str], ...]) -> str:
        """The digest of `key`; with `.2` and so on where another part of the plan has the same one."""
        base = digest.fields(dict(key))
        name, count = base, 1
        while self.taken.setdefault(name, key) != key:
            count += 1
            name = f"{base}.{count}"
        return name


def plan(  # noqa: PLR0913 - one keyword for each thing that decides
    indexes: Sequence[Index], *, module: str, arch: str, link: str, key: Key, tuned: Sequence[Tuned] = ()
) -> Plan:
    """The plan of one module for one architecture. Raises RefusedError, with both sources named, for what clashes.

    A kernel that has candidates (`tuned`) is none of its units yet, but one of its problems; so all tables are kept, whoever uses them.
    """
    draft = _Draft(link=link, key=key)
    owners = _Owners(
        functions={export.symbol: index.source for index in reversed(indexes) for export in index.exports},
        variables={state.symbol: index.source for index in reversed(indexes) for state in index.state if not state.private},
    )
    try:
        _check_strengths(indexes)
        for index in indexes:
            renames = _add_state(draft, index, owners=owners)
            _add_tables(draft, index)
            draft.renames[index.source] = renames
            for unit in index.units:
                if not _has_candidates(unit, index.source, tuned):
                    _add_unit(draft, unit, index=index, owners=owners, renames=renames)
        _check_constants(draft)
        candidates = _problems(draft, tuned, indexes, owners=owners)
    except GpuError as error:
        raise error.at(module=module, arch=arch) from None
    units = sorted(draft.units.values(), key=lambda part: part.kernels[0].symbol)
    used = _used_tables(units, draft.others)
    others = [part for part in draft.others.values() if part.role == "state" or tuned or part.defines[0] in used]
    # By what they define, not by digest: where the linker puts a variable is then not left to a hash.
    others.sort(key=lambda part: (part.role, part.defines, part.source))
    return Plan(
        module=module,
        arch=arch,
        link=link,
        parts=(*units, *others),
        state=tuple(
            PlannedState(symbol=symbol, bytes=state.bytes, space=state.space, source=source)
            for symbol, (state, source) in sorted(draft.state.items())
        ),
        notes=tuple((index.source, note) for index in indexes for note in index.notes),
        problems=candidates,
    )


def refusal(part: Part) -> GpuError | None:
    """Why this part cannot be built, if it cannot."""
    from scons_gpu.errors import from_json  # noqa: PLC0415 - the rare path

    return from_json(json.loads(part.refused)) if part.refused else None


def _add_state(draft: _Draft, index: Index, *, owners: _Owners) -> dict[str, str]:
    """Enters the state of one source. Gives the renames that keep private state of equal content and name apart."""
    renames: dict[str, str] = {}
    defines = []
    for state in index.state:
        symbol = state.symbol
        taken = symbol in draft.state or (state.private and symbol in owners.variables)
        if taken and draft.link != "bundle":  # in a bundle each source keeps its own
            other, source = draft.state.get(symbol, (state, index.source))
            if state.private:
                symbol = _free(state.symbol, draft.state)
                renames[state.symbol] = symbol
            elif not (state.weak and other.weak and state.content == other.content):
                raise _twice(state, source, index.source)
        draft.state.setdefault(symbol, (state, index.source))
        defines.append(symbol)
    if index.state_slice:
        pairs = tuple(sorted(renames.items()))
        fields = _key(draft.key, index, index.state_slice, libdevice=index.state_libdevice, renames=pairs)
        refused = _needs(index.state_needs, kernel="", source=index.source, owners=owners, link=draft.link)
        fields = _with_refusal(fields, refused)
        name = draft.name(fields)
        draft.others[name] = Part(
            digest=name,
            key=fields,
            slice=index.state_slice,
            role="state",
            source=index.source,
            bytes=0,
            renames=pairs,
            defines=tuple(sorted(defines)),
            libdevice=index.state_libdevice,
            language=index.language,
            refused=refused,
        )
    return renames


def _key(key: Key, index: Index, slice_name: str, *, libdevice: bool, renames: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The fields of a part's digest; where its slice is PTX already, nothing that lowers is among them."""
    if index.language == "ptx":
        return ptx_slice.key(slice_name, arch=index.arch, renames=renames)
    return key(slice_name, libdevice=libdevice, renames=renames)


def _free(symbol: str, taken: dict[str, tuple[State, str]]) -> str:
    """`$2` and so on: PTX has no name with a dot."""
    count = 2
    while f"{symbol}${count}" in taken:
        count += 1
    return f"{symbol}${count}"


def _twice(state: State, first: str, second: str) -> RefusedError:
    return RefusedError(
        f"variable {state.name} is defined in {first} and in {second}",
        hint="an image has one variable of a name: define it in one source, make it static, or put the sources into two modules",
    )


def _add_tables(draft: _Draft, index: Index) -> None:
    for table in index.tables:
        fields = draft.key(table.slice, libdevice=False, renames=())
        name = draft.name(fields)
        draft.others[name] = Part(
            digest=name, key=fields, slice=table.slice, role="table", source=index.source, bytes=table.bytes, defines=(table.symbol,)
        )


def _add_unit(draft: _Draft, unit: Unit, *, index: Index, owners: _Owners, renames: dict[str, str]) -> None:
    part = _part(draft, unit, index=index, owners=owners, renames=renames, key=draft.key)
    for kernel in unit.kernels:
        other = draft.kernels.setdefault(kernel.symbol, part)
        if other is not part and other.key != part.key:
            raise _clash(kernel, other.source, index.source)
    draft.units.setdefault(part.digest, part)


def _part(  # noqa: PLR0913 - one keyword for each thing that decides
    draft: _Draft, unit: Unit, *, index: Index, owners: _Owners, renames: dict[str, str], key: Key
) -> Part:
    pairs = tuple(sorted((old, new) for old, new in renames.items() if old in unit.state))
    fields = _key(key, index, unit.slice, libdevice=unit.libdevice, renames=pairs)
    refused = _needs(unit.needs, kernel=unit.kernels[0].readable, source=index.source, owners=owners, link=draft.link)
    fields = _with_refusal(fields, refused)
    name = draft.name(fields)
    return Part(
        digest=name,
        key=fields,
        slice=unit.slice,
        role="unit",
        source=index.source,
        bytes=unit.bytes,
        body=unit.body,
        kernels=tuple(_kernel(kernel, unit, index.source) for kernel in unit.kernels),
        joined=unit.joined,
        renames=pairs,
        uses=tuple(sorted({*(renames.get(symbol, symbol) for symbol in unit.state), *unit.tables})),
        libdevice=unit.libdevice,
        language=index.language,
        refused=refused,
    )


def _has_candidates(unit: Unit, source: str, tuned: Sequence[Tuned]) -> bool:
    """Whether the unit is left to its candidates. Raises RefusedError for one that holds kernels without candidates besides."""
    named = [
        kernel for kernel in unit.kernels if any(each.source == source and each.names(kernel.symbol, kernel.readable) for each in tuned)
    ]
    if named and len(unit.kernels) > 1:
        others = ", ".join(kernel.readable for kernel in unit.kernels if kernel is not named[0])
        msg = f"kernel {named[0].readable} has candidates, and is one unit with {others} ({unit.joined})"
        raise RefusedError(msg, source=source, hint="a kernel with candidates is compiled alone: take apart what they share")
    return bool(named)


def _problems(draft: _Draft, tuned: Sequence[Tuned], indexes: Sequence[Index], *, owners: _Owners) -> tuple[PlannedProblem, ...]:
    """Candidates take the state of the source as it is: what one defines otherwise would be two variables of one name."""
    if not tuned:
        return ()
    for variant in (variant for each in tuned for variant in each.variants):
        _add_tables(draft, variant.index)

    def make(unit: Unit, variant: Variant) -> Part:
        source = variant.index.source
        renames = draft.renames[source]
        content = {state.symbol: state.content for state in variant.index.state}
        for symbol in unit.state:
            mine = draft.state.get(renames.get(symbol, symbol))
            if mine is None or mine[0].content != content.get(symbol, mine[0].content):
                msg = f"with these values, variable {demangle(symbol)} is not the one that {source} defines without them"
                raise RefusedError(msg, hint="let values change code, not the variables that all candidates share")
        part = _part(draft, unit, index=variant.index, owners=owners, renames=renames, key=variant.key)
        return replace(
            part,
            candidate=variant.label,
            lower=dict(variant.lower) if variant.lower else None,
            assemble=dict(variant.assemble) if variant.assemble else None,
        )

    found = problems(tuned, indexes, make=make, failed=lambda part: part.refused)
    for problem in found:
        if other := draft.kernels.get(problem.kernel.symbol):
            raise _clash(problem.kernel, problem.kernel.source, other.source)
    return found


def _kernel(kernel: Kernel, unit: Unit, source: str) -> PlannedKernel:
    return PlannedKernel(
        symbol=kernel.symbol,
        readable=kernel.readable,
        source=source,
        max_threads=kernel.max_threads,
        min_blocks=kernel.min_blocks,
        shared_bytes=sum(shared.bytes for shared in unit.shared),
        dynamic_shared=kernel.dynamic_shared,
    )


def _clash(kernel: Kernel | PlannedKernel, first: str, second: str) -> RefusedError:
    return RefusedError(
        f"kernel {kernel.readable} is defined differently in {first} and in {second}",
        hint="an image has one kernel of a name: rename one, or put the sources into two modules",
    )


def _needs(needs: Sequence[tuple[str, str]], *, kernel: str, source: str, owners: _Owners, link: str) -> str:
    """The refusal of a part that uses what its source does not define, as JSON; empty where there is nothing such.

    A variable that another source of an image defines is the link's to find.
    """
    for symbol, user in needs:
        if symbol in owners.variables and link != "bundle":
            continue
        name = demangle(symbol)
        what = f"{demangle(user)} uses {name}, which"
        if owner := owners.functions.get(symbol):
            hint = f"calls between the sources of a module are not resolved: include {name} in {source}"
            error: GpuError = RefusedError(f"{what} {owner} defines", hint=hint)
        elif owner := owners.variables.get(symbol):
            hint = "kernels of a bundle share no memory with those of another source: link an image, or join the sources"
            error = RefusedError(f"{what} {owner} defines", hint=hint)
        else:
            hint = HOST_FUNCTIONS.get(symbol, "define it in this source, or remove what uses it")
            error = MissingSymbolError(f"{what} nobody defines", hint=hint)
        return json.dumps(error.at(kernel=kernel, source=source).to_json(), sort_keys=True)
    return ""


def _with_refusal(fields: tuple[tuple[str, str], ...], refused: str) -> tuple[tuple[str, str], ...]:
    """The key of a refused part is its own: another module may have what this one lacks."""
    return tuple(sorted((*fields, ("refused", refused)))) if refused else fields


def _check_strengths(indexes: Sequence[Index]) -> None:
    """A strong definition beside a weak one: a linker takes the strong one for both sources, units each take their own."""
    found: dict[str, tuple[bool, str]] = {}
    for index in indexes:
        for export in index.exports:
            weak, source = found.setdefault(export.symbol, (export.weak, index.source))
            if weak != export.weak:
                first, second = (source, index.source) if export.weak else (index.source, source)
                msg = f"function {export.symbol} is defined in {first}, and may be replaced where it is defined in {second}"
                raise RefusedError(msg, hint="make it static in one of them, rename it, or put the sources into two modules")


def _used_tables(units: Iterable[Part], others: dict[str, Part]) -> set[str]:
    return {symbol for part in (*units, *others.values()) for symbol in part.uses}


def _check_constants(draft: _Draft) -> None:
    """State stays, whoever reads it, so its sum is certain. What tables leave is known once units are assembled."""
    if draft.link == "bundle":  # each unit has a bank of its own, and its assembler counts
        return
    sizes = Counter({symbol: state.bytes for symbol, (state, _) in draft.state.items() if state.space == "constant"})
    if sizes.total() <= CONSTANT_BANK:
        return
    named = [(size, *draft.state[symbol]) for symbol, size in sizes.most_common(5)]
    largest = "\n".join(f"{size:8d} bytes  {state.name} of {source}" for size, state, source in named)
    msg = f"{sizes.total()} bytes of __constant__ variables do not fit into the {CONSTANT_BANK} bytes of an image"
    raise RefusedError(msg, output=largest, hint="move the largest into __device__ memory, or into another module")
