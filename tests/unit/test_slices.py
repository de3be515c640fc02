from __future__ import annotations

import pytest

from scons_gpu.inspect.slices import Difference, differences

IR = """\
target datalayout = "e"
target triple = "nvptx64-nvidia-cuda"

%t.16e4bbbc7b5d1e1d = type { float, i32 }

@__private.0 = internal constant [2 x float] [float 1.0, float 2.0]
@lut.0123456789abcdef = available_externally constant [2 x i32] [i32 1, i32 2]
@counter = external global i32, align 4

declare i32 @llvm.nvvm.read.ptx.sreg.tid.x() #0

define ptx_kernel void @_Z1kPf(ptr addrspace(1) %data, ptr byval(%t.16e4bbbc7b5d1e1d) %ps) {
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %n = call float @helper(float 1.0, i32 %i), !range !0
  %p = load i32, ptr @lut.0123456789abcdef
  ret void
}

define internal float @helper(float %x, i32 %i) #1 {
  %p = getelementptr inbounds [2 x float], ptr @__private.0, i32 0, i32 %i
  %y = fadd float %x, 1.0
  ret float %y
}

attributes #0 = { nounwind }
attributes #1 = { noinline }

!0 = !{i32 0, i32 1024}
"""
PTX = """\
.version 8.3
.target sm_90
.address_size 64

.const .align 4 .b8 table[8] = {1, 0, 0, 0, 2, 0, 0, 0};

.func (.param .b32 r) helper(.param .b32 x)
{
	add.f32 %f1, %f2, %f3;
	ret;
}

.visible .entry k(.param .u64 p)
{
	ret;
}
"""


def told(then: str, now: str) -> list[tuple[str, str, str]]:
    return [(each.what, each.name, each.change) for each in differences(then, now)]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("fadd float %x", "fsub float %x", ("function", "helper", "changed")),
        ("float 1.0, i32 %i)", "float 2.0, i32 %i)", ("kernel", "k(float*)", "changed")),
        ("[float 1.0, float 2.0]", "[float 1.0, float 3.0]", ("constant", "(private)", "changed")),
        ("noinline", "noinline nounwind", ("function", "helper", "changed")),
        ("i32 1024}", "i32 512}", ("kernel", "k(float*)", "changed")),
        ("global i32, align 4", "global i32, align 8", ("variable", "counter", "changed")),
        ('triple = "nvptx64-nvidia-cuda"', 'triple = "nvptx64"', ("target", "target triple =", "changed")),
    ],
)
def test_one_thing_is_told_as_that_thing(old: str, new: str, what: tuple[str, str, str]) -> None:
    assert told(IR, IR.replace(old, new)) == [what]
    assert told(IR.replace(old, new), IR) == [what]


def test_equal_texts_differ_in_nothing() -> None:
    assert told(IR, IR) == []
    assert told(PTX, PTX) == []


def test_what_is_named_by_content_is_not_told_of_who_names_it() -> None:
    struct = IR.replace("16e4bbbc7b5d1e1d", "26e4bbbc7b5d1e1d").replace("{ float, i32 }", "{ float, i64 }")
    assert differences(IR, struct) == (Difference("type", "struct", "changed", "{ float, i32 }", "{ float, i64 }"),)
    table = IR.replace("0123456789abcdef", "fedcba9876543210").replace("[i32 1, i32 2]", "[i32 1, i32 3]")
    assert told(IR, table) == [("constant", "lut", "changed")]


def test_numbers_that_moved_on_are_not_told() -> None:
    shifted = IR.replace("@__private.0", "@__private.1").replace(
        "@__private.1 =", "@__private.0 = internal constant i32 5\n@__private.1 =", 1
    )
    assert told(IR, shifted) == [("constant", "(private)", "added")]
    groups = IR.replace("#1", "#2").replace("#0", "#1").replace("attributes #1", "attributes #0 = { cold }\nattributes #1", 1)
    assert told(IR, groups) == []


def test_functions_come_and_go() -> None:
    more = IR.replace("attributes #0", "define internal void @more() {\n  ret void\n}\n\nattributes #0", 1)
    assert told(IR, more) == [("function", "more", "added")]
    assert told(more, IR) == [("function", "more", "removed")]


def test_a_long_line_is_shown_where_it_differs() -> None:
    numbers = ", ".join(f"i32 {number}" for number in range(80))
    then = f"@__private.0 = internal constant [80 x i32] [{numbers}]\n"
    [difference] = differences(then, then.replace("i32 70", "i32 71071"))
    assert "i32 71071" in difference.now
    assert "i32 71071" not in difference.then
    assert max(len(difference.then), len(difference.now)) <= 100


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("add.f32", "sub.f32", ("function", "helper", "changed")),
        (".entry k(.param .u64 p)\n{\n", ".entry k(.param .u64 p)\n{\n\tbar.sync 0;\n", ("kernel", "k", "changed")),
        ("{1, 0", "{3, 0", ("constant", "table", "changed")),
        (".version 8.3", ".version 8.4", ("target", ".version", "changed")),
    ],
)
def test_ptx_is_read_too(old: str, new: str, what: tuple[str, str, str]) -> None:
    assert told(PTX, PTX.replace(old, new)) == [what]
