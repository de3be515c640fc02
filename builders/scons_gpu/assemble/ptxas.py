"""The provider of the toolkit's own programs: ptxas makes objects, nvlink links them."""

from __future__ import annotations

import json
import re
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.assemble import failures, report
from scons_gpu.assemble.nvlink import link
from scons_gpu.assemble.provider import Assembled, AssembleOptions, Capabilities, Linked, LinkInput
from scons_gpu.assemble.run import run
from scons_gpu.errors import ToolMissingError
from scons_gpu.store.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Tool

__all__ = ["PtxasProvider"]

# ptxas runs in a folder of its own on files of these names: with -g it writes both into the object (13.5: `unit.ptx -g -o unit.cubin`).
_PTX, _OBJECT = "unit.ptx", "unit.cubin"


class PtxasProvider:
    """ptxas, and nvlink where it was found beside it. Making one starts nothing; `facts` is where probed facts are kept."""

    name = "ptxas"

    def __init__(self, *, ptxas: Tool, nvlink: Tool | None, facts: Path) -> None:
        self._ptxas = ptxas
        self._nvlink = nvlink
        self._facts = facts
        self.identity = ptxas.identity
        self.link_identity = nvlink.identity if nvlink else ""

    @cached_property
    def capabilities(self) -> Capabilities:
        """Without nvlink it cannot link; cloning is asked of `ptxas --help`, once per tool."""
        return Capabilities(compile=True, relocatable=True, link=self._nvlink is not None, clones_functions=self._clones())

    def spelling(self, *, target: Target, options: AssembleOptions, relocatable: bool) -> tuple[str, ...]:
        """The options' text goes into `.note.nv.tkinfo`, so a default spelled out (`-O3`) would change bytes and nothing else.

        `-v` is always given, so that its report can be kept; it too stands in that note and changes nothing else.
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
            if self.capabilities.clones_functions:
                given += ["-enable-func-clone-sc", "true"]
        return (*given, *options.flags)

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
        return link(self._nvlink, inputs, target=target, options=options)

    def _assemble(self, ptx: str, *, target: Target, options: AssembleOptions, relocatable: bool) -> Assembled:
        arch = target.name
        with tempfile.TemporaryDirectory(prefix="scons-gpu-") as folder:
            (Path(folder) / _PTX).write_text(ptx, encoding="utf-8")
            spelled = self.spelling(target=target, options=options, relocatable=relocatable)
            ended = run([self._ptxas.path, *spelled, _PTX, "-o", _OBJECT], cwd=Path(folder))
            data = _read(Path(folder) / _OBJECT)
        output = _name_lines(ended.output)
        read = report.parse(output)
        if ended.code:
            raise failures.classify(ended.code, read.said, tool="ptxas", arch=arch, peak_kib=ended.peak_kib, ptx=ptx)
        if not data:
            raise failures.silent(tool="ptxas", arch=arch, output=read.said)
        if options.fail_on_spill and (spills := failures.spilled(read, arch=arch)):
            raise spills
        return Assembled(
            data=data,
            output=output if options.verbose else read.said,
            resources=tuple(kernel.resources() for kernel in read.kernels),
            seconds=ended.seconds,
            cpu=ended.cpu,
            peak_kib=ended.peak_kib,
        )

    def _clones(self) -> bool:
        kept = self._facts / "ptxas" / f"{self.identity}.json" if self.identity else None
        if kept and (known := _known(kept)) is not None:
            return known
        with tempfile.TemporaryDirectory(prefix="scons-gpu-") as folder:
            ended = run([self._ptxas.path, "--help"], cwd=Path(folder))
        clones = "--enable-func-clone-sc" in ended.output
        if kept and ended.code == 0:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(kept, json.dumps({"enable-func-clone-sc": clones}) + "\n")
        return clones


def _known(kept: Path) -> bool | None:
    """The kept answer; None where there is none that reads."""
    try:
        return bool(json.loads(kept.read_text(encoding="utf-8"))["enable-func-clone-sc"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read(path: Path) -> bytes:
    """What the tool wrote; nothing where it wrote nothing."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _name_lines(output: str) -> str:
    """A temporary file's name tells nobody anything; the line in the PTX does."""
    return re.sub(rf"\b{re.escape(_PTX)}, line (\d+)", r"PTX line \1", output).replace(f"'{_PTX}'", "the PTX")
