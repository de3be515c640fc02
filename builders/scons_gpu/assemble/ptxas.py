"""The provider of the toolkit's own programs: ptxas makes objects, nvlink links them."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from scons_gpu.assemble.identity import identity
from scons_gpu.assemble.provider import Assembled, AssembleOptions, Capabilities, Linked, LinkInput
from scons_gpu.errors import ToolError, ToolMissingError
from scons_gpu.toolchain.facts import Facts
from scons_gpu.toolchain.process import private_folder, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.model import Tool
    from scons_gpu.toolchain.process import Finished

__all__ = ["CLONING", "PtxasProvider", "made", "option_text"]

CLONING = "-enable-func-clone-sc"
"""With it relocatable kernels keep the registers of whole ones (FACTS 16)."""

# ptxas runs in a folder of its own on files of these names: with -g it writes both into the object (13.5: `unit.ptx -g -o unit.cubin`).
_PTX, _OBJECT = "unit.ptx", "unit.cubin"


class PtxasProvider:
    """ptxas, and nvlink where it was found beside it. Making one starts nothing; `facts` is where probed facts are kept."""

    name = "ptxas"

    def __init__(self, *, ptxas: Tool, nvlink: Tool | None, facts: Path) -> None:
        self._ptxas = ptxas
        self._nvlink = nvlink
        self._facts = Facts(facts)
        self.identity = identity(ptxas)
        self.link_identity = identity(nvlink) if nvlink else ""

    @cached_property
    def capabilities(self) -> Capabilities:
        """Without nvlink it cannot link; cloning is asked of `ptxas --help`, once per tool."""
        return Capabilities(compile=True, relocatable=True, link=self._nvlink is not None, clones_functions=self._clones())

    def spelling(self, *, target: Target, options: AssembleOptions, relocatable: bool) -> tuple[str, ...]:
        """See `option_text`."""
        clones = relocatable and self.capabilities.clones_functions
        return option_text(target=target, options=options, relocatable=relocatable, clones=clones)

    def compile(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        """A program of its own."""
        return self._assemble(ptx, target=target, options=options, relocatable=False)

    def compile_relocatable(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        """An object for `link`."""
        return self._assemble(ptx, target=target, options=options, relocatable=True)

    def link(self, inputs: Sequence[LinkInput], *, target: Target, options: AssembleOptions) -> Linked:
        """One flat nvlink over `inputs`."""
        if self._nvlink is None:
            msg = f"cannot link: there is no nvlink beside {self._ptxas.path}"
            raise ToolMissingError(msg, arch=target.name, hint="install scons-gpu[toolkit], or set GPU_CUDA_PATH")
        from scons_gpu.assemble.nvlink import link  # noqa: PLC0415 - a build with nothing to do makes providers and calls none

        return link(self._nvlink, inputs, target=target, options=options)

    def _assemble(self, ptx: str, *, target: Target, options: AssembleOptions, relocatable: bool) -> Assembled:
        spelled = self.spelling(target=target, options=options, relocatable=relocatable)
        with private_folder() as folder:
            (folder / _PTX).write_text(ptx, encoding="utf-8")
            ended = run([self._ptxas.path, *spelled, _PTX, "-o", _OBJECT], cwd=folder, together=True, seconds=options.seconds)
            data = (folder / _OBJECT).read_bytes() if (folder / _OBJECT).exists() else b""
        told = replace(ended, stdout=_name_lines(ended.stdout))
        return made(told, data, tool="ptxas", ptx=ptx, target=target, options=options, relocatable=relocatable)

    def _clones(self) -> bool:
        path = self._ptxas.path
        if not self._ptxas.version:
            return _asked(path)["clones"] == "yes"
        # The identity is part of what is asked: behind an unchanged wrapper there may be another ptxas.
        kind = f"ptxas options {self.identity}"
        return self._facts.learn(kind, path, files=lambda: [path], find_out=lambda _: _asked(path))["clones"] == "yes"


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


def _asked(ptxas: str) -> dict[str, str]:
    with private_folder() as folder:
        ended = run([ptxas, "--help"], cwd=folder, together=True)
    return {"clones": "yes" if CLONING in ended.stdout else "no"}


def _wrong(data: bytes, *, relocatable: bool) -> str:
    """What is wrong with an object; empty where it is what was asked for."""
    from scons_gpu.assemble import cubin  # noqa: PLC0415 - as in `link`

    head = cubin.head(data)
    if isinstance(head, str):
        return f"does not read: {head}"
    if head.relocatable != relocatable:
        return f"is {'not ' if relocatable else ''}relocatable"
    return ""


def _name_lines(output: str) -> str:
    """A temporary file's name tells nobody anything; the line in the PTX does."""
    return re.sub(rf"\b{re.escape(_PTX)}, line (\d+)", r"PTX line \1", output).replace(f"'{_PTX}'", "the PTX")
