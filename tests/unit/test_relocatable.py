"""What clang's flag for relocatable device code changes in IR, and what of it is taken back."""

from __future__ import annotations

import pytest

from scons_gpu.source.relocatable import flags, plain
from scons_gpu.split.readable import demangle

KEPT = b"@__clang_gpu_used_external = internal global [1 x ptr] [ptr @k]\n"
USED = b'@llvm.compiler.used = appending global [%d x ptr] [%b], section "llvm.metadata"\n'


def test_the_identity_is_all_that_tells_a_source_apart() -> None:
    assert flags("0a1b") == ("-fgpu-rdc", "-cuid=0a1b", "-D__CUDACC_RDC__")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"define weak_odr dso_local ptx_kernel void @k() {\n}\n", b"define dso_local ptx_kernel void @k() {\n}\n"),
        (b"define weak_odr dso_local void @f() {\n}\n", b"define weak_odr dso_local void @f() {\n}\n"),
        (KEPT + USED % (2, b"ptr @a, ptr @__clang_gpu_used_external"), USED % (1, b"ptr @a")),
        (KEPT + USED % (1, b"ptr @__clang_gpu_used_external"), b""),
        (USED % (1, b"ptr @a"), USED % (1, b"ptr @a")),
    ],
)
def test_linkage_and_lists_are_those_of_other_sources(before: bytes, after: bytes) -> None:
    assert plain(before) == after


def test_a_private_variable_has_one_name() -> None:
    """Clang calls it by the old one where a kernel stands before the host code that names it."""
    found = plain(
        b"@_ZL3hid = external dso_local addrspace(1) global i32, align 4\n"
        b"@_ZL3hid2 = external dso_local addrspace(1) global i32, align 4\n"
        b"@_ZL3hid__static__0a1b = dso_local addrspace(1) global i32 0, align 4\n"
        b"  load i32, ptr addrspace(1) @_ZL3hid, align 4\n  load i32, ptr addrspace(1) @_ZL3hid2\n"
    )
    assert found == (
        b"@_ZL3hid2 = external dso_local addrspace(1) global i32, align 4\n"
        b"@_ZL3hid__static__0a1b = dso_local addrspace(1) global i32 0, align 4\n"
        b"  load i32, ptr addrspace(1) @_ZL3hid__static__0a1b, align 4\n  load i32, ptr addrspace(1) @_ZL3hid2\n"
    )


def test_private_names_read_as_in_their_source() -> None:
    assert demangle("_ZL3ownPf__intern__8159614990400c69") == "own(float*)"
    assert demangle("_ZN12_GLOBAL__N_12anE__static__8159614990400c69") == "(anonymous namespace)::an"
