"""What a unit only sees: declared in its PTX, whatever the optimiser prints."""

from __future__ import annotations

import pytest

from scons_gpu.lower.declared import declared
from scons_gpu.lower.llvm import lower
from scons_gpu.lower.options import LowerOptions
from scons_gpu.toolchain.arch import Target

WEAK = ".weak .const .align 4 .b8 t[4] = {1, 2, 3, 4};\n"


@pytest.mark.parametrize(
    ("text", "seen", "expected"),
    [
        (WEAK + "mov.b64 %rd1, t;\n", {"t"}, ".extern .const .align 4 .b8 t[4];\nmov.b64 %rd1, t;\n"),
        (WEAK + "mov.b64 %rd1, tt;\n", {"t"}, "mov.b64 %rd1, tt;\n"),
        (WEAK, set(), WEAK),
        (WEAK + "mov.b64 %rd1, t;\n", {"u"}, WEAK + "mov.b64 %rd1, t;\n"),
        (".weak .global .align 8 .u64 w = generic(t);\nld [w];\n", {"w"}, ".extern .global .align 8 .u64 w;\nld [w];\n"),
        (
            ".weak .global .attribute(.managed) .align 4 .u32 m;\nld [m];\n",
            {"m"},
            ".extern .global .attribute(.managed) .align 4 .u32 m;\nld [m];\n",
        ),
        (".weak .func f()\n{\nret;\n}\n", {"f"}, ".weak .func f()\n{\nret;\n}\n"),
        (".weak .global .align 4 .u32 $m$1;\nld [$m$1];\n", {"$m$1"}, ".extern .global .align 4 .u32 $m$1;\nld [$m$1];\n"),
    ],
)
def test_weak_definitions_become_declarations(text: str, seen: set[str], expected: str) -> None:
    assert declared(text, seen) == expected


SEEN = """target triple = "nvptx64-nvidia-cuda"
@state = available_externally addrspace(1) global i32 0
@table = available_externally addrspace(4) constant [4 x i32] [i32 5, i32 6, i32 7, i32 8]
@unused = available_externally addrspace(4) constant [4 x i32] zeroinitializer
define ptx_kernel void @k(ptr addrspace(1) %p, i64 %i) {
  %s = load i32, ptr addrspace(1) @state
  %tp = getelementptr i32, ptr addrspace(4) @table, i64 %i
  %t = load i32, ptr addrspace(4) %tp
  %b = add i32 %s, %t
  store i32 %b, ptr addrspace(1) %p
  ret void
}
"""


@pytest.mark.parametrize("level", [0, 1, 3])
def test_g1_llvm_declares_at_every_level(level: int) -> None:
    text = lower(SEEN, target=Target("sm_90", real=True), options=LowerOptions(ptx=78, opt=level)).text
    found = sorted(line for line in text.splitlines() if line.startswith(".") and ("state" in line or "table" in line or "unused" in line))
    assert found == [".extern .const .align 4 .b8 table[16];", ".extern .global .align 4 .u32 state;"]
