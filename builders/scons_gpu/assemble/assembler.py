"""What ptxas and the library made of it have in common: their options in one spelling, and what becomes of what they made and said."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from scons_gpu.assemble.provider import Assembled, AssembleOptions, Capabilities
from scons_gpu.errors import ToolError

if TYPE_CHECKING:
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.process import Finished

__all__ = ["CLONING", "Assembler", "made", "option_text"]

CLONING = "-enable-func-clone-sc"
"""With it relocatable kernels keep the registers of whole ones (FACTS 16)."""


class Assembler(ABC):
    """The assembling half of a provider."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Computed from what was found."""

    @abstractmethod
    def _assemble(self, ptx: str, *, target: Target, options: AssembleOptions, relocatable: bool) -> Assembled:
        """One object."""

    def spelling(self, *, target: Target, options: AssembleOptions, relocatable: bool) -> tuple[str, ...]:
        """See `option_text`."""
        clones = relocatable and self.capabilities.clones_functions
        return option_text(target=target, options=options, relocatable=relocatable, clones=clones)

    def compile(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        """A program of its own."""
        return self._assemble(ptx, target=target, options=options, relocatable=False)

    def compile_relocatable(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        """An object for a link."""
        return self._assemble(ptx, target=target, options=options, relocatable=True)


def option_text(*, target: Target, options: AssembleOptions, relocatable: bool, clones: bool) -> tuple[str, ...]:
    """The assembler's options in one spelling, for ptxas and the libraries made of it.

    The options' text goes into `.note.nv.tkinfo`, so a default spelled out (`-O3`) would change bytes and nothing else. `-v` is always
    given, so that its report can be kept; it too stands in that note and changes nothing else.
    """
    given = ["-v", f"-arch={target.name}"]
    if options.opt != 3:
        given.append(f"-O{options.opt}")
    if options.lineinfo:
        given.append("-lineinfo")
    if options.debug:
        given.append("-g")
    if options.maxrregcount is not None:
        given.append(f"-maxrregcount={options.maxrregcount}")
    if relocatable:
        given.append("-c")
        if clones:
            given += [CLONING, "true"]
    return (*given, *options.flags)


def made(ended: Finished, data: bytes, *, tool: str, ptx: str, target: Target, options: AssembleOptions, relocatable: bool) -> Assembled:  # noqa: PLR0913 - all that an assembler leaves
    """The object that an assembler made, after a look at it; `ended.stdout` is what it said. Raises what its failure means."""
    from scons_gpu.assemble import failures, report  # noqa: PLC0415 - a build with nothing to do makes providers and calls none

    arch = target.name
    read = report.parse(ended.stdout)
    if ended.status:
        raise failures.classify(ended.status, read.said, tool=tool, arch=arch, peak_kib=ended.peak_kib, ptx=ptx)
    if not data:
        raise failures.silent(tool=tool, arch=arch, output=read.said)
    if wrong := _wrong(data, relocatable=relocatable):
        msg = f"{tool} wrote an object that {wrong}"
        raise ToolError(msg, arch=arch, output=read.said)
    if options.fail_on_spill and (spills := failures.spilled(read, arch=arch)):
        raise spills
    told = failures.spills_told(read) if options.warn_on_spill else ""
    return Assembled(
        data=data,
        output=(ended.stdout if options.verbose else read.said) + told,
        resources=tuple(kernel.resources() for kernel in read.kernels),
        seconds=ended.seconds,
        cpu=ended.cpu,
        peak_kib=ended.peak_kib,
    )


def _wrong(data: bytes, *, relocatable: bool) -> str:
    """What is wrong with an object; empty where it is what was asked for."""
    from scons_gpu.assemble import cubin  # noqa: PLC0415 - as in `link`

    head = cubin.head(data)
    if isinstance(head, str):
        return f"does not read: {head}"
    if head.relocatable != relocatable:
        return f"is {'not ' if relocatable else ''}relocatable"
    return ""
