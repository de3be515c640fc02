"""Which provider the settings of a module come to, and what there is to say of its tools."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from scons_gpu.assemble.choose import choose
from scons_gpu.scons.later import later
from scons_gpu.toolchain import versions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scons_gpu.assemble.choose import Choice, Need
    from scons_gpu.scons import choice, dump, unit_files
    from scons_gpu.scons.session import Session
    from scons_gpu.scons.settings import Settings
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Toolchain
else:
    choice, dump = later("scons_gpu.scons.choice"), later("scons_gpu.scons.dump")
    unit_files = later("scons_gpu.scons.unit_files")

__all__ = ["check_tools", "choice_for"]


def choice_for(tools: Toolchain, settings: Settings, facts: Path, *, needs: tuple[Need, ...] = ()) -> Choice | None:
    """What does the work for these settings; None where all architectures are virtual."""
    targets = tuple(target for target in settings.archs if target.real)
    wanted = needs or (("relocatable", "link") if settings.link == "image" else ("compile",))
    return _choose(tools, settings.provider, wanted, targets, settings.defer == "always", facts) if targets else None


@functools.cache
def _choose(tools: Toolchain, wanted: str, needs: tuple[Need, ...], targets: tuple[Target, ...], always: bool, facts: Path) -> Choice:  # noqa: FBT001, PLR0913, PLR0917 - all that decides
    """Once for all modules alike, and so one look at what the tools can do."""
    return choose(tools, wanted=wanted, needs=needs, targets=targets, always_defer=always, facts=facts)


def check_tools(session: Session, tools: Toolchain, targets: Sequence[Target], choice: Choice | None) -> None:
    """Says what there is to say of the tools that were chosen. Raises for what may not be used together, or not for these architectures."""
    making = choice.making if choice else None
    if choice and not making:
        session.warn(choice.log[-1])
    assembler = making.compiler if making else None if choice else tools.ptxas
    for warning in versions.check(targets, llvm=tools.llvm, assembler=assembler, linker=making.linker if making else None):
        session.warn(warning)
