"""How a provider is made, as plain data: a worker makes the same one of it."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import UsageError
from scons_gpu.toolchain.model import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scons_gpu.assemble.provider import Provider

__all__ = ["LIBRARIES", "Making", "make", "parts"]

LIBRARIES = frozenset({"nvptxcompiler", "nvjitlink", "driver"})
"""What runs in the process that calls it, and so in a worker: a compiler may take its process along."""


@dataclass(frozen=True)
class Making:
    """A provider by its name, and the tools that it consists of."""

    name: str
    """As `GPU_PROVIDER` spells it."""
    tools: tuple[tuple[str, Tool], ...]
    facts: str
    """Folder of probed facts."""
    deferred: bool = False
    """Whether relocatable objects are put off to the link."""

    @property
    def compiler(self) -> Tool:
        """What turns PTX into machine code."""
        return dict(self.tools)[parts(self.name)[0]]

    @property
    def linker(self) -> Tool | None:
        """What makes images, if anything does."""
        last = parts(self.name)[-1]
        return dict(self.tools).get("nvlink" if last == "ptxas" else last)

    def to_json(self) -> dict[str, Any]:
        """As a worker is told."""
        return {**vars(self), "tools": {name: asdict(tool) for name, tool in self.tools}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Making:
        """What `to_json` told."""
        tools = tuple((name, Tool(**tool)) for name, tool in data["tools"].items())
        return Making(name=data["name"], tools=tools, facts=data["facts"], deferred=data["deferred"])


def parts(name: str) -> tuple[str, ...]:
    """What a provider's name consists of: what compiles, and behind a plus what links."""
    return tuple(name.split("+"))


@functools.cache
def make(making: Making) -> Provider:
    """The provider. Starts nothing."""
    names = parts(making.name)
    made = [_KINDS[name](dict(making.tools), Path(making.facts)) for name in names]
    provider = made[0]
    if len(made) > 1:
        from scons_gpu.assemble.pair import PairProvider  # noqa: PLC0415 - a build loads what it uses

        if making.linker is None:
            msg = f"{making.name}: nothing in it links"
            raise UsageError(msg)
        provider = PairProvider(made[0], made[1], compiled_by=making.compiler, linked_by=making.linker)
    if making.deferred:
        from scons_gpu.assemble.defer import defer  # noqa: PLC0415 - the same

        provider = defer(provider, always=provider.capabilities.relocatable)
    return provider


def _ptxas(tools: Mapping[str, Tool], facts: Path) -> Provider:
    from scons_gpu.assemble.ptxas import PtxasProvider  # noqa: PLC0415 - the same

    return PtxasProvider(ptxas=tools["ptxas"], nvlink=tools.get("nvlink"), facts=facts)


def _nvptxcompiler(tools: Mapping[str, Tool], facts: Path) -> Provider:
    from scons_gpu.assemble.nvptxcompiler import NvPtxCompilerProvider  # noqa: PLC0415 - the same

    return NvPtxCompilerProvider(tools["nvptxcompiler"], facts=facts)


def _nvlink(tools: Mapping[str, Tool], facts: Path) -> Provider:  # noqa: ARG001 - as the others
    from scons_gpu.assemble.nvlink import NvlinkProvider  # noqa: PLC0415 - the same

    return NvlinkProvider(nvlink=tools["nvlink"])


def _nvjitlink(tools: Mapping[str, Tool], facts: Path) -> Provider:
    from scons_gpu.assemble.nvjitlink import NvJitLinkProvider  # noqa: PLC0415 - the same

    return NvJitLinkProvider(nvjitlink=tools["nvjitlink"], facts=facts)


def _driver(tools: Mapping[str, Tool], facts: Path) -> Provider:  # noqa: ARG001 - as the others
    from scons_gpu.assemble.driver import DriverProvider  # noqa: PLC0415 - the same

    return DriverProvider(driver=tools["driver"])


_KINDS: Mapping[str, Callable[[Mapping[str, Tool], Path], Provider]] = {
    "ptxas": _ptxas,
    "nvptxcompiler": _nvptxcompiler,
    "nvlink": _nvlink,
    "nvjitlink": _nvjitlink,
    "driver": _driver,
}
