"""A module's image by merging: units that are programs of their own as they are, and those that share its memory assembled together.

What a unit's code has of the module's memory are offsets in banks that all kernels share (3 for constants, 4 for addresses): they follow
from who else uses them. So state, tables and whatever reads them are one assembly, in the order of the undivided module, and its kernels
take their places among the others. Everything else of the module changes nothing there.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from scons_gpu.errors import DamagedError, GpuError, LinkError, RefusedError, ToolStoppedError
from scons_gpu.link import graft, stubs
from scons_gpu.link.image import check_image, spelled
from scons_gpu.link.merge import Input, merge_objects, understood
from scons_gpu.link.ptx import local_names, merge, shared_alignment
from scons_gpu.link.sections import holds_memory
from scons_gpu.link.whole import Places, in_order, ptx_part
from scons_gpu.link.whole_read import read as read_whole
from scons_gpu.plan.plan import refusal
from scons_gpu.source.ptx_reader import read as read_ptx

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from scons_gpu.link.pieces import Whole
    from scons_gpu.plan.model import Part, Plan, PlannedKernel
    from scons_gpu.source.ptx_reader import Module
    from scons_gpu.store.record import Entry, Resources

__all__ = ["FIRST", "Assembler", "Earlier", "Forgetful", "Merged", "Together", "alone", "link_merged", "with_first"]

FIRST = "__scons_gpu_first"
"""A kernel without instructions in the place of another unit's: what comes first in a file decides the order of addresses."""
_HEAD = re.compile(r"^\s*\.(?:version|target|address_size)\b.*$", re.MULTILINE)


@dataclass(frozen=True)
class Together:
    """What was assembled together."""

    data: bytes
    name: str = ""
    """The object's in the store."""
    output: str = ""
    resources: tuple[Resources, ...] = ()
    cpu: float = field(default=0.0, compare=False)
    peak_kib: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Earlier:
    """An object that parts were assembled to together: kernels that are still the same are taken out of it."""

    name: str
    """The object's in the store."""
    frame: str
    """What its PTX had besides functions, as `stubs.frame` has it."""
    parts: frozenset[str]
    """Their digests."""


class Assembler(Protocol):
    """Makes objects of PTX, by one tool with one set of options, and keeps them."""

    def kept(self, text: str) -> Together | None:
        """That of this very text, where it is at hand."""

    def made(self, text: str) -> Together:
        """That of this text, from now on at hand. Raises a ToolError."""

    def object(self, name: str) -> Entry | None:
        """One that was made before, by its name; None where it is not at hand."""


@dataclass(frozen=True)
class Forgetful:
    """One that keeps nothing."""

    make: Callable[[str], Together]

    def kept(self, text: str) -> None:
        """Nothing."""

    def made(self, text: str) -> Together:
        """Each time anew."""
        return self.make(text)

    def object(self, name: str) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Merged:
    """One image."""

    data: bytes
    together: tuple[str, ...]
    """Digests of the parts that were assembled together."""
    made: Together | None
    """What that gave."""
    understood: frozenset[str] = frozenset()
    """SHA-256 of the objects that it was made of: merging knows all that is in them."""
    earlier: Earlier | None = None
    """What a later link can take kernels from."""
    output: str = ""


def alone(part: Part) -> bool:
    """Whether a part may be assembled as a program of its own: as far as its source tells, it shares nothing."""
    return part.role == "unit" and not part.uses and not part.names


def with_first(text: str) -> str:
    """PTX with a kernel of nothing behind it."""
    head = "\n".join(_HEAD.findall(text)[:3])
    return f"{head}\n.visible .entry {FIRST}()\n{{\n\tret;\n}}\n"


def link_merged(  # noqa: PLR0913 - one keyword per thing that it asks of others
    plan: Plan,
    objects: Mapping[str, Entry | None],
    *,
    ptx: Callable[[Part], Entry | None],
    assembler: Assembler,
    twin: Callable[[Part], bool] = lambda _: False,
    understood: Collection[str] = (),
    earlier: Earlier | None = None,
) -> Merged | None:
    """The image of `plan` from the whole object of each part's digest that can stand alone; None for a module without kernels.

    `ptx` gives the PTX of a part, and is asked for those that share memory; `assembler` makes one object of theirs; `twin` says whether a
    part's object has an anonymous kernel. `understood` are objects, by their SHA-256, that this very code has taken before: others are
    written again, to see that nothing of them gets lost. `earlier` is that of the link before. Raises DamagedError, UnknownError,
    LinkError, RefusedError or a ToolError that name kernel, module and source.
    """
    if plan.is_empty:
        return None
    try:
        return _Link(plan, ptx, twin, understood, assembler, earlier).image(objects)
    except GpuError as error:
        raise error.at(module=plan.module, arch=plan.arch) from None


@dataclass(frozen=True)
class _Link:
    """One link, and what it asks of others."""

    plan: Plan
    ptx: Callable[[Part], Entry | None]
    twin: Callable[[Part], bool]
    understood: Collection[str]
    assembler: Assembler
    earlier: Earlier | None

    def image(self, objects: Mapping[str, Entry | None]) -> Merged:
        plan, parts = self.plan, in_order(self.plan.parts)
        single = {part.digest: _object(part, objects) for part in parts if alone(part)}
        shared = [part for part in parts if not alone(part) or holds_memory(single[part.digest].data)]
        together = {part.digest for part in shared}
        apart = [part for part in parts if part.digest not in together]
        texts = {part.digest: _text(part, self.ptx) for part in (*shared, *(part for part in apart if _dynamic(part)))}
        dynamic = max((shared_alignment(text, label=part.readable) for part in parts if (text := texts.get(part.digest))), default=0)
        several = len(apart) + bool(shared) > 1  # what is one part keeps its names in a merge of PTX too
        inputs = [self._input(part, single[part.digest], several=several) for part in apart]
        taken = {single[part.digest].record.sha256 for part in apart}
        joined = None
        if any(part.role == "unit" for part in shared) or plan.state:
            joined = self._together(shared, texts)
            taken |= {hashlib.sha256(data).hexdigest() for data in joined.objects}
            inputs.append(joined.input)
        places = {name: place for place, part in enumerate(parts) for kernel in part.kernels for name in _names(kernel)}
        data = merge_objects(inputs, places=places, without=FIRST, dynamic=dynamic)
        check_image(plan, data)
        return Merged(
            data=data,
            together=tuple(part.digest for part in shared),
            made=joined.made if joined else None,
            understood=frozenset(taken),
            earlier=joined.earlier if joined else self.earlier,
            output=joined.made.output if joined else "",
        )

    def _input(self, part: Part, entry: Entry, *, several: bool) -> Input:
        """A part's object. Its own functions, where it has any, are called as where its PTX is merged."""
        data, known = entry.data, entry.record.sha256 in self.understood
        if self.twin(part):
            return Input(_label(part), data, name=spelled(part.kernels[0].symbol), known=known)
        own = several and any(f"\0${name}$".encode() in data for kernel in part.kernels for name in dict.fromkeys(_names(kernel)))
        return Input(_label(part), data, local=local_names(_text(part, self.ptx), label=part.readable) if own else {}, known=known)

    def _together(self, parts: Sequence[Part], texts: Mapping[str, str]) -> _Joined:
        """One object of what shares memory. Where the last unit of the module is not among it, a kernel of nothing takes its place."""
        from scons_gpu.link.limits import check_constants  # noqa: PLC0415 - it reads PTX, and most modules share no memory

        plan = self.plan
        first = any(part not in parts for part in plan.units[-1:])
        for part in parts:
            if part.assemble is not None:
                msg = "it has assembling options of its own, and shares memory of the module, whose kernels that do are assembled together"
                raise RefusedError(
                    msg, kernel=_kernel(part), source=part.source, hint="take GPU_LINK=image or bundle, or the module's options"
                )
        given = [ptx_part(part, texts[part.digest].encode()) for part in parts]
        if first:
            given.append(replace(given[0], label="the place of the other kernels", text=with_first(given[0].text), optional=False))
        merged = merge(given, renamed=len(parts) < len(plan.parts))
        check_constants(plan, merged.text)
        text = _JoinedText(replace(plan, parts=tuple(parts)), merged.text, texts)
        places = Places(text.plan, merged, given[: len(parts)])
        made = self.assembler.kept(merged.text)
        if made is None and self.earlier and (grafted := self._grafted(text, self.earlier)):
            return grafted.told(places)
        try:
            made = made or self.assembler.made(merged.text)
        except GpuError as error:
            raise places.attributed(error) from None
        known = hashlib.sha256(made.data).hexdigest() in self.understood
        found = Earlier(made.name, text.frame, frozenset(part.digest for part in parts if part.role == "unit"))
        return _Joined(Input(self._label, made.data, known=known), made, found, (made.data,)).told(places)

    @property
    def _label(self) -> str:
        return f"what shares memory in {self.plan.module}"

    def _grafted(self, text: _JoinedText, earlier: Earlier) -> _Joined | None:
        """New kernels assembled among stubs of the others, whose code is that of an earlier object. None where it cannot be."""
        same = text.unchanged(earlier.parts)
        if not same or len(same) < _MOSTLY * len(text.plan.units) or text.frame != earlier.frame:
            return None
        entry = self.assembler.object(earlier.name)
        if entry is None:
            return None
        donor = self._understood(entry.data)
        found = graft.traces(donor, same)
        stubbed = stubs.stubbed(text.text, text.module, found) if found is not None else None
        if stubbed is None:
            return None
        try:
            made = self.assembler.made(stubbed)
        except ToolStoppedError:
            raise
        except GpuError:  # it is told of the text that the user knows
            return None
        whole = self._understood(made.data)
        if not graft.fits(whole, donor) or not text.holds(piece.name for piece in whole.pieces):
            return None
        made = _with_earlier(made, entry, same)
        return _Joined(Input(self._label, b"", grafted=graft.graft(whole, donor, same)), made, earlier, (made.data, entry.data))

    def _understood(self, data: bytes) -> Whole:
        known = hashlib.sha256(data).hexdigest() in self.understood
        return (read_whole if known else understood)(data, label=self._label)


_MOSTLY = 0.75
"""Share of the kernels that must be unchanged: a graft assembles the others each time, until all are assembled together again."""


@dataclass(frozen=True)
class _Joined:
    """What shares memory, as the merge takes it."""

    input: Input
    made: Together
    earlier: Earlier
    objects: tuple[bytes, ...]

    def told(self, places: Places) -> _Joined:
        """With kernel and source in what the assembler said."""
        return replace(self, made=replace(self.made, output=places.told(self.made.output))) if self.made.output.strip() else self


@dataclass(frozen=True)
class _JoinedText:
    """The PTX of what shares memory."""

    plan: Plan
    """Of its parts alone."""
    text: str
    texts: Mapping[str, str]
    """Digest → PTX, of each part."""

    @cached_property
    def module(self) -> Module:
        """What it reads as."""
        module = read_ptx(self.text, label="what shares memory")
        if module is None:
            msg = "what shares memory has no PTX"
            raise LinkError(msg)
        return module

    @cached_property
    def frame(self) -> str:
        """As `Earlier` has it; empty for line tables, which count the lines of the whole text."""
        return "" if self.module.files else stubs.frame(self.module)

    def unchanged(self, digests: Collection[str]) -> dict[str, bool]:
        """Kernels of these parts, as they are called → whether they use shared arrays of the launch's size."""
        parts = [part for part in self.plan.units if part.digest in digests]
        return {spelled(k.symbol): stubs.mentions_undefined_shared(self.texts[part.digest]) for part in parts for k in part.kernels}

    def holds(self, names: Iterable[str]) -> bool:
        """Whether these are kernels of it, and no functions besides."""
        return {*names} - {FIRST} == {spelled(kernel.symbol) for kernel in self.plan.kernels}


def _with_earlier(made: Together, entry: Entry, kernels: Collection[str]) -> Together:
    """With what the assembler said, when it was asked, of kernels that are taken out of an earlier object."""
    then = [each for each in entry.record.resources if each.kernel in kernels]
    now = [each for each in made.resources if each.kernel not in kernels]
    return replace(made, resources=(*now, *then), output=_about(made.output, lambda names: names.isdisjoint(kernels)))


def _about(output: str, told: Callable[[set[str]], bool]) -> str:
    """Of an assembler's words, the lines about some kernels: stubs are nobody's business."""
    return "".join(line for line in output.splitlines(keepends=True) if told(set(_NAME.findall(line))))


_NAME = re.compile(r"[\w$]+")


def _object(part: Part, objects: Mapping[str, Entry | None]) -> Entry:
    if error := refusal(part):
        raise error
    entry = objects.get(part.digest)
    if entry is None:
        msg = f"the object of {part.readable} is missing or damaged"
        raise DamagedError(msg, kernel=_kernel(part), source=part.source, hint="build again: it is made anew")
    return entry


def _text(part: Part, ptx: Callable[[Part], Entry | None]) -> str:
    if error := refusal(part):
        raise error
    entry = ptx(part)
    if entry is None:
        msg = f"the PTX of {part.readable} is missing or damaged"
        raise DamagedError(msg, kernel=_kernel(part), source=part.source, hint="build again: it is made anew")
    try:
        return entry.data.decode()
    except UnicodeDecodeError:
        msg = f"the PTX of {part.readable} is no text"
        raise LinkError(msg, kernel=_kernel(part), source=part.source) from None


def _dynamic(part: Part) -> bool:
    return any(kernel.dynamic_shared for kernel in part.kernels)


def _names(kernel: PlannedKernel) -> tuple[str, str]:
    return kernel.symbol, spelled(kernel.symbol)


def _kernel(part: Part) -> str:
    return part.kernels[0].readable if part.kernels else ""


def _label(part: Part) -> str:
    return f"the object of {part.readable} of {part.source}"
