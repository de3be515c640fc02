"""Which provider does the work: a pure function of what was found, of what the user wants and of what the build needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from scons_gpu.assemble.ptxas import PtxasProvider
from scons_gpu.errors import ToolMissingError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from scons_gpu.assemble.provider import Provider
    from scons_gpu.toolchain.tools import Toolchain

__all__ = ["KNOWN", "Choice", "Need", "choose"]

Need = Literal["compile", "relocatable", "link"]
KNOWN = ("ptxas",)
_HINT = "install scons-gpu[toolkit], or set GPU_CUDA_PATH"


@dataclass(frozen=True)
class Choice:
    """What was taken, and why."""

    provider: Provider
    log: tuple[str, ...]
    """One line a decision; `scons-gpu doctor` prints them."""


def choose(toolchain: Toolchain, *, wanted: str = "auto", needs: Collection[Need], facts: Path) -> Choice:
    """The provider for a build that needs `needs`. Starts nothing.

    Raises UsageError for a name that is not known; ToolMissingError, with every decision, where the one wanted (or, with "auto", any)
    was not found or cannot do what is needed. Nothing else is taken in its place.
    """
    if wanted != "auto" and wanted not in KNOWN:
        msg = f"GPU_PROVIDER={wanted}: no such provider"
        raise UsageError(msg, hint=f"known: auto, {', '.join(KNOWN)}")
    log: list[str] = []
    for name in KNOWN if wanted == "auto" else (wanted,):
        refused = _refusal(toolchain, needs)
        log.append(f"{name}: {refused or _taken(toolchain)}")
        if not refused and toolchain.ptxas:
            provider = PtxasProvider(ptxas=toolchain.ptxas, nvlink=toolchain.nvlink, facts=facts)
            return Choice(provider=provider, log=tuple(log))
    what = "no assembler fits" if wanted == "auto" else f"GPU_PROVIDER={wanted} does not fit"
    msg = f"{what}: this build needs to {_needed(needs)}"
    raise ToolMissingError(msg, output="\n".join(log), hint=_HINT)


def _refusal(toolchain: Toolchain, needs: Collection[Need]) -> str:
    """Why ptxas is not taken; empty where it fits."""
    if toolchain.ptxas is None:
        return f"not found; {toolchain.where('ptxas')}".rstrip("; ")
    if "link" in needs and toolchain.nvlink is None:
        return f"{toolchain.ptxas.path} has no nvlink beside it, so it cannot link; {toolchain.where('nvlink')}".rstrip("; ")
    return ""


def _taken(toolchain: Toolchain) -> str:
    parts = [f"{tool.name} {tool.version} ({tool.path})" for tool in (toolchain.ptxas, toolchain.nvlink) if tool]
    return "taken: " + ", ".join(parts)


def _needed(needs: Collection[Need]) -> str:
    words = {"compile": "assemble whole objects", "relocatable": "assemble relocatable objects", "link": "link"}
    return " and ".join(words[need] for need in words if need in needs)
