"""The reader, on LLVM's printed text: every kind of top-level line, and nothing taken from where it is not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import pytest

from scons_gpu.errors import SourceError
from scons_gpu.split.parse import LAYOUT, Printed, parse
from scons_gpu.split.reader import read

if TYPE_CHECKING:
    from scons_gpu.split.module import Module

TRIPLE = 'target triple = "nvptx64-nvidia-cuda"\n'


def reading(text: str) -> Module:
    return read(parse(TRIPLE + text, source="k.ll"), source="k.ll")


@pytest.mark.parametrize(
    "kind",
    [
        "i1",
        "i8",
        "i24",
        "i48",
        "i64",
        "i128",
        "i256",
        "half",
        "bfloat",
        "float",
        "double",
        "ptr",
        "ptr addrspace(3)",
        "ptr addrspace(6)",
        "[7 x i24]",
        "<2 x half>",
        "<3 x i8>",
        "<3 x float>",
        "<4 x double>",
        "{ i8, double, i8 }",
        "<{ i8, double, i8 }>",
        "[3 x { i8, [2 x <{ i8, i32 }>] }]",
        "%struct.a",
        '[2 x %"b ]} c"]',
        "[0 x i32]",
        "{}",
    ],
)
def test_a_variables_type_initialiser_and_size(kind: str) -> None:
    types = '%struct.a = type { i8, %"b ]} c" }\n%"b ]} c" = type <{ i16, ptr }>\n'
    module = reading(
        types + f'@v = internal addrspace(1) global {kind} zeroinitializer, section "a, b", align 16\n@u = external global {kind}\n'
    )
    found = module.variables["@v"]
    text = found.type
    assert (re.sub(r"\s", "", text), found.section, found.align) == (re.sub(r"\s", "", kind), ', section "a, b"', ", align 16")
    assert found.initialiser
    assert (module.variables["@u"].declared, module.variables["@u"].type) == (True, text)
    with llvm.parse_assembly(TRIPLE + types + f"@v = global {kind} zeroinitializer\n", llvm.create_context()) as again:
        value = again.get_global_variable("v").global_value_type
        data = llvm.create_target_data(LAYOUT)
        assert (found.bytes, found.natural) == (data.get_abi_size(value), data.get_abi_alignment(value))


def test_sizes_belong_to_their_variables() -> None:
    module = reading(
        "@a = global i8 0\n@llvm.used = appending global [1 x ptr] [ptr @a]\n@b = global i64 0\n@c = alias i8, ptr @a\n@d = global i16 0\n"
    )
    assert {name: found.bytes for name, found in module.variables.items()} == {"@a": 1, "@b": 8, "@d": 2}
    assert module.used == {"@llvm.used": ("ptr @a",)}


def test_linkage_space_and_properties() -> None:
    module = reading("""
$w = comdat any
$"x y" = comdat any
@w = weak_odr dso_local local_unnamed_addr addrspace(4) externally_initialized constant i32 5, comdat, align 4, !my !0
@"x y" = linkonce_odr hidden constant [2 x i8] c"\\22,", comdat
@z = common global i32 0
!0 = !{!"text, align 2"}
""")
    w = module.variables["@w"]
    assert (w.linkage, w.unnamed, w.space, w.constant, w.initialised_outside) == ("weak_odr", "local_unnamed_addr ", 4, True, True)
    assert (w.initialiser, w.align, w.attachments) == ("5", ", align 4", ", !my !0")
    assert (module.variables['@"x y"'].initialiser, module.variables['@"x y"'].weak) == ('c"\\22,"', True)
    assert module.variables["@z"].weak


def test_function_heads_lose_what_internal_functions_do_not_have() -> None:
    module = reading("""
$f = comdat any
$"g h" = comdat any
define weak_odr hidden noundef i32 @f(ptr byval({ i32 }) %comdat) unnamed_addr section " comdat " comdat align 8 !my !0 {
  ret i32 0
}
define linkonce_odr protected void @g() comdat($"g h") {
  ret void
}
define available_externally void @h() {
  ret void
}
!0 = !{}
""")
    heads = {name: found.piece.text().split("\n")[0] for name, found in module.functions.items()}
    assert heads == {
        "@f": 'define internal noundef i32 @f(ptr byval({ i32 }) %comdat) unnamed_addr section " comdat " align 8 !my !0 {',
        "@g": "define internal void @g() {",
        "@h": "define internal void @h() {",
    }
    assert module.functions["@f"].weak


def test_types_are_called_by_content_and_opaque_ones_by_name() -> None:
    first = reading(
        "%a = type { %b, i32 }\n%b = type { float }\n%o = type opaque\n@v = global %a zeroinitializer\n@w = external global %o\n"
    )
    second = reading(
        "%z = type { i8 }\n%y = type { float }\n%x = type { %y, i32 }\n@u = global %z zeroinitializer\n@v = global %x zeroinitializer\n"
    )
    assert set(first.types) & set(second.types) >= {name for name, body in first.types.items() if body != "opaque"}
    assert first.types["%o"] == "opaque"
    edited = reading("%a = type { %b, i32 }\n%b = type { double }\n@v = global %a zeroinitializer\n")
    assert set(edited.types).isdisjoint(first.types)


NUMBERED = """
%0 = type { i32, float }
%T = type { %0 }
define internal i32 @other(%0 %0, i32 %1) {
  %3 = extractvalue %0 %0, 0
  br label %4
4:
  %5 = phi i32 [ %3, %2 ], [ %6, %4 ]
  %6 = add i32 %5, %1
  %7 = icmp eq i32 %6, 9
  br i1 %7, label %8, label %4
8:
  ret i32 %6
}
define internal void @T(ptr %T) {
entry:
  %U = getelementptr %T, ptr %T, i32 0, i32 0, i32 1
  br label %"0"
"0":
  ret void
}
"""


def test_local_values_that_share_a_types_name() -> None:
    """`%0` is a type and a value, by place alone: told apart by LLVM, and called as before afterwards."""
    module = reading(NUMBERED)
    plain = reading(NUMBERED.replace("%0 = type", "%Z = type").replace("%T = type { %0 }", "%Y = type { %Z }").replace("(%0 %0", "(%Z %0")
                    .replace("extractvalue %0", "extractvalue %Z").replace("getelementptr %T", "getelementptr %Y"))  # fmt: skip
    for name in ("@other", "@T"):
        text = module.functions[name].piece.text()
        assert "__slot" not in text
        assert "__local" not in text
        assert text == plain.functions[name].piece.text()


def test_names_like_those_that_the_reader_gives_stay() -> None:
    text = """
@text = private constant [20 x i8] c"%__local.x __slot.5\\00"
define void @f(i32 %__local.x) {
  %x = add i32 %__local.x, 1
  ret void
}
"""
    module = reading(text)
    assert "%x = add i32 %__local.x, 1" in module.functions["@f"].piece.text()
    assert module.variables["@text"].initialiser == 'c"%__local.x __slot.5\\00"'
    with pytest.raises(SourceError, match="__local"):
        reading("%x = type { i32 }\n@s = global %x zeroinitializer" + text)


def test_source_places_and_comments_are_dropped() -> None:
    module = reading("""
define void @k(i1 %c) {
  call void asm sideeffect "; not a comment, !srcloc !9", "~{memory}"(), !srcloc !0 ; a comment @nobody
  br i1 %c, label %a, label %b
a:
  br label %b
b:
  ret void
}
!0 = !{i64 77}
""")
    text = module.functions["@k"].piece.text()
    assert 'asm sideeffect "; not a comment, !srcloc !9", "~{memory}"()\n' in text
    assert "preds" not in text
    assert module.functions["@k"].piece.names() == ("@k",)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("define void @k() {\n  ret void\n", 1),
        ("\n\nnonsense\n", 3),
        ("@v is nothing\n", 1),
        ("define void nothing {\n  ret void\n}\n", 1),
        ("!what\n", 1),
        ("declare\n", 1),
    ],
)
def test_text_that_llvm_would_not_print_is_an_error_with_its_line(text: str, line: int) -> None:
    with pytest.raises(SourceError, match=f"line {line} of LLVM's own text"):
        read(Printed(text=text, layout=LAYOUT, triple="nvptx64-nvidia-cuda", sizes=()), source="k.ll")
