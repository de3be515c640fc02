from __future__ import annotations

from pathlib import Path

import pytest

from scons_gpu.scons.inputs import Roots


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/home/me/p/k/a.cu", "k/a.cu"),
        ("/home/me/p/.gpu-store/tools/headers-1/include/cuda.h", "cuda/include/cuda.h"),
        ("/home/me/venv/lib/clang/22/include/limits.h", "clang/lib/clang/22/include/limits.h"),
        ("/usr/include/x86_64-linux-gnu/bits/types.h", "system/x86_64-linux-gnu/bits/types.h"),
        ("/home/me/other/include/mine.h", "system/mine.h"),
        ("/home/me/other/mine.h", "system/mine.h"),
    ],
)
def test_a_name_tells_no_place(path: str, name: str) -> None:
    roots = Roots(Path("/home/me/p"), Path("/home/me/venv"), Path("/home/me/p/.gpu-store/tools/headers-1"))
    assert roots.name(Path(path)) == name


def test_an_environment_may_lie_in_the_tree_and_a_tree_in_its_environment() -> None:
    inside, around = Roots(Path("/p"), Path("/p/.venv")), Roots(Path("/venv/src/p"), Path("/venv"))
    assert inside.name(Path("/p/.venv/lib/clang/22/include/limits.h")) == "clang/lib/clang/22/include/limits.h"
    assert inside.name(Path("/p/k.cu")) == around.name(Path("/venv/src/p/k.cu")) == "k.cu"
    assert around.name(Path("/venv/lib/clang/22/include/limits.h")) == "clang/lib/clang/22/include/limits.h"


def test_headers_of_nvcc_are_cudas() -> None:
    assert Roots(Path("/p"), Path("/x/cu13"), called="cuda/").name(Path("/x/cu13/include/crt/a.h")) == "cuda/include/crt/a.h"


def test_a_clang_of_the_system_stands_for_no_folder() -> None:
    roots = Roots(Path("/p"), home=None)
    assert roots.name(Path("/usr/lib/llvm-22/lib/clang/22/include/limits.h")) == "system/limits.h"
