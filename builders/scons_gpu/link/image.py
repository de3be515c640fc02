"""A module's objects become its image: checked before the link, and again after it, because nvlink drops and merges things in silence."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scons_gpu.assemble.provider import LinkInput
from scons_gpu.errors import DamagedError, GpuError, LinkError, RefusedError
from scons_gpu.link import elf
from scons_gpu.link.contents import Contents, contents
from scons_gpu.plan.plan import refusal
from scons_gpu.toolchain.arch import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from scons_gpu.assemble.provider import AssembleOptions, Linked, Provider
    from scons_gpu.link.library import Library
    from scons_gpu.plan.model import Part, Plan
    from scons_gpu.store.record import Entry, Resources

__all__ = ["Image", "check_image", "link_image", "shared_refusal", "spelled", "too_much_shared"]

_NO_PTX_NAME = re.compile(r"[.@]")
_FULL_BANK = re.compile(r"too much global constant data")  # nvlink and ptxas 13.5
_SHOWN = 5
_STATIC_SHARED = 48 * 1024
"""Bytes of shared memory that a kernel can declare; more is asked for at its launch (CUDA C++ Programming Guide)."""


@dataclass(frozen=True)
class Image:
    """One linked image."""

    data: bytes
    output: str
    """What the linker said."""
    used: tuple[str, ...]
    """Digests of the parts that are in it, in link order: tables that nothing asked for are not."""
    resources: tuple[Resources, ...] = ()
    """Of the kernels that the link assembled from PTX."""
    seconds: float = field(default=0.0, compare=False)
    cpu: float = field(default=0.0, compare=False)
    peak_kib: int = field(default=0, compare=False)


@dataclass(frozen=True)
class _Object:
    part: Part
    path: Path
    read: Contents


def spelled(symbol: str) -> str:
    """A symbol as PTX can spell it: LLVM writes `_$_` for what PTX has no letter for."""
    return _NO_PTX_NAME.sub("_$_", symbol)


def link_image(
    plan: Plan,
    objects: Mapping[str, Entry | None],
    *,
    provider: Provider,
    options: AssembleOptions,
    besides: Sequence[tuple[Path, Library]] = (),
) -> Image | None:
    """The image of `plan`, from the relocatable object of each part's digest; None for a module without kernels and state.

    An object is as `Store.load` gives it, its bytes those that its record tells of; None for one that is missing or damaged. Table
    objects are taken only where an object that is taken has an undefined symbol for them. `besides`: files with device code that the
    linker reads itself, of archives what is asked for. Raises DamagedError, LinkError,
    MissingSymbolError or a ToolError that name kernel, module and source.
    """
    if plan.is_empty:
        return None
    try:
        taken = _taken(plan, lambda part: _object(plan, part, objects))
        linked = _linked(plan, taken, provider=provider, options=options, besides=[(path, library.name) for path, library in besides])
        theirs = {kernel for _, library in besides for member in library.members for kernel in member.kernels}
        check_image(plan, linked.data, others=theirs)
    except GpuError as error:
        raise error.at(module=plan.module, arch=plan.arch) from None
    return Image(
        data=linked.data,
        output=linked.output,
        used=tuple(each.part.digest for each in taken),
        resources=linked.resources,
        seconds=linked.seconds,
        cpu=linked.cpu,
        peak_kib=linked.peak_kib,
    )


def check_image(plan: Plan, data: bytes, *, by: str = "linker", others: Collection[str] = ()) -> None:
    """Raises LinkError, with what lacks and its source, unless the image holds every kernel and state variable of its plan, each once.

    `by` is what made it; `others` are kernels that it may hold besides.
    """
    read = elf.read(data, path=f"image of {plan.module}", resources=False)
    kernels = Counter(symbol.name for symbol in read.symbols if symbol.kind == "kernel" and symbol.defined)
    variables = Counter(symbol.name for symbol in read.variables)
    for kernel in plan.kernels:
        _once(kernels, kernel.symbol, f"kernel {kernel.readable}", kernel.source, by=by)
    for state in plan.state:
        _once(variables, state.symbol, f"variable {state.symbol}", state.source, by=by)
    known = {name for kernel in plan.kernels for name in (kernel.symbol, spelled(kernel.symbol))}
    if extra := sorted(set(kernels) - known - set(others)):
        msg = f"the {_MADE[by]} image holds kernel {extra[0]}, which is none of the module's"
        raise LinkError(msg)


_MADE = {"linker": "linked", "assembler": "assembled"}


def _once(counts: Counter[str], symbol: str, what: str, source: str, *, by: str) -> None:
    count = counts[symbol] + (counts[spelled(symbol)] if spelled(symbol) != symbol else 0)
    if count != 1:
        said = "lacks" if count == 0 else f"holds {count} times"
        msg = f"the {_MADE[by]} image {said} {what}"
        raise LinkError(msg, source=source, hint=f"the {by} dropped or doubled it; scons-gpu doctor shows which {by} it is")


def _object(plan: Plan, part: Part, objects: Mapping[str, Entry | None]) -> _Object:
    """One part's object, after a check of what it defines."""
    if error := refusal(part):
        raise error
    kernel = part.kernels[0].readable if part.kernels else ""
    try:
        entry = objects.get(part.digest)
        if entry is None:
            msg = f"{_subject(part)} is missing or damaged"
            raise DamagedError(msg, hint="build again: it is made anew")
        read = contents(entry.data, target=Target(plan.arch, real=True), name=_subject(part))
        if read.wrong:
            raise LinkError(read.wrong)
        _check_names(part, read)
        _check_shared(part, read)
    except GpuError as error:
        raise error.at(kernel=kernel, source=part.source) from None
    return _Object(part=part, path=entry.path, read=read)


def _check_names(part: Part, read: Contents) -> None:
    wanted = {name for kernel in part.kernels for name in (kernel.symbol, spelled(kernel.symbol))}
    lacks = sorted(kernel.symbol for kernel in part.kernels if not read.kernels & {kernel.symbol, spelled(kernel.symbol)})
    lacks += [name for name in part.defines if not read.variables & {name, spelled(name)}]
    if lacks or read.kernels - wanted:
        msg = f"{_subject(part)} is that of something else: it {'lacks ' + lacks[0] if lacks else 'holds ' + min(read.kernels - wanted)}"
        raise LinkError(msg, hint="remove it from the store; the next build makes it anew")


def too_much_shared(total: int) -> str:
    """What is wrong with a kernel of so many bytes of static shared memory; empty where nothing is."""
    if total <= _STATIC_SHARED:
        return ""
    return f"its {total} bytes of __shared__ variables are more than the {_STATIC_SHARED} that a kernel can have"


def shared_refusal(shared: Collection[tuple[int, str]]) -> RefusedError | None:
    """The error for a kernel with too much static shared memory, given as (bytes, name); None where it fits."""
    wrong = too_much_shared(sum(size for size, _ in shared))
    if not wrong:
        return None
    largest = "\n".join(f"{-size:8d} bytes  {name}" for size, name in sorted((-size, name) for size, name in shared)[:_SHOWN])
    return RefusedError(wrong, output=largest, hint="declare the largest array extern and give its size at the launch")


def _check_shared(part: Part, read: Contents) -> None:
    """What one kernel's object defines of shared memory is what the kernel takes. Of several, the linker knows who takes what."""
    if len(part.kernels) == 1 and (error := shared_refusal([*read.shared])):
        raise error


def _subject(part: Part) -> str:
    """How a message calls a part's object, behind the kernel and source that `at` puts before it."""
    return "its object" if part.kernels else f"the object of {_named(part)}"


def _named(part: Part) -> str:
    if part.kernels:
        return f"kernel {part.kernels[0].readable}"
    return f"table {part.defines[0]}" if part.role == "table" and part.defines else "its variables"


def _taken(plan: Plan, load: Callable[[Part], _Object]) -> list[_Object]:
    """Units and state, and each table that one of them, or a table that is taken, leaves undefined; in plan order."""
    tables = {name: part for part in plan.parts if part.role == "table" for symbol in part.defines for name in (symbol, spelled(symbol))}
    taken = {part.digest: load(part) for part in plan.parts if part.role != "table"}
    waiting = list(taken.values())
    while waiting:
        for symbol in waiting.pop().read.undefined:
            part = tables.get(symbol)
            if part is not None and part.digest not in taken:
                taken[part.digest] = load(part)
                waiting.append(taken[part.digest])
    return [taken[part.digest] for part in plan.parts if part.digest in taken]


def _linked(
    plan: Plan, taken: Sequence[_Object], *, provider: Provider, options: AssembleOptions, besides: Sequence[tuple[Path, str]]
) -> Linked:
    inputs = [*(_input(plan, each) for each in taken), *(LinkInput(path=path, label=name, library=True) for path, name in besides)]
    try:
        return provider.link(inputs, target=Target(plan.arch, real=True), options=options)
    except GpuError as error:
        if isinstance(error, LinkError) or not _FULL_BANK.search(error.output):
            raise _attributed(error, taken) from None
        largest = _largest(taken)
        msg = "its constants do not fit into the 64 KiB of an image"
        hint = "move the largest into __device__ memory, or into another module"
        raise RefusedError(msg, output=f"{error.output.rstrip()}\n{largest}", hint=hint) from None


def _input(plan: Plan, each: _Object) -> LinkInput:
    part = each.part
    kernel = part.kernels[0].readable if part.kernels else ""
    return LinkInput(path=each.path, label=f"{_named(part)} of {plan.module}/{part.source}", kernel=kernel, source=part.source)


def _attributed(error: GpuError, taken: Iterable[_Object]) -> GpuError:
    """With the kernel and source of the first object that leaves undefined what the error names."""
    said = set(re.findall(r"[\w$]+", f"{error.what}\n{error.output}"))
    for each in taken:
        if said.intersection(each.read.undefined):
            return error.at(kernel=each.part.kernels[0].readable if each.part.kernels else "", source=each.part.source)
    return error


def _largest(taken: Iterable[_Object]) -> str:
    sizes = [(-size, name, each.part.source) for each in taken for size, name in each.read.constants]
    return "\n".join(f"{-size:8d} bytes  {name} of {source}" for size, name, source in sorted(sizes)[:_SHOWN])
