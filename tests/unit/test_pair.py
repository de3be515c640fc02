from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from scons_gpu.assemble.nvlink import NvlinkProvider
from scons_gpu.assemble.pair import PairProvider
from scons_gpu.assemble.provider import Capabilities
from scons_gpu.errors import (
    ToolMissingError,
    UsageError,
)

if TYPE_CHECKING:
    from scons_gpu.assemble.provider import Provider

from provider_parts import PLAIN, SM_90, kernel, tool


def test_l9_a_linker_older_than_the_compiler_is_refused(every: dict[str, Provider]) -> None:
    older = replace(tool("nvjitlink"), version="13.4.92")
    with pytest.raises(ToolMissingError, match=r"the assembler is newer than the linker: ptxas 13\.5\.37 \(.*\), nvjitlink 13\.4\.92 \("):
        PairProvider(every["ptxas"], every["nvjitlink"], compiled_by=tool("ptxas"), linked_by=older)
    for version in ("13.5.2", "13.6.1", "14.0", ""):
        fits = replace(older, version=version)
        PairProvider(every["ptxas"], every["nvjitlink"], compiled_by=tool("ptxas"), linked_by=fits)
    with pytest.raises(UsageError, match=r"GPU_PROVIDER=ptxas\+ptxas: a pair has two different halves"):
        PairProvider(every["ptxas"], every["ptxas"], compiled_by=tool("ptxas"), linked_by=tool("ptxas"))


def test_a_pair_can_what_its_halves_can(every: dict[str, Provider]) -> None:
    def pair(first: Provider, second: Provider) -> Capabilities:
        return PairProvider(first, second, compiled_by=tool("ptxas"), linked_by=tool("nvlink")).capabilities

    nvlink = NvlinkProvider(nvlink=tool("nvlink"))
    assert nvlink.capabilities == Capabilities(compile=False, relocatable=False, link=True, clones_functions=False)
    assert pair(every["ptxas"], nvlink) == every["ptxas"].capabilities
    assert pair(nvlink, every["nvjitlink"]) == Capabilities(
        compile=False, relocatable=False, link=True, clones_functions=False, link_ptx=True
    )
    for call in (nvlink.compile, nvlink.compile_relocatable):
        with pytest.raises(ToolMissingError, match="nvlink makes no objects"):
            call(kernel("a"), target=SM_90, options=PLAIN)
