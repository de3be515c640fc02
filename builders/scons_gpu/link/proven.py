"""Which architectures an assembler's objects merge for: found out once with a toolkit, and kept with its facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scons_gpu.assemble.provider import AssembleOptions
from scons_gpu.toolchain.facts import Facts

if TYPE_CHECKING:
    from pathlib import Path

    from scons_gpu.assemble.provider import Provider
    from scons_gpu.toolchain.arch import Target

__all__ = ["DEBUG", "unproven"]

DEBUG = "debug information and line tables do not merge"


_FORMAT = "4"
"""Of what is tried. Raised where that or the merging changes: what was found out before is then found out again."""


def unproven(provider: Provider, target: Target, *, tool: str, facts: Path) -> str:
    """Why the objects that `provider` makes for `target` are not merged; empty where they are. `tool` is the path of what assembles.

    Raises ToolStoppedError where that was ended from outside while it was tried: then nothing is known, and nothing kept.
    """

    def find_out(_: object) -> dict[str, str]:
        from scons_gpu.link.proof import prove  # noqa: PLC0415 - once with a toolkit

        return {"differs": prove(target, lambda ptx: provider.compile(ptx, target=target, options=AssembleOptions()).data)}

    kind = f"merge {_FORMAT} {target.name} {provider.name} {provider.identity}"
    return Facts(facts).learn(kind, tool, files=lambda: [tool], find_out=find_out)["differs"]
