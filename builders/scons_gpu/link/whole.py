"""A module's PTX becomes its image in one piece: merged, assembled as the program that it is, and checked as a linked image is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from scons_gpu.errors import DamagedError, GpuError, MissingSymbolError, RefusedError
from scons_gpu.link.image import check_image, spelled
from scons_gpu.link.limits import check_constants, check_unit
from scons_gpu.link.ptx import MergedPtx, PtxPart, merge, merge_ptx
from scons_gpu.plan.plan import refusal
from scons_gpu.toolchain.arch import Target, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from scons_gpu.assemble.provider import AssembleOptions, Provider
    from scons_gpu.plan.model import Part, Plan
    from scons_gpu.store.record import Entry, Resources

__all__ = ["Places", "Whole", "assemble_whole", "in_order", "merge_module", "ptx_part"]

_LINE = re.compile(r"\bline (\d+)(?=;)")  # as ptxas and the libraries of its kind name a place in the PTX
_SIZE = re.compile(r"^( *\d+ bytes  ([\w$]+))$", re.MULTILINE)
_SPILLS = re.compile(r"^registers of kernel (.+)(?= spill to local memory: )", re.MULTILINE)  # as failures.spills_told says it
_QUOTED = re.compile(r"'([\w$]+)'")
_NO_DEBUG = "GPU_LINK=image keeps it"


@dataclass(frozen=True)
class Whole:
    """One image."""

    data: bytes
    output: str
    """What merge and assembler said; each line of the PTX that is named, with the kernel it is in."""
    resources: Mapping[str, tuple[Resources, ...]]
    """Part digest → the assembler's report of its kernels."""
    cpu: float = field(default=0.0, compare=False)
    peak_kib: int = field(default=0, compare=False)


def ptx_part(part: Part, data: bytes) -> PtxPart:
    """A part as the merge takes it."""
    return PtxPart(label=f"{part.readable} of {part.source}", text=data.decode(), optional=part.role == "table")


def in_order(parts: Iterable[Part]) -> list[Part]:
    """The parts as they are merged: state first, as it mostly stands in an undivided module, so that it has the same offsets there.

    For memory at offset 0 of its bank ptxas chooses other instructions than for memory behind it.
    """
    return sorted(parts, key=lambda part: part.role != "state")


def merge_module(plan: Plan, ptx: Mapping[str, Entry], *, warn: Callable[[str], None] | None = None) -> str:
    """The module's PTX, which a driver assembles, from that of each part's digest.

    Raises RefusedError, with kernel, module and source, for what no GPU takes; what else it would refuse, nobody knows before it does.
    """
    parts = []
    for part in in_order(plan.parts):
        parts.append(ptx_part(part, ptx[part.digest].data))
        if part.role == "unit":
            check_unit(plan, part, parts[-1].text)
    merged = merge_ptx(parts, target=parse(plan.arch)[0], warn=warn)
    check_constants(plan, merged)
    return merged


def assemble_whole(plan: Plan, ptx: Mapping[str, Entry | None], *, provider: Provider, options: AssembleOptions) -> Whole | None:
    """The image of `plan`, from the PTX of each part's digest; None for a module without kernels and state.

    Raises DamagedError for PTX that is missing, RefusedError for a part with assembling options of its own, LinkError, MissingSymbolError
    or a ToolError, which name kernel, module and source where the tool's words tell.
    """
    if plan.is_empty:
        return None
    plan = replace(plan, parts=tuple(in_order(plan.parts)))
    try:
        texts = [_checked(part, ptx) for part in plan.parts]
        said: list[str] = []
        merged = merge(texts, warn=lambda text: said.append(f"{text}; {_NO_DEBUG}"))
        places = Places(plan, merged, texts)
        try:
            made = provider.compile(merged.text, target=Target(plan.arch, real=True), options=options)
        except GpuError as error:
            raise places.attributed(error) from None
        check_image(plan, made.data, by="assembler")
    except GpuError as error:
        raise error.at(module=plan.module, arch=plan.arch) from None
    return Whole(
        data=made.data,
        output="\n".join((*said, *([places.told(made.output)] if made.output.strip() else []))),
        resources=_by_part(plan, made.resources),
        cpu=made.cpu,
        peak_kib=made.peak_kib,
    )


def _checked(part: Part, ptx: Mapping[str, Entry | None]) -> PtxPart:
    """A part's PTX, if it can be a part of one assembly."""
    if error := refusal(part):
        raise error
    kernel = part.kernels[0].readable if part.kernels else ""
    if part.assemble is not None:
        msg = "it has assembling options of its own, and a module that is assembled in one piece has one set of them"
        raise RefusedError(msg, kernel=kernel, source=part.source, hint="take GPU_LINK=image or bundle, or one set of options")
    entry = ptx.get(part.digest)
    if entry is None:
        msg = f"the PTX of {part.readable} is missing or damaged"
        raise DamagedError(msg, kernel=kernel, source=part.source, hint="build again: it is made anew")
    return ptx_part(part, entry.data)


def _by_part(plan: Plan, resources: tuple[Resources, ...]) -> dict[str, tuple[Resources, ...]]:
    owners = {name: part.digest for part in plan.units for kernel in part.kernels for name in (kernel.symbol, spelled(kernel.symbol))}
    found: dict[str, tuple[Resources, ...]] = {}
    for each in resources:
        if digest := owners.get(each.kernel):
            found[digest] = (*found.get(digest, ()), each)
    return found


@dataclass(frozen=True)
class Places:
    """Which kernel and source the tool's words are about."""

    plan: Plan
    merged: MergedPtx
    texts: Sequence[PtxPart]
    """Of the plan's parts, in their order."""

    def told(self, output: str) -> str:
        """With the part behind each line number, and the source behind each kernel that spills and each variable whose size is told."""
        output = _LINE.sub(lambda found: f"{found[0]}{self._in(int(found[1]))}", output)
        output = _SPILLS.sub(lambda found: f"{found[0]}{self._of_kernel(found[1])}", output)
        return _SIZE.sub(lambda found: f"{found[1]}{self._of(found[2])}", output)

    def attributed(self, error: GpuError) -> GpuError:
        """With kernel and source: of the kernel that the tool names, of the first line that it names, or of who uses what it lacks."""
        part = self._part(error)
        error.output = self.told(error.output)
        if part is None:
            return error
        return error.at(kernel=part.kernels[0].readable if part.kernels else "", source=part.source)

    def _part(self, error: GpuError) -> Part | None:
        if part := self._with_kernel(error.kernel):
            return part
        if found := _LINE.search(error.output):
            return self._at(int(found[1]))
        if not isinstance(error, MissingSymbolError):
            return None
        lacking = re.compile("|".join(rf"(?<![\w$]){re.escape(name)}(?![\w$])" for name in _QUOTED.findall(error.output)) or r"(?!)")
        return next((part for part, each in zip(self.plan.parts, self.texts, strict=True) if lacking.search(each.text)), None)

    def _with_kernel(self, name: str) -> Part | None:
        named = ((part, {kernel.readable, kernel.symbol, spelled(kernel.symbol)}) for part in self.plan.units for kernel in part.kernels)
        return next((part for part, names in named if name in names), None)

    def _of_kernel(self, name: str) -> str:
        part = self._with_kernel(name)
        return f" of {part.source}" if part else ""

    def _at(self, line: int) -> Part | None:
        label = self.merged.label_at(line)
        return next((part for part, each in zip(self.plan.parts, self.texts, strict=True) if each.label == label), None)

    def _in(self, line: int) -> str:
        part = self._at(line)
        if part is None:
            return ""
        return f" (kernel {part.readable} of {part.source})" if part.role == "unit" else f" ({part.readable})"

    def _of(self, variable: str) -> str:
        sources = (part.source for part in self.plan.parts if variable in {*part.defines, *map(spelled, part.defines)})
        source = next(sources, "")
        return f" of {source}" if source else ""
