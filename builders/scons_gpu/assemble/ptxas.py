"""The provider of the toolkit's own programs: ptxas makes objects, nvlink links them."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from scons_gpu.assemble.assembler import CLONING, Assembler, made
from scons_gpu.assemble.identity import identity
from scons_gpu.assemble.provider import Assembled, AssembleOptions, Capabilities, Linked, LinkInput
from scons_gpu.errors import ToolMissingError
from scons_gpu.toolchain.facts import Facts
from scons_gpu.toolchain.process import ask, private_folder, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.model import Tool

__all__ = ["PtxasProvider"]

# ptxas runs in a folder of its own on files of these names: with -g it writes both into the object (13.5: `unit.ptx -g -o unit.cubin`).
_PTX, _OBJECT = "unit.ptx", "unit.cubin"


class PtxasProvider(Assembler):
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


def _asked(ptxas: str) -> dict[str, str]:
    with private_folder() as folder:
        ended = ask([ptxas, "--help"], cwd=folder, together=True)
    return {"clones": "yes" if CLONING in ended.stdout else "no"}


def _name_lines(output: str) -> str:
    """A temporary file's name tells nobody anything; the line in the PTX does."""
    return re.sub(rf"\b{re.escape(_PTX)}, line (\d+)", r"PTX line \1", output).replace(f"'{_PTX}'", "the PTX")
