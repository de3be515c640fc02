"""Canonical text: what must not matter does not, and what is distinct stays distinct."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from scons_gpu.split.canonical import Member, write
from scons_gpu.split.closure import Graph
from scons_gpu.split.parse import parse
from scons_gpu.split.pieces import Tokeniser
from scons_gpu.split.readable import demangle
from scons_gpu.split.reader import read

if TYPE_CHECKING:
    from scons_gpu.split.module import Module

TRIPLE = 'target triple = "nvptx64-nvidia-cuda"\n'


def reading(text: str) -> Module:
    return read(parse(TRIPLE + text, source="k.ll"), source="k.ll")


def written(text: str, kernel: str = "@k") -> str:
    module = reading(text)
    members = [
        Member(symbol, module.functions[symbol].piece, name=symbol)
        for symbol in Graph(module).members([kernel])
        if symbol in module.functions
    ]
    return write(module, members).text


KERNEL = """
define ptx_kernel void @k(ptr %x) #{a} {{
  store i32 1, ptr %x, !tbaa !{m}
  br label %l
l:
  br label %l, !llvm.loop !{loop}
}}
define ptx_kernel void @other(ptr %x) #{b} {{
  store i32 1, ptr %x, !tbaa !{n}
  br label %l
l:
  br label %l, !llvm.loop !{loop2}
}}
attributes #{a} = {{ nounwind }}
attributes #{b} = {{ nounwind willreturn }}
!{m} = !{{!{c}, !{c}, i64 0}}
!{n} = !{{!{c}, !{c}, i64 0, i64 1}}
!{c} = !{{!"int", !{r}}}
!{r} = !{{!"root"}}
!{loop} = distinct !{{!{loop}}}
!{loop2} = distinct !{{!{loop2}}}
"""
NODES = ("m", "n", "c", "r", "loop", "loop2")


@given(st.permutations(range(6)), st.permutations(range(2)))
@settings(max_examples=25, deadline=None)
def test_numbers_of_metadata_and_attributes_do_not_matter(nodes: list[int], groups: list[int]) -> None:
    numbers = dict(zip(NODES, nodes, strict=True)) | dict(zip("ab", groups, strict=True))
    text = written(KERNEL.format(**numbers))
    assert text == written(KERNEL.format(a=0, b=1, m=0, n=1, c=2, r=3, loop=4, loop2=5))
    assert text.count("!") > 5


def test_distinct_nodes_of_equal_content_stay_two() -> None:
    text = written("""
define ptx_kernel void @k(i1 %c) {
  br label %a
a:
  br i1 %c, label %a, label %b, !llvm.loop !0
b:
  br i1 %c, label %b, label %d, !llvm.loop !1
d:
  ret void
}
!0 = distinct !{!0, !2}
!1 = distinct !{!1, !2}
!2 = !{!"llvm.loop.mustprogress"}
""")
    assert "!0 = distinct !{!0, !2}\n!1 = distinct !{!1, !2}\n!2 = " in text
    assert "!llvm.loop !0" in text
    assert "!llvm.loop !1" in text


def test_names_of_private_variables_are_numbers_that_meet_no_other_name() -> None:
    module = reading("""
@.str.7 = private constant [2 x i8] c"a\\00"
@__private.0 = internal addrspace(3) global i32 undef
define ptx_kernel void @k() {
  %v = load i8, ptr @.str.7
  store i32 1, ptr addrspace(3) @__private.0
  ret void
}
""")
    piece = module.tokeniser.piece
    members = [
        Member("@k", module.functions["@k"].piece, name="@k"),
        Member("@.str.7", piece('@.str.7 = private constant [2 x i8] c"a\\00"'), kind="variable"),
        Member("@__private.0", piece("@__private.0 = internal addrspace(3) global i32 undef"), name="@__private.0", kind="variable"),
    ]
    text = write(module, members).text
    assert "load i8, ptr @__private.1," in text
    assert "addrspace(3) @__private.0" in text


def test_metadata_that_names_a_function_brings_it_along() -> None:
    module = reading("""
define internal void @callee() {
  ret void
}
define ptx_kernel void @k(ptr %f) {
  call void %f(), !callees !0
  ret void
}
!0 = !{ptr @callee}
""")
    assert Graph(module).members(["@k"]) == ["@k", "@callee"]


def test_a_flag_that_names_functions_of_others_is_dropped() -> None:
    module = reading("""
define internal void @other() {
  ret void
}
define ptx_kernel void @k() {
  ret void
}
!llvm.module.flags = !{!0}
!0 = !{i32 5, !"CG Profile", !1}
!1 = !{!2}
!2 = !{ptr @k, ptr @other, i64 3}
""")
    assert "CG Profile" not in write(module, [Member("@k", module.functions["@k"].piece, name="@k")]).text


NAMES = st.text(st.characters(codec="ascii", exclude_characters='"\n'), min_size=1, max_size=12)


@given(
    st.lists(
        st.one_of(
            NAMES.map(lambda name: f'@"{name}"'), NAMES.map(lambda name: f'"{name}"'), st.sampled_from(["!7", "#3", "@a.b", " x ", ", "])
        )
    )
)
@settings(max_examples=200, deadline=None)
def test_a_piece_is_its_text(parts: list[str]) -> None:
    text = " ".join(parts)
    piece = Tokeniser({}, {}).piece(text)
    assert piece.text() == text
    assert [ref for ref in piece.refs if ref[0] == "@"] == list(dict.fromkeys(part for part in parts if part[0] == "@"))
    assert re.sub("x", "x", piece.render({ref: ref for ref in piece.refs})) == text


def test_shape_tells_pieces_apart_by_all_but_names() -> None:
    piece = Tokeniser({}, {}).piece
    assert piece("call @a @b @a").shape == piece("call @x @y @x").shape
    assert piece("call @a @b @a").shape != piece("call @a @b @b").shape
    assert piece("call @a").shape != piece("call  @a").shape


def test_names_are_readable() -> None:
    assert demangle("_Z7softmaxILi256EEvPf") == "softmax<256>(float*)"
    assert demangle("_ZN2at6native1kILi4ENS0_3AddIfEESt5arrayIPcLm3EEEEviT0_T1_") == (
        "at::native::k<4, at::native::Add<float>, std::array<char*, 3ul>>(int, at::native::Add<float>, std::array<char*, 3ul>)"
    )
    assert demangle("_Z3fooIZ4mainEUlvE_EvT_") == "foo<main::'lambda'()>(main::'lambda'())"
    assert (demangle("plain"), demangle("_Zbroken"), demangle("void ")) == ("plain", "_Zbroken", "void ")
