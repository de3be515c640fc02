"""A module's image by merging: units that are programs of their own as they are, and those that share its memory assembled together.

What a unit's code has of the module's memory are offsets in banks that all kernels share (3 for constants, 4 for addresses): they follow
from who else uses them. So state, tables and whatever reads them are one assembly, in the order of the undivided module, and its kernels
take their places among the others. Everything else of the module changes nothing there.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from scons_gpu.errors import DamagedError, GpuError, LinkError, RefusedError
from scons_gpu.link.image import check_image, spelled
from scons_gpu.link.merge import Input, merge_objects
from scons_gpu.link.ptx import local_names, merge, shared_alignment
from scons_gpu.link.sections import holds_memory
from scons_gpu.link.whole import Places, in_order, ptx_part
from scons_gpu.plan.plan import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from scons_gpu.plan.model import Part, Plan, PlannedKernel
    from scons_gpu.store.record import Entry, Resources

__all__ = ["FIRST", "Merged", "Together", "alone", "link_merged", "with_first"]

FIRST = "__scons_gpu_first"
"""A kernel without instructions in the place of another unit's: what comes first in a file decides the order of addresses."""
_HEAD = re.compile(r"^\s*\.(?:version|target|address_size)\b.*$", re.MULTILINE)


@dataclass(frozen=True)
class Together:
    """What was assembled together."""

    data: bytes
    output: str = ""
    resources: tuple[Resources, ...] = ()
    cpu: float = field(default=0.0, compare=False)
    peak_kib: int = field(default=0, compare=False)


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
    assemble: Callable[[str], Together],
    twin: Callable[[Part], bool] = lambda _: False,
    understood: Collection[str] = (),
) -> Merged | None:
    """The image of `plan` from the whole object of each part's digest that can stand alone; None for a module without kernels.

    `ptx` gives the PTX of a part, and is asked for those that share memory; `assemble` makes one object of theirs; `twin` says whether a
    part's object has an anonymous kernel. `understood` are objects, by their SHA-256, that this very code has taken before: others are
    written again, to see that nothing of them gets lost. Raises DamagedError, UnknownError, LinkError, RefusedError or a ToolError that
    name kernel, module and source.
    """
    if plan.is_empty:
        return None
    try:
        return _Link(plan, ptx, twin, understood).image(objects, assemble)
    except GpuError as error:
        raise error.at(module=plan.module, arch=plan.arch) from None


@dataclass(frozen=True)
class _Link:
    """One link, and what it asks of others."""

    plan: Plan
    ptx: Callable[[Part], Entry | None]
    twin: Callable[[Part], bool]
    understood: Collection[str]

    def image(self, objects: Mapping[str, Entry | None], assemble: Callable[[str], Together]) -> Merged:
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
        made = None
        if any(part.role == "unit" for part in shared) or plan.state:
            made = _together(plan, shared, texts, assemble)
            sha256 = hashlib.sha256(made.data).hexdigest()
            taken.add(sha256)
            inputs.append(Input(f"what shares memory in {plan.module}", made.data, known=sha256 in self.understood))
        places = {name: place for place, part in enumerate(parts) for kernel in part.kernels for name in _names(kernel)}
        data = merge_objects(inputs, places=places, without=FIRST, dynamic=dynamic)
        check_image(plan, data)
        return Merged(
            data=data,
            together=tuple(part.digest for part in shared),
            made=made,
            understood=frozenset(taken),
            output=made.output if made else "",
        )

    def _input(self, part: Part, entry: Entry, *, several: bool) -> Input:
        """A part's object. Its own functions, where it has any, are called as where its PTX is merged."""
        data, known = entry.data, entry.record.sha256 in self.understood
        if self.twin(part):
            return Input(_label(part), data, name=spelled(part.kernels[0].symbol), known=known)
        own = several and any(f"\0${name}$".encode() in data for kernel in part.kernels for name in dict.fromkeys(_names(kernel)))
        return Input(_label(part), data, local=local_names(_text(part, self.ptx), label=part.readable) if own else {}, known=known)


def _together(plan: Plan, parts: Sequence[Part], texts: Mapping[str, str], assemble: Callable[[str], Together]) -> Together:
    """One object of what shares memory. Where the last unit of the module is not among it, a kernel of nothing takes its place."""
    from scons_gpu.link.limits import check_constants  # noqa: PLC0415 - it reads PTX, and most modules share no memory

    first = in_order(plan.parts)[-1] not in parts
    for part in parts:
        if part.assemble is not None:
            msg = "it has assembling options of its own, and shares memory of the module, whose kernels that do are assembled together"
            raise RefusedError(msg, kernel=_kernel(part), source=part.source, hint="take GPU_LINK=image or bundle, or the module's options")
    given = [ptx_part(part, texts[part.digest].encode()) for part in parts]
    if first:
        given.append(replace(given[0], label="the place of the other kernels", text=with_first(given[0].text), optional=False))
    merged = merge(given, renamed=len(parts) < len(plan.parts))
    check_constants(plan, merged.text)
    places = Places(replace(plan, parts=tuple(parts)), merged, given[: len(parts)])
    try:
        made = assemble(merged.text)
    except GpuError as error:
        raise places.attributed(error) from None
    return replace(made, output=places.told(made.output)) if made.output.strip() else made


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
