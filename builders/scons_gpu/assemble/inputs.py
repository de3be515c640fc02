"""What a link is given, read and checked before it: linkers drop or merge in silence what they do not like, and return 0.

nvlink and nvJitLink do the same here (13.5): a whole object among relocatable ones is left out, `sm_90` goes together with `sm_90a`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.assemble import cubin, dptx
from scons_gpu.errors import LinkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.assemble.provider import LinkInput
    from scons_gpu.errors import GpuError
    from scons_gpu.toolchain.arch import Target

__all__ = ["Input", "blame", "label_parts", "named_in", "nothing", "part_name", "read"]

_PART = re.compile(r"part-(\d{6,})\.(?:cubin|ptx)")


@dataclass(frozen=True)
class Input:
    """One checked input."""

    part: LinkInput
    data: bytes
    deferred: dptx.Deferred | None
    """Its PTX; None for an object."""

    @property
    def made_for(self) -> str:
        """Its architecture as far as it tells: an object that nvJitLink or an older ptxas made says a number and no suffix."""
        if self.deferred:
            return self.deferred.arch
        head = cubin.head(self.data)
        return "" if isinstance(head, str) else head.arch or f"sm_{head.number} (a suffix is not told)"

    def fits(self, target: Target) -> bool:
        """Whether it is made for `target`, as far as it tells."""
        return self.made_for in {target.name, f"sm_{target.number} (a suffix is not told)"}


def read(inputs: Sequence[LinkInput], *, target: Target, linker: str, ptx: bool = False) -> tuple[Input, ...]:
    """All inputs, each fit to be linked for `target`. `ptx`: deferred PTX may be among them.

    Raises LinkError or DamagedError that names the input by its label, and where two do not go together, both.
    """
    if not inputs:
        raise nothing(target)
    taken: list[Input] = []
    met: dict[tuple[int, int], LinkInput] = {}
    given: set[int] = set()
    for part in inputs:
        if part.library:
            msg = f"{part.label}: {linker} takes no device code out of libraries"
            raise LinkError(msg, arch=target.name, hint="GPU_PROVIDER=ptxas links with nvlink, which does")
        try:
            with open(part.path, "rb", buffering=0) as file:  # noqa: PTH123 - thousands of small ones
                stat, data = os.fstat(file.fileno()), file.read()
        except OSError as error:
            msg = f"{part.label}: cannot be read: {error.strerror or error}"
            raise LinkError(msg, arch=target.name) from error
        first = met.setdefault((stat.st_dev, stat.st_ino), part)
        if first is not part or id(part) in given:
            msg = f"{part.label}: the same object as {first.label}; an object can be linked once"
            raise LinkError(msg, arch=target.name)
        given.add(id(part))
        taken.append(_input(part, data, target=target, linker=linker, ptx=ptx))
    _agree(taken, target)
    return tuple(taken)


def nothing(target: Target) -> LinkError:
    """The error of a link without inputs."""
    msg = "nothing to link: an image needs at least one object"
    return LinkError(msg, arch=target.name)


def _input(part: LinkInput, data: bytes, *, target: Target, linker: str, ptx: bool) -> Input:
    if dptx.is_deferred(data) or part.path.suffix == ".dptx":
        deferred = dptx.read(data, label=part.label)
        if ptx:
            return Input(part=part, data=data, deferred=deferred)
        msg = f"{part.label}: deferred PTX, which {linker} cannot assemble"
        raise LinkError(msg, arch=target.name)
    if wrong := _wrong(data, linker=linker):
        msg = f"{part.label}: {wrong}"
        raise LinkError(msg, arch=target.name)
    return Input(part=part, data=data, deferred=None)


def _wrong(data: bytes, *, linker: str) -> str:
    """What is wrong with an object; empty where nothing is."""
    head = cubin.head(data)
    if isinstance(head, str) or head.relocatable:
        return head if isinstance(head, str) else ""
    return f"not a relocatable object (assembled without -c); {linker} would drop it and say nothing"


def _agree(taken: Sequence[Input], target: Target) -> None:
    """One architecture, and for what is still to be assembled one spelling of the options."""
    for each in taken:
        if not each.fits(target):
            right = next((f", as is {other.part.label}" for other in taken if other.fits(target)), "")
            msg = f"{each.part.label}: assembled for {each.made_for}, and this image is for {target.name}{right}"
            raise LinkError(msg, arch=target.name)
    waiting = [(each.part.label, each.deferred.spelled) for each in taken if each.deferred]
    for label, spelled in waiting:
        first, asked = waiting[0]
        if spelled != asked:
            msg = f"{label}: to be assembled with {_only(spelled, asked)}, and {first} with {_only(asked, spelled)}: one link takes one set"
            raise LinkError(msg, arch=target.name, hint="give their sources the same options, or build without deferral")


def _only(these: Sequence[str], others: Sequence[str]) -> str:
    """What the one list has and the other lacks."""
    return " ".join(option for option in these if option not in others) or "nothing of that"


def part_name(position: int, each: Input) -> str:
    """The name under which a linker gets an input: with -g it writes names into the image, so they are made of the position alone."""
    return f"part-{position:06d}.{'ptx' if each.deferred else 'cubin'}"


def label_parts(output: str, inputs: Sequence[Input]) -> str:
    """What a linker said, with labels in place of those names."""
    return _PART.sub(lambda found: _label(int(found.group(1)), found.group(), inputs), output)


def named_in(output: str, inputs: Sequence[Input]) -> LinkInput | None:
    """The first input that a linker speaks of."""
    found = _PART.search(output)
    return inputs[int(found.group(1))].part if found and int(found.group(1)) < len(inputs) else None


def _label(position: int, name: str, inputs: Sequence[Input]) -> str:
    return inputs[position].part.label if position < len(inputs) else name


def blame(error: GpuError, part: LinkInput) -> GpuError:
    """An error of one input alone, with its kernel and source; with its label where those are not known."""
    if part.source:
        return error.at(kernel=part.kernel, source=part.source)
    error.what = f"{part.label}: {error.what}"
    return error
