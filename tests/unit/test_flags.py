from __future__ import annotations

import pytest

from scons_gpu.host.flags import arch_list, position_independent, reading
from scons_gpu.toolchain.arch import parse


def test_what_decides_how_a_source_is_read_is_for_both_halves() -> None:
    flags = [
        "-O2",
        "-std=c++20",
        "-g",
        "-I",
        "here",
        "-Ithere",
        "-isystem",
        "system",
        "-DA=1",
        "-UB",
        "-Wall",
        "-include",
        "all.h",
        "-march=native",
    ]
    assert reading(flags) == ("-std=c++20", "-I", "here", "-Ithere", "-isystem", "system", "-DA=1", "-UB", "-include", "all.h")


@pytest.mark.parametrize("flag", ["-fno-exceptions", "-funsigned-char", "-nostdinc++", "--sysroot=/x"])
def test_flags_that_stand_alone(flag: str) -> None:
    assert reading(["-O1", flag, "-ffast-math"]) == (flag,)


def test_a_flag_that_lacks_its_value_is_left_to_clang_to_refuse() -> None:
    assert reading(["-I"]) == ("-I", "")


def test_who_asked_for_position_independent_code() -> None:
    assert position_independent(["-O2", "-fPIC"])
    assert not position_independent(["-fPIE"])


def test_the_list_of_architectures_is_sorted_and_names_each_once() -> None:
    assert arch_list(parse(["sm_100f", "sm_90a", "compute_90", "sm_80"])) == ("-U__CUDA_ARCH_LIST__", "-D__CUDA_ARCH_LIST__=800,900,1000")
