"""nvPTXCompiler itself: what holds for every provider stands in test_providers.py."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from elftools.elf.elffile import ELFFile

from scons_gpu.assemble.nvptxcompiler import NvPtxCompilerProvider
from scons_gpu.assemble.provider import AssembleOptions, Capabilities
from scons_gpu.assemble.ptxas import PtxasProvider
from scons_gpu.errors import PtxSyntaxError, SpillError, ToolError, ToolMissingError, UnsupportedArchError
from scons_gpu.link import elf
from scons_gpu.toolchain.arch import Target, parse

if TYPE_CHECKING:
    from pathlib import Path

    from scons_gpu.toolchain.tools import Toolchain

SM_90 = parse("sm_90")[0]
OPTIONS = AssembleOptions()
HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
SCALE = HEAD + (
    ".visible .entry scale(.param .u64 p) {\n  .reg .b64 %rd<4>;\n  .reg .b32 %r<4>;\n  .reg .f32 %f<4>;\n  ld.param.u64 %rd1, [p];\n"
    "  mov.u32 %r1, %tid.x;\n  mul.wide.u32 %rd2, %r1, 4;\n  add.s64 %rd3, %rd1, %rd2;\n  ld.global.f32 %f1, [%rd3];\n"
    "  div.rn.f32 %f2, %f1, 0f40490FDB;\n  st.global.f32 [%rd3], %f2;\n  ret;\n}\n"
)


@pytest.fixture
def provider(toolchain: Toolchain, tmp_path: Path) -> NvPtxCompilerProvider:
    library = toolchain.library("nvptxcompiler")
    assert library is not None, toolchain.where("nvptxcompiler")
    return NvPtxCompilerProvider(library, facts=tmp_path / "facts")


@pytest.fixture
def ptxas(toolchain: Toolchain, tmp_path: Path) -> PtxasProvider:
    assert toolchain.ptxas is not None
    return PtxasProvider(ptxas=toolchain.ptxas, nvlink=toolchain.nvlink, facts=tmp_path / "facts")


def test_what_it_can_do(provider: NvPtxCompilerProvider, ptxas: PtxasProvider) -> None:
    assert provider.capabilities == Capabilities(
        compile=True, relocatable=True, link=False, clones_functions=ptxas.capabilities.clones_functions
    )
    with pytest.raises(ToolMissingError, match="nvPTXCompiler cannot link"):
        provider.link([], target=SM_90, options=OPTIONS)


@pytest.mark.parametrize("kind", ["whole", "rel"])
def test_it_makes_the_code_and_the_report_of_ptxas(provider: NvPtxCompilerProvider, ptxas: PtxasProvider, kind: str) -> None:
    made = [
        (each.compile_relocatable if kind == "rel" else each.compile)(SCALE, target=SM_90, options=OPTIONS) for each in (provider, ptxas)
    ]
    ours, theirs = (elf.read(each.data, path="object") for each in made)
    assert (made[0].resources, made[0].output) == (made[1].resources, made[1].output) != ((), "")
    assert ours.relocatable == theirs.relocatable == (kind == "rel")
    assert ours.symbols == theirs.symbols
    code = [_section(each.data, ".text.scale") for each in made]
    assert code[0] == code[1]
    assert len(code[0]) > 200


def _section(data: bytes, name: str) -> bytes:
    return bytes(ELFFile(io.BytesIO(data)).get_section_by_name(name).data())


def test_options_reach_it(provider: NvPtxCompilerProvider) -> None:
    def lines(options: AssembleOptions) -> bytes:
        return provider.compile(SCALE, target=SM_90, options=options).data

    assert b"-O 0 " not in lines(OPTIONS)
    assert b"-O 0 " in lines(replace(OPTIONS, opt=0))
    assert b"-maxrregcount 40 " in lines(replace(OPTIONS, maxrregcount=40))
    assert b".debug_line" in lines(replace(OPTIONS, lineinfo=True)) or b"-lineinfo " in lines(replace(OPTIONS, lineinfo=True))


def test_its_words_are_told_apart(provider: NvPtxCompilerProvider) -> None:
    with pytest.raises(PtxSyntaxError, match="nvPTXCompiler does not accept the PTX") as syntax:
        provider.compile(SCALE.replace("mul.wide", "mull.wide"), target=SM_90, options=OPTIONS)
    assert (syntax.value.kernel, "PTX line 10" in syntax.value.output, "ptx input" in syntax.value.output) == ("scale", True, False)
    with pytest.raises(UnsupportedArchError):
        provider.compile(SCALE, target=Target("sm_999", real=True), options=OPTIONS)
    with pytest.raises(ToolError, match="exit code") as flag:
        provider.compile(SCALE, target=SM_90, options=replace(OPTIONS, flags=("--bogus",)))
    assert "Unknown option '-bogus'" in flag.value.output


def test_a_spill_fails_where_that_is_asked(provider: NvPtxCompilerProvider) -> None:
    loads = "".join(f"  ld.global.f32 %f{n}, [%rd1+{4 * n}];\n" for n in range(200))
    stores = "".join(f"  st.global.f32 [%rd1+{4 * n}], %f{199 - n};\n" for n in range(200))
    text = (
        HEAD
        + f".visible .entry many(.param .u64 p) {{\n  .reg .b64 %rd<2>;\n  .reg .f32 %f<200>;\n  ld.param.u64 %rd1, [p];\n{loads}  bar.sync 0;\n{stores}  ret;\n}}\n"
    )
    few = replace(OPTIONS, maxrregcount=32)
    assert (provider.compile(text, target=SM_90, options=few).resources[0].spill_stores or 0) > 0
    with pytest.raises(SpillError, match="registers spill to local memory"):
        provider.compile(text, target=SM_90, options=replace(few, fail_on_spill=True))


def test_l11_a_hundred_calls_at_once_make_equal_bytes(provider: NvPtxCompilerProvider) -> None:
    with ThreadPoolExecutor(16) as threads:
        made = list(threads.map(lambda _: provider.compile_relocatable(SCALE, target=SM_90, options=OPTIONS), range(100)))
    assert len({each.data for each in made}) == 1


def test_a_library_that_does_not_load_is_told(tmp_path: Path, toolchain: Toolchain) -> None:
    library = toolchain.library("nvptxcompiler")
    assert library is not None
    (tmp_path / "broken.so").write_bytes(b"\x7fELF broken")
    broken = NvPtxCompilerProvider(replace(library, path=str(tmp_path / "broken.so")), facts=tmp_path / "facts")
    with pytest.raises(ToolMissingError, match=r"broken\.so does not load"):
        broken.compile(SCALE, target=SM_90, options=OPTIONS)
