"""The provider of nvJitLink: a library that assembles PTX and links it with objects in one call, in this process."""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from typing import TYPE_CHECKING

from scons_gpu.assemble.identity import identity
from scons_gpu.assemble.provider import Capabilities
from scons_gpu.errors import ToolError, ToolMissingError
from scons_gpu.toolchain.bindings import bindings
from scons_gpu.toolchain.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scons_gpu.assemble.library import Answer
    from scons_gpu.assemble.provider import Assembled, AssembleOptions, Linked, LinkInput
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Tool

__all__ = ["NvJitLinkProvider"]

_TOOL = "nvJitLink"
# With -r, code that loads from `.const` by name names bank 0x1c in place of bank 3, whoever links it then, and nobody says so (13.5).
_CONSTANTS = re.compile(r"\.const\b")
_CODE = re.compile(r"\.(?:entry|func)\b")
_ARRAYS = re.compile(r"\.extern\s+\.shared\b[^;]*;")


class NvJitLinkProvider:
    """Every call takes its turn: the library does one thing at a time in a process. `facts` is where probed facts are kept."""

    name = "nvjitlink"

    def __init__(self, *, nvjitlink: Tool, facts: Path) -> None:
        self._tool = nvjitlink
        self._facts = Facts(facts)
        self.identity = self.link_identity = identity(nvjitlink)

    @cached_property
    def capabilities(self) -> Capabilities:
        """Tried once per library, in a process of its own. Its "whole" object is a link of one: there, too, clones keep the registers.

        Raises ToolMissingError for a library that does not even run, with its reason in one line: whoever chooses shows it.
        """
        can = self._probed
        if can["words"]:
            msg = f"{_TOOL} ({self._tool.path}) cannot be used: {can['words']}"
            raise ToolMissingError(msg)
        links = can["link"] == "yes"
        return Capabilities(
            compile=links,
            relocatable=can["relocatable"] == "yes",
            link=links,
            clones_functions=can["clones"] == "yes",
            link_ptx=links,
        )

    def spelling(self, *, target: Target, options: AssembleOptions, relocatable: bool) -> tuple[str, ...]:
        """What is for the ptxas in it goes there by `-Xptxas`: its own `-O` takes 0 and 3 alone. `-Xptxas=-v` makes the report."""
        given = [f"-arch={target.name}", "-Xptxas=-v"]
        if options.opt != 3:
            given.append(f"-Xptxas=-O{options.opt}")
        if options.lineinfo:
            given.append("-lineinfo")
        if options.debug:
            given.append("-g")
        if options.maxrregcount is not None:
            given.append(f"-maxrregcount={options.maxrregcount}")
        if self.capabilities.clones_functions:
            from scons_gpu.assemble.nvjitlink_library import CLONES  # noqa: PLC0415 - as in `_call`

            given += CLONES
        return (*given, *(["-r"] if relocatable else []), *(f"-Xptxas={flag}" for flag in options.flags))

    def compile(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        """A link of this PTX alone."""
        return self._assemble(ptx, target=target, options=options, relocatable=False)

    def compile_relocatable(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        """A relocatable link of this PTX alone."""
        if not self.capabilities.relocatable:
            msg = f"{_TOOL} {self._tool.version} ({self._tool.path}) makes no relocatable objects"
            raise ToolMissingError(msg, arch=target.name, output=self._probed["words"], hint="GPU_DEFER=auto defers to its link")
        if _CODE.search(ptx) and _CONSTANTS.search(ptx):
            msg = f"relocatable objects of {_TOOL} read other memory than the constants that they name"
            hint = "GPU_DEFER=always has its link assemble the PTX, GPU_PROVIDER=ptxas+nvjitlink makes objects by ptxas: both are right"
            raise ToolError(msg, arch=target.name, hint=hint)
        return self._assemble(_own_arrays(ptx), target=target, options=options, relocatable=True)

    def link(self, inputs: Sequence[LinkInput], *, target: Target, options: AssembleOptions) -> Linked:
        """An image of objects and deferred PTX, in one call. The options shape what it assembles; of objects alone, only -g counts."""
        from scons_gpu.assemble import library  # noqa: PLC0415 - as in `_call`
        from scons_gpu.assemble.inputs import read  # noqa: PLC0415 - the same

        taken = read(inputs, target=target, linker=_TOOL, ptx=True)
        if any(each.deferred for each in taken):
            spelled = self.spelling(target=target, options=options, relocatable=False)
        else:
            spelled = (f"-arch={target.name}", *(["-g"] if options.debug else []))
        return library.linked(self._call(spelled, library.given(taken)), taken, tool=_TOOL, target=target, options=options)

    def _assemble(self, ptx: str, *, target: Target, options: AssembleOptions, relocatable: bool) -> Assembled:
        from scons_gpu.assemble import library  # noqa: PLC0415 - as in `_call`

        spelled = self.spelling(target=target, options=options, relocatable=relocatable)
        answer = self._call(spelled, [(library.UNIT, ptx.encode())])
        return library.assembled(answer, ptx=ptx, tool=_TOOL, target=target, options=options)

    def _call(self, options: Sequence[str], inputs: Sequence[tuple[str, bytes]]) -> Answer:
        from scons_gpu.assemble.nvjitlink_library import load  # noqa: PLC0415 - a build with nothing to do makes providers and calls none

        return load(self._tool.path).link(options, inputs)

    @cached_property
    def _probed(self) -> dict[str, str]:
        from scons_gpu.assemble.nvjitlink_library import probe  # noqa: PLC0415 - as in `_call`

        path, through = self._tool.path, bindings("nvjitlink")
        files = [path, through] if through and self._tool.version else []
        return self._facts.learn(f"nvjitlink {self.identity}", path, files=lambda: files, find_out=lambda _: probe(path))


def _own_arrays(ptx: str) -> str:
    """The PTX with names of its own for dynamic shared memory.

    A relocatable link gives such an array its place and makes it a definition (13.5), of which a link takes one: two units that both say
    `extern __shared__ float tile[]` would not go together. By name it is known to nobody else, and the code is the same.
    """
    found = _ARRAYS.findall(ptx)
    if not found:
        return ptx
    from scons_gpu.split.ptx_text import declarators, renamed  # noqa: PLC0415 - most units have none

    suffix = hashlib.sha256(ptx.encode()).hexdigest()[:16]
    return renamed(ptx, {each.name: f"{each.name}${suffix}" for statement in found for each in declarators(statement)})
