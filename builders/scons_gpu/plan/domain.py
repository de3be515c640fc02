"""A module is one link domain: what one source lacks and another defines joins the unit that needs it, before anything is compiled.

Who defines a name is decided as a linker does: a strong definition goes before weak ones, two strong ones are an error. What a linker
lets pass in silence is refused here: types that differ, and weak definitions that differ where no strong one decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from scons_gpu.errors import GpuError, MissingSymbolError, RefusedError
from scons_gpu.plan.model import Joined
from scons_gpu.split.index import RUNTIME
from scons_gpu.split.readable import demangle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scons_gpu.split.index import Export, Index, Offer, State, Type

__all__ = ["HOST_FUNCTIONS", "Domain", "Taken"]

HOST_FUNCTIONS = {
    "printf": "device code prints through vprintf: include <cstdio> and let a CUDA compiler see the call",
    "__assert_fail": "this is the host's assert; the device's is __assertfail",
    "puts": "device code prints through printf alone",
    "memcpy": "device code copies with a loop or llvm.memcpy",
    "exit": 'device code ends with __trap() or asm("exit;")',
    "__cxa_pure_virtual": "clang has none for the device: give the class's pure virtual functions a body",
    **dict.fromkeys(("_Znwm", "_Znam", "_ZdlPv", "_ZdaPv", "_ZdlPvm", "_ZdaPvm"), "#include <new>: there clang defines it for the device"),
}
_TWO_MODULES = "or put the sources into two modules"
_NOBODY = (
    "define it in this source or in another of its module, or remove what uses it; "
    "each .cu of a program is a module, unless GPU_RDC=1 makes one of all that a program is linked of"
)
_ONE_HEADER = "let both include the header that declares it"
_SPACES = {None: "", 0: "memory", 1: "__device__ memory", 4: "__constant__ memory"}


@dataclass(frozen=True)
class _Owner:
    """Who defines an export for all sources."""

    place: int
    """Which of the module's sources it is."""
    export: Export
    offer: Offer


@dataclass(frozen=True)
class _Ask:
    """A name that one source needs, and who needs it."""

    place: int
    symbol: str
    user: str
    optional: bool
    near: bool
    """Whether nothing of another source lies between the unit and this."""


@dataclass(frozen=True)
class Taken:
    """What joins one part, and what comes with it."""

    joins: tuple[Joined, ...] = ()
    offers: tuple[tuple[int, Offer], ...] = ()
    """Each with the place of its source."""
    uses: frozenset[str] = frozenset()
    """State and tables."""
    names: frozenset[str] = frozenset()
    """Kernels."""
    renames: tuple[tuple[str, str], ...] = ()
    """(Table as the part's text calls it, as the image does)."""

    @property
    def libdevice(self) -> bool:
        """Whether something of it calls libdevice."""
        return any(offer.libdevice for _, offer in self.offers)

    @property
    def shared(self) -> dict[tuple[int, str], int]:
        """(Place of its source, shared variable) → bytes."""
        return {(place, each.symbol): each.bytes for place, offer in self.offers for each in offer.shared}


@dataclass
class Domain:
    """Who defines what among a module's sources."""

    indexes: Sequence[Index]
    link: str
    renames: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Place of a source → what its private state is called in the image."""
    libraries: Mapping[str, str] = field(default_factory=dict)
    """Symbol → the library that defines it, as machine code."""
    real: bool = True
    """Whether the image is machine code, so that such code can be linked to it."""
    _exports: dict[str, _Owner] = field(default_factory=dict, init=False)
    _own: dict[tuple[int, str], _Owner] = field(default_factory=dict, init=False)
    """Place of a part's source, and symbol → that source's own definition, which is as good as any other."""
    _inline: dict[str, int] = field(default_factory=dict, init=False)
    _variables: dict[str, tuple[int, State]] = field(default_factory=dict, init=False)
    _kernels: dict[str, int] = field(default_factory=dict, init=False)
    _declared: list[dict[str, Type]] = field(default_factory=list, init=False)

    def decide(self) -> None:
        """Finds who defines what. Raises RefusedError, with both sources, where that is not one of them."""
        found: dict[str, list[tuple[int, Export]]] = {}
        for place, index in enumerate(self.indexes):
            self._declared.append(dict(index.declared))
            for export in index.exports:
                found.setdefault(export.symbol, []).append((place, export))
            for state in index.state:
                known = self._variables.get(state.symbol)
                if not state.private and (known is None or (known[1].weak and not state.weak)):
                    self._variables[state.symbol] = (place, state)
            self._kernels.update((kernel.symbol, place) for unit in index.units for kernel in unit.kernels)
        for symbol, owners in found.items():
            self._decide(symbol, owners)

    def has_variable(self, symbol: str) -> bool:
        """Whether a source defines a variable of this name that the others can see."""
        return symbol in self._variables

    def gives_way(self, place: int, state: State) -> bool:
        """Whether another source of an image has a strong definition beside this weak one. Raises RefusedError where their types differ."""
        if self.link == "bundle" or state.private or not state.weak:
            return False
        owner, other = self._variables[state.symbol]
        if other.weak or owner == place:
            return False
        if wrong := _differs(state.type, other.type):
            here, there = self._source(place), self._source(owner)
            msg = f"variable {state.name} is defined in {there}, and otherwise where it may be replaced in {here}"
            raise RefusedError(msg, output=f"{here}: {wrong[0]}\n{there}: {wrong[1]}", hint=_ONE_HEADER)
        return True

    def _decide(self, symbol: str, owners: Sequence[tuple[int, Export]]) -> None:
        """As a linker chooses. What is inline is everybody's own, and must not meet what is not."""
        strong = [(place, export) for place, export in owners if not export.weak]
        weak = [(place, export) for place, export in owners if export.weak]
        inline = [place for place, export in weak if export.offer is None]
        if len(strong) > 1:
            raise self._twice(symbol, strong[0], strong[1])
        if strong and inline:
            raise self._replaceable(symbol, strong[0][0], inline[0])
        offered = [_Owner(place, export, export.offer) for place, export in (strong or weak) if export.offer]
        if strong:
            self._check_weak(symbol, strong[0], weak)
        elif all(owner.offer.odr for owner in offered):
            self._own.update(((owner.place, symbol), owner) for owner in offered)
        else:
            self._check_equal(symbol, offered)
        if offered and symbol in RUNTIME and len(self.indexes) > 1:
            raise self._runtime(symbol, offered[0].place)
        if offered:
            self._exports[symbol] = offered[0]
        elif owners:
            self._inline[symbol] = owners[0][0]

    def replacing(self, place: int, index: Index) -> Domain:
        """The same module with one source compiled otherwise, as a candidate is."""
        indexes = [*self.indexes]
        indexes[place] = index
        domain = Domain(indexes, link=self.link, renames=self.renames, libraries=self.libraries, real=self.real)
        domain.decide()
        return domain

    def take(self, place: int, *, needs: Iterable[tuple[str, str]], lacks: Iterable[tuple[str, str]], dropped: Sequence[str] = ()) -> Taken:
        """What joins a part of the source at `place`. `dropped`: weak state that the part gives up.

        Raises MissingSymbolError for what nobody defines, RefusedError for what the part cannot have.
        """
        waiting = [
            _Ask(place, symbol, user, bool(optional), near=True) for optional, pairs in enumerate((needs, lacks)) for symbol, user in pairs
        ]
        found: dict[str, _Owner] = {}
        seen: set[tuple[str, bool]] = set()
        uses: set[str] = set()
        names: set[str] = set()
        tables: dict[int, dict[str, str]] = {}
        for ask in waiting:  # grows
            owner = self._own.get((place, ask.symbol)) or self._exports.get(ask.symbol)
            if owner is None:
                (uses if ask.symbol in self._variables else names).update(self._left_to_link(ask))
                continue
            if self.indexes[ask.place].language == "ptx":
                raise self._refused(ask, owner.place, f"PTX is joined with nothing: define it in {self._source(ask.place)}")
            self._check_type(ask, owner.place, owner.offer.type)
            if owner.offer.name:
                tables.setdefault(ask.place, {})[ask.symbol] = owner.offer.name
            near = ask.near and owner.place == place
            if (ask.symbol, near) in seen:
                continue
            self._check_offer(ask, owner, near=near)
            seen.add((ask.symbol, near))
            found[ask.symbol] = owner
            names.update(owner.offer.names)
            for optional, pairs in enumerate((owner.offer.needs, owner.offer.lacks)):
                waiting += [_Ask(owner.place, symbol, user, bool(optional), near) for symbol, user in pairs]
        return replace(self._taken(place, found, uses, tables, dropped=dropped), names=frozenset(names))

    def _taken(
        self, place: int, found: Mapping[str, _Owner], uses: set[str], tables: Mapping[int, Mapping[str, str]], *, dropped: Sequence[str]
    ) -> Taken:
        sources: dict[int, set[str]] = {place: set()} if dropped else {}
        state: dict[int, set[str]] = {place: set()}
        for owner in found.values():
            sources.setdefault(owner.place, set()).add(owner.offer.slice)
            state.setdefault(owner.place, set()).update(owner.offer.state)
            uses.update(owner.offer.tables)
        joins = []
        for each, slices in sources.items():
            renames = self.renames.get(each, {})
            pairs = sorted([*((name, renames[name]) for name in state[each] if name in renames), *tables.get(each, {}).items()])
            uses |= {renames.get(name, name) for name in state[each]}
            own = each == place
            joins.append(
                Joined(
                    source=self.indexes[each].source,
                    slices=tuple(sorted(slices)),
                    renames=tuple(pairs),
                    own=own,
                    dropped=tuple(sorted(dropped)) if own else (),
                    shows=tuple(sorted(state[each])) if self.link == "bundle" else (),
                )
            )
        # By content: neither the order in which sources are declared nor their names are to show in a digest.
        joins.sort(key=lambda joined: (not joined.own, joined.slices, joined.renames))
        offers = {(owner.place, owner.offer.slice): owner.offer for owner in found.values()}
        return Taken(
            joins=tuple(joins),
            offers=tuple((each, offer) for (each, _), offer in sorted(offers.items())),
            uses=frozenset(uses.union(dropped)),
            renames=tuple(sorted(tables.get(place, {}).items())),
        )

    def _left_to_link(self, ask: _Ask) -> set[str]:
        """State, and kernels, of another source of an image are the link's to find. In a bundle there is none."""
        variable = self._variables.get(ask.symbol)
        place = variable[0] if variable else self._kernels.get(ask.symbol)
        if place is None and (library := self.libraries.get(ask.symbol)):
            if self.link != "image" or not self.real:
                msg = f"{self._uses(ask)} of {library}, which is machine code"
                raise RefusedError(msg, hint="GPU_LINK=image links such a library, for real architectures as sm_90: leave out others")
            return set()
        if place is None:
            if not ask.optional:
                raise self._nobody(ask)
            return set()
        if self.link == "bundle":
            raise self._refused(
                ask, place, "kernels of a bundle share no memory with those of another source: link an image, or join the sources"
            )
        if variable:
            self._check_type(ask, place, variable[1].type)
        return {ask.symbol}

    def _check_offer(self, ask: _Ask, owner: _Owner, *, near: bool) -> None:
        if owner.offer.refused:
            msg = f"{self._uses(ask)} of {self._source(owner.place)}, and that {owner.offer.refused}"
            raise RefusedError(msg, hint=f"call it in {self._source(owner.place)} alone")
        if self.link == "bundle" and owner.offer.state and not near:
            msg = f"{self._uses(ask)} of {self._source(owner.place)}, and that uses {demangle(owner.offer.state[0])}"
            hint = "kernels of a bundle share no memory with those of another source: link an image, or join the sources"
            raise RefusedError(msg, hint=hint)

    def _check_type(self, ask: _Ask, place: int, defined: Type) -> None:
        declared = self._declared[ask.place].get(ask.symbol)
        if declared is None or not defined.text or not (wrong := _differs(declared, defined)):
            return
        here, there = self._source(ask.place), self._source(place)
        said = f"{here}: {wrong[0]}\n{there}: {wrong[1]}"
        msg = f"{self._uses(ask)}, which {here} declares otherwise than {there} defines it"
        raise RefusedError(msg, output=said, hint=_ONE_HEADER)

    def _nobody(self, ask: _Ask) -> GpuError:
        here = self._source(ask.place)
        if (place := self._inline.get(ask.symbol)) is None:
            hint = HOST_FUNCTIONS.get(ask.symbol, _NOBODY)
            return MissingSymbolError(f"{self._uses(ask)}, which nobody defines", hint=hint)
        there = self._source(place)
        if self.indexes[place].language == "ptx":
            return self._refused(ask, place, f"PTX joins nothing: define it in {here}")
        if any(export.symbol == ask.symbol and not export.weak for export in self.indexes[place].exports):
            return self._refused(ask, place, f"split {there} with --exports")
        msg = f"{self._uses(ask)}, which {there} defines inline"
        return RefusedError(msg, hint=f"define it in {here} too, as inline functions are, or without inline in {there}")

    def _refused(self, ask: _Ask, place: int, hint: str) -> RefusedError:
        return RefusedError(f"{self._uses(ask)}, which {self._source(place)} defines", hint=hint)

    @staticmethod
    def _uses(ask: _Ask) -> str:
        return f"{demangle(ask.user)} uses {demangle(ask.symbol)}"

    def _source(self, place: int) -> str:
        return self.indexes[place].source

    def _twice(self, symbol: str, first: tuple[int, Export], second: tuple[int, Export]) -> RefusedError:
        what = _what(first[1])
        msg = f"{what} {demangle(symbol)} is defined in {self._source(first[0])} and in {self._source(second[0])}"
        return RefusedError(msg, hint=f"define it in one source, make it {_apart(what)}, {_TWO_MODULES}")

    def _replaceable(self, symbol: str, strong: int, inline: int) -> RefusedError:
        msg = f"function {demangle(symbol)} is defined in {self._source(strong)}, and inline in {self._source(inline)}"
        return RefusedError(msg, hint=f"make it static in one of them, rename it, {_TWO_MODULES}")

    def _runtime(self, symbol: str, place: int) -> RefusedError:
        msg = f"function {symbol} is defined in {self._source(place)}, and the device brings one that the module's other sources would call"
        return RefusedError(msg, hint=f"give it another name, {_TWO_MODULES}")

    def _check_weak(self, symbol: str, strong: tuple[int, Export], weak: Sequence[tuple[int, Export]]) -> None:
        """What takes a weak definition's place must be of its type."""
        place, export = strong
        for other, each in weak:
            if each.offer and export.offer and (wrong := _differs(each.offer.type, export.offer.type)):
                here, there = self._source(other), self._source(place)
                msg = f"{_what(export)} {demangle(symbol)} is defined in {there}, and otherwise where it may be replaced in {here}"
                raise RefusedError(msg, output=f"{here}: {wrong[0]}\n{there}: {wrong[1]}", hint=_ONE_HEADER)

    def _check_equal(self, symbol: str, owners: Sequence[_Owner]) -> None:
        other = next((owner for owner in owners if owner.offer.slice != owners[0].offer.slice), None)
        if other is not None:
            what = _what(other.export)
            first, second = self._source(owners[0].place), self._source(other.place)
            msg = f"weak {what} {demangle(symbol)} is defined differently in {first} and in {second}"
            raise RefusedError(msg, hint=f"a linker would take either: let one of them be strong, {_TWO_MODULES}")


def _what(export: Export) -> str:
    return "variable" if export.offer is not None and export.offer.type.space is not None else "function"


def _apart(what: str) -> str:
    return "static or inline" if what == "function" else "static"


def _differs(declared: Type, defined: Type) -> tuple[str, str] | None:
    """How each side says it, where they disagree. An array of unknown length, or a type that is only declared, has no size."""
    if declared.space is None or defined.space is None:
        return None if declared == defined else (declared.text, defined.text)
    size = declared.bytes in (0, defined.bytes)
    if size and declared.space == defined.space and declared.align <= defined.align:
        return None
    return _memory(declared), _memory(defined)


def _memory(kind: Type) -> str:
    where = _SPACES.get(kind.space, f"address space {kind.space}")
    return f"{kind.text} in {where}, {kind.bytes} bytes, aligned to {kind.align}" if where else kind.text
