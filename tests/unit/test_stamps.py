"""Sources that are edited while they are compiled."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import pytest

from scons_gpu.errors import SourceError
from scons_gpu.source.clang import compile_cuda
from scons_gpu.source.options import ClangOptions
from scons_gpu.source.stamps import moved, stamps
from scons_gpu.toolchain.arch import parse

if TYPE_CHECKING:
    from pathlib import Path

    from scons_gpu.toolchain.tools import Tool, Toolchain

(SM_90,) = parse("sm_90")
SECOND = 1_000_000_000


def test_a_file_has_moved_where_its_stamp_or_its_time_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("1")
    now = stamps(["a.h", "gone.h"], top=str(tmp_path))
    assert moved(now, {}, begun=time.time_ns() + SECOND) == []
    assert moved(now, {}, begun=time.time_ns() - SECOND) == ["a.h"]
    assert moved(now, now, begun=0) == []
    (tmp_path / "a.h").write_text("22")
    assert moved(stamps(["a.h"], top=str(tmp_path)), now, begun=time.time_ns() + SECOND) == ["a.h"]


@pytest.mark.parametrize("begun_after", [0, SECOND])
def test_whole_seconds_are_taken_for_a_clock_that_knows_no_others(begun_after: int) -> None:
    assert moved({"a.h": (5 * SECOND, 1, 1)}, {}, begun=5 * SECOND + begun_after) == ([] if begun_after else ["a.h"])


def editing(clang: Tool, folder: Path, *, before: str = "", after: str = "") -> Tool:
    """A clang that has `value.h` edited while it runs."""
    script = folder / "clang"
    script.write_text(f'#!/bin/sh\necho . >> {folder}/runs\n{before}\n{clang.path} "$@" || exit 1\n{after}\n')
    script.chmod(0o755)
    return dataclasses.replace(clang, path=str(script))


def compiled(toolchain: Toolchain, folder: Path, *, before: str = "", after: str = "") -> str:
    assert toolchain.clang
    (folder / "k.cu").write_text('#include "value.h"\n__global__ void k(float* data) { *data = VALUE; }\n')
    (folder / "value.h").write_text("#define VALUE 1.0f\n")
    out = folder / "k.ll"
    clang = editing(toolchain.clang, folder, before=before, after=after)
    compile_cuda(clang, "k.cu", target=SM_90, options=ClangOptions(), headers=toolchain.headers, output=out, top=str(folder))
    return out.read_text()


EDIT, TAKE_BACK = "sed -i s/1.0f/2.0f/ value.h", "sed -i s/2.0f/1.0f/ value.h"
ONCE = "[ -e done ] || "
"""In front of a command of the first run."""


def test_r5_a_header_that_is_edited_meanwhile_is_compiled_again(toolchain: Toolchain, tmp_path: Path) -> None:
    assert "float 2.000000e+00" in compiled(toolchain, tmp_path, after=f"{ONCE}{{ {EDIT}; touch done; }}")
    assert (tmp_path / "runs").read_text() == ".\n" * 2


def test_r5_so_is_one_whose_edit_is_taken_back(toolchain: Toolchain, tmp_path: Path) -> None:
    text = compiled(toolchain, tmp_path, before=ONCE + EDIT, after=f"{ONCE}{{ {TAKE_BACK}; touch done; }}")
    assert "float 1.000000e+00" in text


def test_r5_one_that_never_rests_is_an_error_and_leaves_no_file(toolchain: Toolchain, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"value\.h changes while it is compiled"):
        compiled(toolchain, tmp_path, after="echo // >> value.h")
    assert not (tmp_path / "k.ll").exists()
