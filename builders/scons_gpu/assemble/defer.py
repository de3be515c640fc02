"""Deferral: a provider that only links gets relocatable compilation, by handing the PTX on to its link in files with a type."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from scons_gpu.assemble import dptx
from scons_gpu.assemble.inputs import blame, nothing, read
from scons_gpu.assemble.provider import Assembled, AssembleOptions, Capabilities, Linked, LinkInput
from scons_gpu.errors import GpuError, UsageError
from scons_gpu.toolchain.process import private_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scons_gpu.assemble.inputs import Input
    from scons_gpu.assemble.provider import Provider
    from scons_gpu.toolchain.arch import Target

__all__ = ["DeferringProvider", "defer"]


def defer(provider: Provider, *, always: bool = False) -> DeferringProvider:
    """`provider` with its relocatable assembly put off to the link.

    Raises UsageError for one that cannot link, and for one that makes relocatable objects itself, unless `always` (GPU_DEFER=always) says
    that this shall count as absent.
    """
    can = provider.capabilities
    if not can.link:
        msg = f"{provider.name} cannot link, so PTX that is deferred would never be assembled"
        raise UsageError(msg, hint="GPU_PROVIDER names one that links, or a pair; scons-gpu doctor shows what was found")
    if can.relocatable and not always:
        msg = f"{provider.name} makes relocatable objects, so nothing is to be deferred"
        raise UsageError(msg, hint="GPU_DEFER=always defers all the same")
    if not can.relocatable and not can.link_ptx:
        msg = f"{provider.name} links objects alone: it can neither assemble PTX nor take it to its link"
        raise UsageError(msg, hint="GPU_PROVIDER names one that takes PTX to its link (nvjitlink, driver), or a pair")
    return DeferringProvider(provider)


class DeferringProvider:
    """Made by `defer`. What the inner provider makes beside relocatable objects, it still makes."""

    def __init__(self, inner: Provider) -> None:
        self._inner = inner
        self.name = inner.name

    @property
    def identity(self) -> str:
        """The inner one's: it still makes whole objects."""
        return self._inner.identity

    @property
    def link_identity(self) -> str:
        """An image is shaped by what assembles as well as by what links."""
        inner = self._inner
        return inner.link_identity if inner.capabilities.link_ptx else f"{inner.identity} {inner.link_identity}"

    @property
    def capabilities(self) -> Capabilities:
        """The inner one's, and relocatable compilation."""
        return dataclasses.replace(self._inner.capabilities, relocatable=True, link_ptx=True)

    def spelling(self, *, target: Target, options: AssembleOptions, relocatable: bool) -> tuple[str, ...]:
        """Deferred PTX is no object: its key must be no object's, so that a provider that appears later makes objects."""
        spelled = self._inner.spelling(target=target, options=options, relocatable=relocatable)
        return ("deferred", dptx.FORMAT, *spelled) if relocatable else spelled

    def compile(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        """By the inner provider."""
        return self._inner.compile(ptx, target=target, options=options)

    def compile_relocatable(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        """The PTX itself, as deferred PTX. Asks the inner provider for nothing but the spelling of the options."""
        spelled = self._inner.spelling(target=target, options=options, relocatable=True)
        data = dptx.write(ptx, arch=target.name, spelled=spelled, options=options)
        return Assembled(data=data, output="", resources=(), seconds=0.0)

    def link(self, inputs: Sequence[LinkInput], *, target: Target, options: AssembleOptions) -> Linked:
        """An image of objects and deferred PTX, in the order given; parts that hold nothing are left out.

        The options that shape code are those that the deferred parts were made with. By the inner provider's own link where that takes
        PTX; else each part is assembled here. A link is one job of the build, so its parts are assembled one after the other.
        """
        taken = [each for each in read(inputs, target=target, linker=self.name, ptx=True) if not (each.deferred and each.deferred.empty)]
        if not taken:
            raise nothing(target)
        deferred = next((each.deferred for each in taken if each.deferred), None)
        asked = dataclasses.replace(options, **deferred.shaping) if deferred else options
        if self._inner.capabilities.link_ptx:
            return self._inner.link([each.part for each in taken], target=target, options=asked)
        return self._finish(taken, target=target, options=asked)

    def _finish(self, taken: Sequence[Input], *, target: Target, options: AssembleOptions) -> Linked:
        """Part by part."""
        made: list[Assembled] = []
        with private_folder() as folder:
            parts = []
            for position, each in enumerate(taken):
                if each.deferred is None:
                    parts.append(each.part)
                    continue
                made.append(self._assemble(each.part, each.deferred.ptx, target=target, options=options))
                parts.append(dataclasses.replace(each.part, path=_saved(folder / f"{position}.cubin", made[-1].data)))
            linked = self._inner.link(parts, target=target, options=options)
        return dataclasses.replace(
            linked,
            output="".join([*(each.output for each in made), linked.output]),
            seconds=linked.seconds + sum(each.seconds for each in made),
            cpu=linked.cpu + sum(each.cpu for each in made),
            peak_kib=max([linked.peak_kib, *(each.peak_kib for each in made)]),
            resources=tuple(sorted((found for each in made for found in each.resources), key=lambda found: found.kernel)),
        )

    def _assemble(self, part: LinkInput, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        try:
            made = self._inner.compile_relocatable(ptx, target=target, options=options)
        except GpuError as error:
            raise blame(error, part) from None
        return dataclasses.replace(made, output=f"{part.label}:\n{made.output}" if made.output else "")


def _saved(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
