"""Which optimiser lowers: a pure function of what was found, of what the user wants and of the architecture."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.errors import ToolMissingError, UsageError
from scons_gpu.toolchain import python
from scons_gpu.toolchain.bindings import bindings, lacking
from scons_gpu.toolchain.facts import Facts
from scons_gpu.toolchain.gates import version_tuple
from scons_gpu.toolchain.process import ask
from scons_gpu.toolchain.tables import ARCHS
from scons_gpu.toolchain.versions import newest_ptx, ptx_version

if TYPE_CHECKING:
    from pathlib import Path

    from scons_gpu.lower.options import LowerOptions
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Tool, Toolchain

__all__ = ["Lowering", "Reads", "choose", "decide", "library", "reads"]

_START = "from scons_gpu.lower.libnvvm import main\nmain()\n"


@dataclass(frozen=True)
class Reads:
    """What one libNVVM reads and writes."""

    dialects: tuple[tuple[str, int], ...] = ()
    """Architecture, as "100a" → major version of the LLVM whose IR it reads for that."""
    ptx: int = 0
    """The PTX version that it writes, the same for all: 95 is 9.5."""
    trouble: str = ""
    """Why it cannot be used, in its own words; empty if it can."""


@dataclass(frozen=True)
class Lowering:
    """What lowers for one architecture, and why."""

    by: str
    ptx: int
    """PTX version of what it writes."""
    why: str = ""
    """For `scons-gpu doctor`; the same words for all architectures of which it holds."""


@functools.lru_cache(maxsize=256)
def choose(toolchain: Toolchain, *, wanted: str = "auto", target: Target, assembler: Tool | None, facts: Path) -> Lowering:
    """What lowers for `target`. The first question about a library starts one process, whose answer is kept in the folder `facts`.

    Raises UsageError where `wanted` is "nvvm" and the library does not read our IR for this architecture, or writes PTX that is too new
    for the assembler; ToolMissingError where it was not found. Nothing else is taken in its place.
    """
    tool = toolchain.library("nvvm") if wanted != "llvm" else None
    if wanted == "nvvm" and tool is None:
        msg = f"GPU_LOWER=nvvm: libNVVM was not found, and {target.name} is to be lowered with it"
        raise ToolMissingError(
            msg, output=toolchain.where("nvvm"), hint="pip install 'scons-gpu[toolkit]' brings it; GPU_LOWER=auto does without"
        )
    found = reads(tool, facts=facts) if tool else None
    return decide(wanted, target=target, llvm=toolchain.llvm, assembler=assembler, nvvm=tool, found=found)


def decide(  # noqa: PLR0913 - one keyword for each thing that decides
    wanted: str, *, target: Target, llvm: str, assembler: Tool | None, nvvm: Tool | None, found: Reads | None
) -> Lowering:
    """The decision itself: see `choose`. `found` is what the library `nvvm` reads; both are None where there is none."""
    ptx = ptx_version(target, llvm=llvm, assembler=assembler)  # also where libNVVM lowers: what nobody knows is told in one way
    if nvvm is None or found is None:
        return Lowering(by="llvm", ptx=ptx, why="asked for" if wanted == "llvm" else "libNVVM was not found")
    trouble = _trouble(target, llvm=llvm, assembler=assembler, found=found)
    if not trouble:
        return Lowering(by="nvvm", ptx=found.ptx, why=f"libNVVM {nvvm.version} reads our IR, that of LLVM {_major(llvm)}")
    if wanted == "nvvm":
        msg = f"GPU_LOWER=nvvm: libNVVM {nvvm.version} ({nvvm.path}) cannot lower {target.name}: {trouble}"
        raise UsageError(msg, arch=target.name, hint=_hint(found, llvm))
    return Lowering(by="llvm", ptx=ptx, why=f"libNVVM {nvvm.version}: {trouble}")


def _trouble(target: Target, *, llvm: str, assembler: Tool | None, found: Reads) -> str:
    dialect = dict(found.dialects).get(target.cpu.removeprefix("sm_"))
    if found.dialects and dialect is None:
        return "it does not know this architecture"
    if dialect is not None and dialect < _major(llvm):
        return f"for this architecture it reads the IR of LLVM {dialect}, and ours is of LLVM {_major(llvm)}"
    if found.trouble or dialect is None:
        return found.trouble or "it does not tell what it reads"
    if assembler is not None and found.ptx > newest_ptx(assembler):
        return f"it writes PTX {_dotted(found.ptx)}, and {assembler.name} {assembler.version} reads up to {_dotted(newest_ptx(assembler))}"
    return ""


def _hint(found: Reads, llvm: str) -> str:
    if found.trouble and not found.dialects:
        return "pip install 'scons-gpu[toolkit]' brings libNVVM and cuda-python; GPU_LOWER=auto takes LLVM"
    names = [f"sm_{name}" for name, dialect in found.dialects if dialect >= _major(llvm)]
    reads_ours = f"it reads our IR for {', '.join(names)}" if names else "it reads our IR for no architecture"
    return f"{reads_ours}; GPU_LOWER=auto takes LLVM for the others"


def _major(llvm: str) -> int:
    return next(iter(version_tuple(llvm)), 0)


def _dotted(ptx: int) -> str:
    return f"{ptx // 10}.{ptx % 10}"


def library(toolchain: Toolchain, options: LowerOptions) -> Tool | None:
    """The libNVVM that these options lower by; None where LLVM does."""
    return toolchain.library("nvvm") if options.by == "nvvm" else None


@functools.cache
def reads(tool: Tool, *, facts: Path) -> Reads:
    """What this library reads and writes: asked once, in a process of its own, and again when it or its bindings change."""
    through = bindings("nvvm")
    if not through:
        return Reads(trouble=lacking())
    found = Facts(facts).learn(f"nvvm {through}", tool.path, files=lambda: [tool.path, through], find_out=lambda _: _ask(tool.path))
    dialects = (pair.partition("=") for pair in found["dialects"].split())
    return Reads(
        dialects=tuple((name, int(dialect)) for name, _, dialect in dialects), ptx=int(found["ptx"] or 0), trouble=found["trouble"]
    )


def _ask(path: str) -> dict[str, str]:
    names = [f"{arch.number}{suffix}" for arch in ARCHS for suffix in ("", "a", "f") if arch.least_ptx(suffix) is not None]
    done = ask(python.command(_START, path, *names), tool="libNVVM")
    if done.status == 0:
        return dict(json.loads(done.stdout))
    return {"dialects": "", "ptx": "", "trouble": f"the process that asked it ended with status {done.status}"}
