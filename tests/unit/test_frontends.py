from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import pytest

from scons_gpu.errors import ToolMissingError
from scons_gpu.source.nvcc import command
from scons_gpu.source.nvidia import code_flags, left_out, refusal, spelled, write_ptx
from scons_gpu.source.options import ClangOptions
from scons_gpu.toolchain.arch import parse
from scons_gpu.toolchain.frontends import choose
from scons_gpu.toolchain.tools import Toolchain

if TYPE_CHECKING:
    from pathlib import Path


def chosen(toolchain: Toolchain, wanted: str, facts: Path, *, path: str = os.environ["PATH"]) -> str:
    return choose(toolchain, wanted=wanted, environ={"PATH": path}, facts=facts).name


def test_auto_is_clang_then_nvcc_then_nvrtc(toolchain: Toolchain, tmp_path: Path) -> None:
    without = dataclasses.replace(toolchain, clang=None)
    assert chosen(toolchain, "auto", tmp_path) == "clang"
    assert chosen(dataclasses.replace(toolchain, headers=""), "auto", tmp_path) == "nvcc"
    assert chosen(without, "auto", tmp_path) == "nvcc"
    assert chosen(without, "auto", tmp_path, path=str(tmp_path)) == "nvrtc", "nvcc is of no use without a host compiler"
    assert {name: chosen(toolchain, name, tmp_path) for name in ("clang", "nvcc", "nvrtc")} == {n: n for n in ("clang", "nvcc", "nvrtc")}


def test_only_what_does_not_divide_is_told(toolchain: Toolchain, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"]}
    assert choose(toolchain, wanted="clang", environ=environ, facts=tmp_path).said == ""
    made = choose(toolchain, wanted="nvrtc", environ=environ, facts=tmp_path)
    assert "lowered in one piece by nvrtc" in made.said
    assert not made.divides
    nvcc = choose(toolchain, wanted="nvcc", environ=environ, facts=tmp_path).tool
    assert (len(nvcc.identity), nvcc.version.count(".")) == (64, 2)


def test_a_named_one_that_is_missing_is_an_error(toolchain: Toolchain, tmp_path: Path) -> None:
    nothing = Toolchain(llvm=toolchain.llvm)
    for wanted in ("clang", "nvcc", "nvrtc"):
        with pytest.raises(ToolMissingError, match=f"{wanted} was not found"):
            choose(nothing, wanted=wanted, environ={"PATH": str(tmp_path)}, facts=tmp_path)
    with pytest.raises(ToolMissingError, match="clang was not found"):
        choose(nothing, wanted="auto", environ={"PATH": str(tmp_path)}, facts=tmp_path)


def test_options_are_translated(toolchain: Toolchain, tmp_path: Path) -> None:
    options = ClangOptions(
        cpppath=("inc",), defines=("A=1",), flags=("-std=c++20", "-Wall"), nvcc_flags=("-ccbin", "g++"), fast_math=True, lineinfo=True
    )
    assert code_flags(options) == ["--use_fast_math", "-lineinfo", "-std=c++20", "-DA=1"]
    assert code_flags(ClangOptions(ftz=True, debug=True, lineinfo=True)) == ["-ftz=true", "-G"]
    assert "-Wall left out" in left_out(options)
    assert left_out(ClangOptions(flags=("-std=c++17",))) == ""
    nvcc = choose(toolchain, wanted="nvcc", environ={"PATH": os.environ["PATH"]}, facts=tmp_path).tool
    words = command(nvcc, "/top/k.cu", target=parse("sm_90a")[0], options=options, output="o", depfile="d", top="/top")
    assert words[1:5] == ["-x", "cu", "-ptx", "-arch=compute_90a"]
    assert [*words[-2:]] == ["o", "k.cu"]
    assert spelled(["-I", "a", "-DX", "-D", "Y"]) == ["-Ia", "-DX", "-DY"]


def test_private_names_do_not_tell_where_a_file_was(tmp_path: Path) -> None:
    said = b"call _ZN30_INTERNAL_7c510d11_4_k_cu_host8sthelperEf;\n"
    said += b'.file 1 "/home/me/k.cu"\n.file 2 "/opt/cu13/bin/../include/a.hpp"\n.file 3 "/usr/b.h", 1, 2\n'
    said += b".section .debug_str\n{\n.b8 95,73,78,84,69,82,78,65,76,95,51,101,48,54,56\n.b8 99,55,56,95,52\n}\n"
    write_ptx(said, tmp_path / "k.ptx", top="/home/me", tool="/opt/cu13/bin/nvcc")
    lines = (tmp_path / "k.ptx").read_text().splitlines()
    assert lines[6:8] == [".b8 95,73,78,84,69,82,78,65,76,95,48,48,48,48,48", ".b8 48,48,48,95,52"]
    assert lines[0] == "call _ZN30_INTERNAL_00000000_4_k_cu_host8sthelperEf;"
    assert lines[1:4] == ['.file 1 "k.cu"', '.file 2 "cuda/include/a.hpp"', '.file 3 "/usr/b.h", 1, 2']


def test_what_nvrtc_lacks_is_explained() -> None:
    said = 'k.cu(1): catastrophic error: cannot open source file "cstdio"\n1 catastrophic error'
    error = refusal("nvrtc", said, source="k.cu", target=parse("sm_90")[0])
    assert "cannot open source file" in error.what
    assert "no headers of the host's" in error.hint
