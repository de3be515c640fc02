from __future__ import annotations

from pathlib import Path

import pytest

from scons_gpu.assemble.choose import choose
from scons_gpu.errors import ToolMissingError, UsageError
from scons_gpu.toolchain.tools import Look, Tool, Toolchain

FACTS = Path("/nowhere")
PTXAS = Tool(name="ptxas", path="/opt/cuda/bin/ptxas", version="13.5.37", identity="a" * 64, origin="GPU_CUDA_PATH")
NVLINK = Tool(name="nvlink", path="/opt/cuda/bin/nvlink", version="13.5.37", identity="b" * 64, origin="GPU_CUDA_PATH")
LOOKED = (
    Look(what="ptxas", where="/opt/cuda/bin", origin="CUDA_PATH", result="no such file"),
    Look(what="nvlink", where="/opt/other", origin="PATH", result="not there"),
)


@pytest.mark.parametrize("wanted", ["auto", "ptxas"])
def test_what_was_found_is_taken(wanted: str) -> None:
    choice = choose(Toolchain(ptxas=PTXAS, nvlink=NVLINK), wanted=wanted, needs=("relocatable", "link"), facts=FACTS)
    assert (choice.provider.name, choice.provider.identity, choice.provider.link_identity) == ("ptxas", "a" * 64, "b" * 64)
    assert choice.log == ("ptxas: taken: ptxas 13.5.37 (/opt/cuda/bin/ptxas), nvlink 13.5.37 (/opt/cuda/bin/nvlink)",)


def test_whole_objects_need_no_linker() -> None:
    assert choose(Toolchain(ptxas=PTXAS), wanted="auto", needs=("compile",), facts=FACTS).provider.link_identity == ""


@pytest.mark.parametrize(
    ("wanted", "what"),
    [
        ("auto", "no assembler fits: this build needs to assemble relocatable objects and link"),
        ("ptxas", "GPU_PROVIDER=ptxas does not fit: this build needs to assemble relocatable objects and link"),
    ],
)
def test_nothing_found_says_where_it_was_looked_for(wanted: str, what: str) -> None:
    with pytest.raises(ToolMissingError) as caught:
        choose(Toolchain(looked=LOOKED), wanted=wanted, needs=("relocatable", "link"), facts=FACTS)
    assert str(caught.value).splitlines() == [
        what,
        "    ptxas: not found; looked for in: /opt/cuda/bin (CUDA_PATH: no such file)",
        "  install scons-gpu[toolkit], or set GPU_CUDA_PATH",
    ]


@pytest.mark.parametrize("wanted", ["auto", "ptxas"])
def test_an_assembler_without_linker_is_not_taken_for_a_link(wanted: str) -> None:
    with pytest.raises(ToolMissingError) as caught:
        choose(Toolchain(ptxas=PTXAS, looked=LOOKED), wanted=wanted, needs=("link",), facts=FACTS)
    assert "/opt/cuda/bin/ptxas has no nvlink beside it" in caught.value.output
    assert "/opt/other (PATH: not there)" in caught.value.output


def test_an_unknown_name_is_wrong_use() -> None:
    with pytest.raises(UsageError) as caught:
        choose(Toolchain(ptxas=PTXAS), wanted="ptax", needs=("compile",), facts=FACTS)
    assert str(caught.value) == "GPU_PROVIDER=ptax: no such provider\n  known: auto, ptxas"
