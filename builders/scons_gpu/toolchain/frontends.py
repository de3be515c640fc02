"""What makes PTX or IR of CUDA C++: clang where it was found, else nvcc, else NVRTC."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import ToolMissingError
from scons_gpu.toolchain import fingerprint
from scons_gpu.toolchain.facts import Facts
from scons_gpu.toolchain.model import Tool
from scons_gpu.toolchain.versions import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scons_gpu.toolchain.tools import Toolchain

__all__ = ["FrontEnd", "choose"]

_HINTS = {
    "nvcc": "pip install 'scons-gpu[toolkit]' brings it; GPU_CUDA_PATH names a CUDA toolkit; it needs a host compiler besides",
    "nvrtc": "pip install 'scons-gpu[toolkit]' brings it; GPU_CUDA_PATH names a CUDA toolkit",
}


@dataclass(frozen=True)
class FrontEnd:
    """The one that is taken."""

    name: str
    """`clang`, `nvcc` or `nvrtc`."""
    tool: Tool
    said: str = ""
    """What to tell the user, once."""

    @property
    def divides(self) -> bool:
        """Whether kernels are lowered one by one."""
        return self.name == "clang"


def choose(toolchain: Toolchain, *, wanted: str, environ: Mapping[str, str], facts: Path) -> FrontEnd:
    """The front end for `.cu`: `wanted` by its name, or `auto`. Raises ToolMissingError, which tells where it was looked for."""
    if wanted == "clang" or (wanted == "auto" and toolchain.clang and toolchain.headers):
        return FrontEnd("clang", require(toolchain, "clang"))
    names = ("nvcc", "nvrtc") if wanted == "auto" else (wanted,)
    for name in names:
        tool = nvcc(toolchain, environ=environ, facts=facts) if name == "nvcc" else toolchain.library("nvrtc")
        if tool is not None and (wanted != "auto" or name != "nvcc" or shutil.which("g++", path=environ.get("PATH", ""))):
            return FrontEnd(name, tool, said=_told(name))
    if wanted == "auto":
        return FrontEnd("clang", require(toolchain, "clang"))
    msg = f"{wanted} was not found"
    raise ToolMissingError(msg, output=toolchain.where(wanted), hint=_HINTS[wanted])


def _told(name: str) -> str:
    return (
        f"kernels of a .cu are lowered in one piece by {name}, and only assembling is divided: "
        "install scons-gpu[clang] to have each lowered by itself"
    )


def nvcc(toolchain: Toolchain, *, environ: Mapping[str, str], facts: Path) -> Tool | None:
    """The nvcc of the toolkit that the assembler is from, else the one on PATH. What it starts besides is part of its identity."""
    beside = Path(toolchain.ptxas.path).with_name("nvcc") if toolchain.ptxas else None
    path = str(beside) if beside and beside.is_file() else shutil.which("nvcc", path=environ.get("PATH", ""))
    if not path:
        return None
    known = Facts(facts)
    found = fingerprint.nvidia_tool(path, facts=known)
    home = Path(path).resolve().parent.parent
    others = [home / "nvvm/bin/cicc", home / "bin/cudafe++"]
    hashes = [fingerprint.plain_file(str(file), version="", facts=known).sha256 for file in others if file.is_file()]
    identity = hashlib.sha256(" ".join([found.sha256, *hashes]).encode()).hexdigest()
    return Tool(name="nvcc", path=path, version=found.version, identity=identity, origin="beside ptxas" if beside else "PATH")
