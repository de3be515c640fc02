"""From the indexes of a module's sources to its plan: who defines what, what clashes, what each part is called.

A pure function: it sees indexes and options, no text, no tool and no file.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from scons_gpu.errors import GpuError, RefusedError
from scons_gpu.plan.between import Held, check
from scons_gpu.plan.candidates import problems
from scons_gpu.plan.domain import Domain, Taken
from scons_gpu.plan.model import Part, Plan, PlannedKernel, PlannedState
from scons_gpu.split import digest
from scons_gpu.split.readable import demangle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scons_gpu.plan.candidates import Tuned, Variant
    from scons_gpu.plan.model import PlannedProblem
    from scons_gpu.split.index import Index, Kernel, State, Unit

__all__ = ["CONSTANT_BANK", "Key", "plan", "refusal"]

CONSTANT_BANK = 64 * 1024
"""Bytes of constant memory that one image can have (CUDA C++ Programming Guide, technical specifications)."""


class Key(Protocol):
    """Gives the fields that a part's digest is made of."""

    def __call__(self, slice_name: str, *, libdevice: bool, renames: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """As (field, value), sorted by field."""


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
    renames: dict[int, dict[str, str]] = field(default_factory=dict)
    """Place of a source → what its private state is called in the image."""
    held: list[Held] = field(default_factory=list)

    def name(self, key: tuple[tuple[str, str], ...]) -> str:
        """The digest of `key`; with `.2` and so on where another part of the plan has the same one."""
        base = digest.fields(dict(key))
        name, count = base, 1
        while self.taken.setdefault(name, key) != key:
            count += 1
            name = f"{base}.{count}"
        return name


def plan(  # noqa: PLR0913 - one keyword for each thing that decides
    indexes: Sequence[Index],
    *,
    module: str,
    arch: str,
    link: str,
    key: Key,
    tuned: Sequence[Tuned] = (),
    libraries: Mapping[str, str] | None = None,
) -> Plan:
    """The plan of one module for one architecture. Raises RefusedError, with both sources named, for what clashes.

    `libraries`: symbol → library, of what such define that the link takes besides.

    A kernel that has candidates (`tuned`) is none of its units yet, but one of its problems; so all tables are kept, whoever uses them.
    """
    draft = _Draft(link=link, key=key)
    domain = Domain(indexes, link=link, renames=draft.renames, libraries=libraries or {}, real=arch.startswith("sm_"))
    try:
        domain.decide()
        for place, index in enumerate(indexes):
            _add_state(draft, index, place=place, domain=domain)
        for place, index in enumerate(indexes):
            _add_state_part(draft, index, place=place, domain=domain)
            _add_tables(draft, index)
            for unit in index.units:
                if not _has_candidates(unit, index.source, tuned):
                    _add_unit(draft, unit, place=place, domain=domain)
        _check_constants(draft)
        candidates = _tell_named(draft, _problems(draft, tuned, indexes, domain=domain))
        check(draft.held, link=link)
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


def _tell_named(draft: _Draft, candidates: tuple[PlannedProblem, ...]) -> tuple[PlannedProblem, ...]:
    """Parts whose kernels others name hear of it."""
    named = {symbol for each in draft.held for symbol in each.part.names}
    if not named:
        return candidates

    def told(part: Part | None) -> Part | None:
        return part and replace(part, names=tuple(sorted({*part.names, *named.intersection(each.symbol for each in part.kernels)})))

    draft.units |= {name: new for name, part in draft.units.items() if (new := told(part))}
    return tuple(
        replace(problem, candidates=tuple(replace(each, part=told(each.part)) for each in problem.candidates)) for problem in candidates
    )


def refusal(part: Part) -> GpuError | None:
    """Why this part cannot be built, if it cannot."""
    from scons_gpu.errors import from_json  # noqa: PLC0415 - the rare path

    return from_json(json.loads(part.refused)) if part.refused else None


def _add_state(draft: _Draft, index: Index, *, place: int, domain: Domain) -> None:
    """Enters the state of one source, with the renames that keep private state of equal content and name apart."""
    renames = draft.renames[place] = {}
    for state in index.state:
        symbol = state.symbol
        if domain.gives_way(place, state):
            continue
        taken = symbol in draft.state or (state.private and domain.has_variable(symbol))
        if taken and draft.link != "bundle":  # in a bundle each source keeps its own
            other, source = draft.state.get(symbol, (state, index.source))
            if state.private:
                symbol = _free(state.symbol, draft.state)
                renames[state.symbol] = symbol
            elif not (state.weak and other.weak and state.content == other.content):
                raise _twice(state, source, index.source)
        draft.state.setdefault(symbol, (state, index.source))


def _add_state_part(draft: _Draft, index: Index, *, place: int, domain: Domain) -> None:
    if not index.state_slice:
        return
    renames = draft.renames[place]
    dropped = [state.symbol for state in index.state if domain.gives_way(place, state)]
    taken, refused = _taken(domain, place, index.state_needs, index.state_lacks, kernel="", dropped=dropped)
    pairs = tuple(sorted([*renames.items(), *taken.renames]))
    libdevice = index.state_libdevice or taken.libdevice
    fields = _joined(_key(draft.key, index, index.state_slice, libdevice=libdevice, renames=pairs), taken, refused)
    name = draft.name(fields)
    part = draft.others[name] = Part(
        digest=name,
        key=fields,
        slice=index.state_slice,
        role="state",
        source=index.source,
        bytes=0,
        renames=pairs,
        defines=tuple(sorted(renames.get(state.symbol, state.symbol) for state in index.state if state.symbol not in dropped)),
        uses=tuple(sorted(taken.uses)),
        names=tuple(sorted({*index.state_names, *taken.names})),
        libdevice=libdevice,
        language=index.language,
        joins=taken.joins,
        refused=refused,
    )
    draft.held.append(Held(part, frozenset((place, symbol) for symbol in index.state_shared), (), taken))


def _key(key: Key, index: Index, slice_name: str, *, libdevice: bool, renames: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The fields of a part's digest; where its slice is PTX already, nothing that lowers is among them."""
    if index.language == "ptx":
        from scons_gpu.split import ptx_slice  # noqa: PLC0415 - few builds have PTX among their sources

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


def _add_unit(draft: _Draft, unit: Unit, *, place: int, domain: Domain) -> None:
    part = _part(draft, unit, place=place, domain=domain, key=draft.key)
    for kernel in unit.kernels:
        other = draft.kernels.setdefault(kernel.symbol, part)
        if other is not part and not _equal(other, part):
            raise _clash(kernel, other.source, part.source)
    if all(draft.kernels[kernel.symbol] is part for kernel in unit.kernels):
        draft.units.setdefault(part.digest, part)


def _equal(first: Part, second: Part) -> bool:
    """Whether two sources bring one kernel: the same text, joined by the same texts, whichever of the sources is the part's own."""
    joined = [sorted((slices, joined.renames) for joined in part.joins for slices in joined.slices) for part in (first, second)]
    keys = [[(name, value) for name, value in part.key if name != "joins"] for part in (first, second)]
    return keys[0] == keys[1] and joined[0] == joined[1]


def _part(draft: _Draft, unit: Unit, *, place: int, domain: Domain, key: Key) -> Part:
    renames, index = draft.renames[place], domain.indexes[place]
    source = index.source
    taken, refused = _taken(domain, place, unit.needs, unit.lacks, kernel=unit.kernels[0].readable)
    pairs = tuple(sorted([*((old, new) for old, new in renames.items() if old in unit.state), *taken.renames]))
    libdevice = unit.libdevice or taken.libdevice
    fields = _joined(_key(key, index, unit.slice, libdevice=libdevice, renames=pairs), taken, refused)
    name = draft.name(fields)
    part = Part(
        digest=name,
        key=fields,
        slice=unit.slice,
        role="unit",
        source=source,
        bytes=unit.bytes + sum(offer.bytes for _, offer in taken.offers),
        body=unit.body if not any(joined.own for joined in taken.joins) else digest.fields({"body": unit.body, "slice": unit.slice}),
        kernels=tuple(_kernel(kernel, unit, source, taken, place=place) for kernel in unit.kernels),
        joined=unit.joined,
        renames=pairs,
        uses=tuple(sorted({*(renames.get(symbol, symbol) for symbol in unit.state), *unit.tables, *taken.uses})),
        names=tuple(sorted({*unit.names, *taken.names})),
        libdevice=libdevice,
        language=index.language,
        joins=taken.joins,
        refused=refused,
    )
    draft.held.append(Held(part, frozenset((place, each.symbol) for each in unit.shared), unit.indirect, taken))
    return part


def _taken(  # noqa: PLR0913 - what a part leaves to others, and who it is
    domain: Domain,
    place: int,
    needs: Sequence[tuple[str, str]],
    lacks: Sequence[tuple[str, str]],
    *,
    kernel: str,
    dropped: Sequence[str] = (),
) -> tuple[Taken, str]:
    """What joins a part, or, as JSON, why it cannot be built."""
    try:
        return domain.take(place, needs=needs, lacks=lacks, dropped=dropped), ""
    except GpuError as error:
        return Taken(), json.dumps(error.at(kernel=kernel, source=domain.indexes[place].source).to_json(), sort_keys=True)


def _joined(fields: tuple[tuple[str, str], ...], taken: Taken, refused: str) -> tuple[tuple[str, str], ...]:
    """The key of a part with what joins it. That of a refused one is its own: another module may have what this one lacks."""
    joins = [[joined.own, joined.slices, joined.renames, joined.dropped] for joined in taken.joins]
    more = {"joins": json.dumps(joins, separators=(",", ":")) if joins else "", "refused": refused}
    return tuple(sorted((*fields, *((name, value) for name, value in more.items() if value))))


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


def _problems(draft: _Draft, tuned: Sequence[Tuned], indexes: Sequence[Index], *, domain: Domain) -> tuple[PlannedProblem, ...]:
    """Candidates take the state of the source as it is: what one defines otherwise would be two variables of one name."""
    if not tuned:
        return ()
    for variant in (variant for each in tuned for variant in each.variants):
        _add_tables(draft, variant.index)

    def make(unit: Unit, variant: Variant) -> Part:
        source = variant.index.source
        place = next(number for number, index in enumerate(indexes) if index.source == source)
        renames = draft.renames[place]
        content = {state.symbol: state.content for state in variant.index.state}
        for symbol in unit.state:
            mine = draft.state.get(renames.get(symbol, symbol))
            if mine is None or mine[0].content != content.get(symbol, mine[0].content):
                msg = f"with these values, variable {demangle(symbol)} is not the one that {source} defines without them"
                raise RefusedError(msg, hint="let values change code, not the variables that all candidates share")
        own = domain.replacing(place, variant.index) if unit.needs or unit.lacks else domain
        part = _part(draft, unit, place=place, domain=own, key=variant.key)
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


def _kernel(kernel: Kernel, unit: Unit, source: str, taken: Taken, *, place: int) -> PlannedKernel:
    shared = {**{(place, each.symbol): each.bytes for each in unit.shared}, **taken.shared}
    return PlannedKernel(
        symbol=kernel.symbol,
        readable=kernel.readable,
        source=source,
        max_threads=kernel.max_threads,
        min_blocks=kernel.min_blocks,
        shared_bytes=sum(shared.values()),
        dynamic_shared=kernel.dynamic_shared or any(offer.dynamic_shared for _, offer in taken.offers),
    )


def _clash(kernel: Kernel | PlannedKernel, first: str, second: str) -> RefusedError:
    return RefusedError(
        f"kernel {kernel.readable} is defined differently in {first} and in {second}",
        hint="an image has one kernel of a name: rename one, or put the sources into two modules",
    )


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
