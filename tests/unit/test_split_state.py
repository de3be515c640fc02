"""State, tables and shared memory: what units hold, what they leave to others, and which of them are one."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import pytest

from scons_gpu.errors import RefusedError
from scons_gpu.split import split
from scons_gpu.split.uses import only_read
from scons_gpu.toolchain.arch import parse

if TYPE_CHECKING:
    from scons_gpu.split.index import Index, Unit

TRIPLE = 'target triple = "nvptx64-nvidia-cuda"\n'
(SM_90,) = parse("sm_90")


class Split:
    def __init__(self, text: str, form: str = "apart") -> None:
        self.texts: dict[str, str] = {}
        self.index: Index = split(TRIPLE + text, source="k.ll", target=SM_90, form=form, put=self._put)
        for slice_text in self.texts.values():
            with llvm.parse_assembly(slice_text, llvm.create_context()) as module:
                module.verify()

    def _put(self, text: str) -> str:
        name = hashlib.sha256(text.encode()).hexdigest()[:32]
        self.texts[name] = text
        return name

    def unit(self, kernel: str) -> Unit:
        return next(unit for unit in self.index.units if kernel in [found.symbol for found in unit.kernels])

    def text(self, kernel: str) -> str:
        return self.texts[self.unit(kernel).slice]

    @property
    def state(self) -> str:
        return self.texts[self.index.state_slice]

    @property
    def groups(self) -> dict[tuple[str, ...], str]:
        return {tuple(kernel.symbol for kernel in unit.kernels): unit.joined for unit in self.index.units}


def reading(name: str, symbol: str, size: int, *, space: int = 1) -> str:
    return f"""
define ptx_kernel void @{name}(ptr %x, i32 %i) {{
  %p = getelementptr [{size} x i32], ptr addrspace({space}) {symbol}, i32 0, i32 %i
  %v = load i32, ptr addrspace({space}) %p
  store i32 %v, ptr %x
  ret void
}}
"""


STATE = """
@coef = addrspace(4) externally_initialized constant [4 x float] zeroinitializer, align 4
@counter = addrspace(1) externally_initialized global i32 0, align 4
@host_only = addrspace(1) externally_initialized global i32 0, align 4
@memo = internal addrspace(1) global [8 x i32] zeroinitializer, align 4
define internal i32 @bump(i32 %by) {
  %old = atomicrmw add ptr addrspace(1) @counter, i32 %by monotonic
  %p = getelementptr [8 x i32], ptr addrspace(1) @memo, i32 0, i32 %old
  store i32 %by, ptr addrspace(1) %p
  ret i32 %old
}
define ptx_kernel void @first(ptr addrspace(1) %x) {
  %c = load float, ptr addrspace(4) @coef
  %r = call i32 @bump(i32 1)
  ret void
}
define ptx_kernel void @second(ptr addrspace(1) %x) {
  %r = call i32 @bump(i32 2)
  ret void
}
define ptx_kernel void @alone(ptr addrspace(1) %x) {
  ret void
}
"""


def test_g1_g2_state_is_defined_once_and_declared_by_units() -> None:
    found = Split(STATE)
    assert found.groups == {("alone",): "", ("first",): "", ("second",): ""}
    named = {state.name: state for state in found.index.state}
    assert set(named) == {"coef", "counter", "host_only", "memo"}
    memo = named["memo"].symbol
    assert re.fullmatch(r"memo\$[0-9a-f]{16}", memo)
    assert (named["memo"].private, named["memo"].bytes, named["memo"].space) == (True, 32, "global")
    assert (named["coef"].private, named["coef"].bytes, named["coef"].space, named["coef"].symbol) == (False, 16, "constant", "coef")
    assert found.unit("first").state == ("coef", "counter", memo)
    assert f"@{memo} = external addrspace(1) global [8 x i32], align 4\n" in found.text("second")
    assert "@coef = external addrspace(4) externally_initialized constant [4 x float], align 4\n" in found.text("first")
    assert "@host_only = addrspace(1) externally_initialized global i32 0, align 4\n" in found.state
    assert f"@{memo} = addrspace(1) global [8 x i32] zeroinitializer, align 4\n" in found.state


def test_g6_kernels_that_share_state_are_one_unit_of_a_bundle() -> None:
    found = Split(STATE, "closed")
    assert found.groups == {("alone",): "", ("first", "second"): "state"}
    text = found.text("first")
    assert "@memo = internal addrspace(1) global [8 x i32] zeroinitializer" in text
    assert "@counter = addrspace(1) externally_initialized global i32 0" in text
    assert (found.unit("first").state, found.index.state_slice) == ((), "")
    assert found.unit("first").constant_bytes == 16


def test_state_names_depend_on_the_definition_alone() -> None:
    memo = next(state.symbol for state in Split(STATE).index.state if state.private)
    moved = STATE.replace("@counter = ", "@unrelated = internal addrspace(1) global i32 3\n@counter = ").replace("i32 %by", "i32 %with")
    assert memo in [state.symbol for state in Split(moved).index.state]
    edited = STATE.replace("[8 x i32] zeroinitializer", "[8 x i32] [i32 1, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0]")
    assert memo not in [state.symbol for state in Split(edited).index.state]


def test_weak_state_becomes_weak_odr() -> None:
    found = Split(
        "$t = comdat any\n@t = linkonce_odr addrspace(1) global i32 0, comdat, align 4\n"
        "define ptx_kernel void @k() {\n  store i32 1, ptr addrspace(1) @t\n  ret void\n}\n"
    )
    assert "@t = weak_odr addrspace(1) global i32 0, align 4\n" in found.state
    assert found.index.state[0].weak


def test_two_unnamed_variables_of_one_content_keep_two_names() -> None:
    found = Split("""
@0 = internal addrspace(1) global i32 0
@1 = internal addrspace(1) global i32 0
define ptx_kernel void @k() {
  store i32 1, ptr addrspace(1) @0
  store i32 1, ptr addrspace(1) @1
  ret void
}
""")
    first, second = sorted(state.symbol for state in found.index.state)
    assert second == f"{first}$2"
    assert f"@{first} = external" in found.text("k")
    assert f"@{second} = external" in found.text("k")


def test_g4_what_an_initialiser_names_goes_along() -> None:
    found = Split("""
@ops = addrspace(1) global [2 x ptr] [ptr @inc, ptr addrspacecast (ptr addrspace(1) @text to ptr)]
@text = private addrspace(1) constant [3 x i8] c"ab\\00"
define internal i32 @inc(i32 %v) {
  %r = call i32 @add(i32 %v)
  ret i32 %r
}
define internal i32 @add(i32 %v) {
  ret i32 %v
}
define ptx_kernel void @k(ptr %x) {
  %f = load ptr, ptr addrspace(1) @ops
  %v = call i32 %f(i32 1)
  ret void
}
""")
    assert "define internal i32 @add(" in found.state
    assert 'c"ab\\00"' in found.state
    assert "@inc" not in found.text("k")


def test_g5_shared_memory_and_what_is_only_read_are_each_units_own() -> None:
    text = """
@tile = internal addrspace(3) global [256 x float] undef, align 16
@dynamic = external addrspace(3) global [0 x float], align 4
@reduction = internal addrspace(1) global [6 x i32] [i32 1, i32 2, i32 3, i32 4, i32 5, i32 6]
define internal i32 @lookup(i32 %i) {
  %p = getelementptr [6 x i32], ptr addrspacecast (ptr addrspace(1) @reduction to ptr), i32 0, i32 %i
  %v = load i32, ptr %p
  ret i32 %v
}
define ptx_kernel void @a() {
  %v = call i32 @lookup(i32 1)
  store float 1.0, ptr addrspace(3) @tile
  ret void
}
define ptx_kernel void @b() {
  %v = call i32 @lookup(i32 2)
  store float 1.0, ptr addrspace(3) @tile
  store float 1.0, ptr addrspace(3) @dynamic
  ret void
}
"""
    for form in ("apart", "closed"):
        found = Split(text, form)
        assert found.groups == {("a",): "", ("b",): ""}
        assert found.index.state == ()
        assert [(s.symbol, s.bytes, s.align) for s in found.unit("a").shared] == [("tile", 1024, 16)]
        assert [kernel.dynamic_shared for unit in found.index.units for kernel in unit.kernels] == [False, True]
        assert "@dynamic = external addrspace(3) global [0 x float], align 4" in found.text("b")
        assert "@reduction = internal addrspace(1) global" in found.text("a")


# Tables ----------------------------------------------------------------------------------------------------------------------------

BIG = "[" + ", ".join(f"i32 {k}" for k in range(100)) + "]"


def test_g3_a_table_is_an_object_of_its_own() -> None:
    found = Split(
        f"@one = internal addrspace(4) constant [100 x i32] {BIG}, align 4\n@two = internal addrspace(4) constant [100 x i32] {BIG}, align 4\n"
        + reading("a", "@one", 100, space=4)
        + reading("b", "@two", 100, space=4)
    )
    (table,) = found.index.tables
    assert re.fullmatch(r"__table\$[0-9a-f]{16}", table.symbol)
    assert (table.bytes, table.space) == (400, "constant")
    assert found.unit("a").tables == found.unit("b").tables == (table.symbol,)
    assert f"@{table.symbol} = available_externally addrspace(4) constant [100 x i32] [i32 0," in found.text("b")
    assert f"@{table.symbol} = addrspace(4) constant [100 x i32] [i32 0," in found.texts[table.slice]
    assert found.unit("a").constant_bytes == 0


def test_g3_tables_are_copied_into_a_bundles_units() -> None:
    found = Split(f"@one = internal addrspace(4) constant [100 x i32] {BIG}\n" + reading("a", "@one", 100, space=4), "closed")
    assert (found.index.tables, found.unit("a").tables, found.unit("a").constant_bytes) == ((), (), 400)
    assert "@one = internal addrspace(4) constant" in found.text("a")


def test_small_tables_and_those_that_name_something_are_copied() -> None:
    found = Split(
        "@small = internal addrspace(4) constant [4 x i32] [i32 1, i32 2, i32 3, i32 4]\n"
        f"@names = internal addrspace(4) constant [40 x ptr] [{', '.join(['ptr @f'] * 40)}]\n"
        "define internal void @f() {\n  ret void\n}\n" + reading("a", "@small", 4, space=4) + reading("b", "@names", 4, space=4)
    )
    assert found.index.tables == ()
    assert "define internal void @f()" in found.text("b")


def test_a_table_whose_address_counts_keeps_its_name_in_that_unit_alone() -> None:
    text = f"@one = internal addrspace(1) constant [100 x i32] {BIG}\n" + reading("reads", "@one", 100)
    alone = Split(text)
    compared = Split(
        text
        + "define ptx_kernel void @compares(ptr addrspace(1) %x) {\n  %c = icmp eq ptr addrspace(1) %x, @one\n  call void @llvm.assume(i1 %c)\n  ret void\n}\n"
        "declare void @llvm.assume(i1)\n"
    )
    assert compared.unit("reads") == alone.unit("reads")
    assert compared.unit("reads").tables[0].startswith("__table$")
    assert compared.unit("compares").tables[0].startswith("one$")
    assert len(compared.index.tables) == 2


# Uses ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "reads"),
    [
        ("  %v = load i32, ptr @g, align 4", True),
        ("  %v = load i32, ptr getelementptr inbounds (i8, ptr @g, i64 4), align 4", True),
        (
            "  %p = getelementptr i8, ptr @g, i64 %i\n  %q = addrspacecast ptr %p to ptr addrspace(1)\n  %v = load i8, ptr addrspace(1) %q",
            True,
        ),
        ("  %p = getelementptr i8, ptr @g, i64 %i\n  store i8 1, ptr %p", False),
        ("  store ptr @g, ptr %x", False),
        ("  call void @f(ptr @g)", False),
        ("  call void @llvm.memcpy.p0.p0.i64(ptr align 4 %x, ptr align 4 @g, i64 8, i1 false)", True),
        ("  call void @llvm.memcpy.p0.p0.i64(ptr align 4 @g, ptr align 4 %x, i64 8, i1 false)", False),
        ("  call void @llvm.memcpy.p0.p0.i64(ptr getelementptr (i8, ptr @g, i64 4), ptr %x, i64 8, i1 false)", False),
        ("  %p = phi ptr [ @g, %a ], [ %p2, %b ]\n  %p2 = getelementptr i8, ptr %p, i64 1\n  %v = load i8, ptr %p2", True),
        ("  %p = select i1 %c, ptr @g, ptr %x\n  store i8 0, ptr %p", False),
        ("  %a = atomicrmw add ptr @g, i32 1 monotonic, align 4", False),
        ("  %a = ptrtoint ptr @g to i64", False),
        ("  %v = load i32, ptr inttoptr (i64 ptrtoint (ptr @g to i64) to ptr)", False),
        ("  %v = call i32 @h(ptr @g2)", True),
        ("  ret ptr @g", False),
        ("    #dbg_value(ptr @g, !1, !DIExpression(), !2)", True),
    ],
)
def test_only_loads_are_reads(body: str, *, reads: bool) -> None:
    assert only_read(f"define void @k() {{\n{body}\n  ret void\n}}", "@g") is reads


def test_an_address_that_meets_another_counts_where_identity_is_asked() -> None:
    text = "define void @k() {\n  %p = select i1 %c, ptr @g, ptr %x\n  %v = load i8, ptr %p\n  ret void\n}"
    assert only_read(text, "@g")
    assert not only_read(text, "@g", compared=True)


# Joins -----------------------------------------------------------------------------------------------------------------------------

INDIRECT = """
@ops = internal constant [2 x ptr] [ptr @inc, ptr @dec]
define internal i32 @inc(i32 %v) {
  ret i32 %v
}
define internal i32 @dec(i32 %v) {
  ret i32 %v
}
define ptx_kernel void @apply(ptr addrspace(1) %x, i32 %which) {
  %p = getelementptr [2 x ptr], ptr @ops, i32 0, i32 %which
  %f = load ptr, ptr %p
  %r = call i32 %f(i32 1)
  ret void
}
define ptx_kernel void @gives(ptr %x) {
  store ptr @inc, ptr %x
  ret void
}
define ptx_kernel void @neither(ptr %x) {
  %r = call i32 @inc(i32 1)
  ret void
}
"""


def test_s4_indirect_calls_join_in_bundles_only() -> None:
    assert Split(INDIRECT).groups == {("apply",): "", ("gives",): "", ("neither",): ""}
    found = Split(INDIRECT, "closed")
    assert found.groups == {("apply", "gives"): "indirect-call", ("neither",): ""}
    taken_only = INDIRECT.replace("%r = call i32 %f(i32 1)", "%r = call i32 @dec(i32 1)")
    assert Split(taken_only, "closed").groups == {("apply",): "", ("gives",): "", ("neither",): ""}


def test_s4_a_kernel_that_names_a_kernel() -> None:
    text = """
define ptx_kernel void @child(ptr %x) {
  store i32 %y, ptr %x
  ret void
}
define ptx_kernel void @parent(ptr %x) {
  store ptr @child, ptr %x
  ret void
}
""".replace("%y", "1")
    apart = Split(text)
    assert apart.groups == {("child",): "", ("parent",): ""}
    assert "declare ptx_kernel void @child(ptr %x)" in apart.text("parent")
    assert apart.text("parent") == Split(text.replace("i32 1", "i32 2")).text("parent")
    assert Split(text, "closed").groups == {("child", "parent"): "kernel-reference"}


@pytest.mark.parametrize("form", ["apart", "closed"])
def test_file_scope_assembly_joins_what_names_it(form: str) -> None:
    found = Split(
        """
module asm ".visible .global .u32 raw;"
module asm "// and helper"
@raw = external addrspace(1) global i32
define internal void @helper() {
  ret void
}
define ptx_kernel void @a(ptr %x) {
  %v = load i32, ptr addrspace(1) @raw
  ret void
}
define ptx_kernel void @b(ptr %x) {
  call void asm sideeffect "st.global.u32 [raw], 1;", ""()
  ret void
}
define ptx_kernel void @c(ptr %x) {
  ret void
}
""",
        form,
    )
    assert found.groups == {("a", "b"): "asm", ("c",): ""}
    assert 'module asm ".visible .global .u32 raw;"\nmodule asm "// and helper"\n' in found.text("a")
    assert "define void @helper()" in found.text("a")
    assert "module asm" not in found.text("c")
    assert found.unit("a").needs == ()


@pytest.mark.parametrize("form", ["apart", "closed"])
@pytest.mark.parametrize(
    ("assembly", "lost"),
    [(".visible .entry raw() { ret; }", "kernel raw in"), (".visible .global .align 4 .b8 raw[16];", "defines raw for the host")],
)
def test_file_scope_assembly_that_no_unit_would_hold_is_refused(assembly: str, lost: str, form: str) -> None:
    text = f'module asm "// .entry none"\nmodule asm "{assembly}"\ndefine ptx_kernel void @k(ptr %x) {{\n  ret void\n}}\n'
    with pytest.raises(RefusedError, match=lost):
        Split(text, form)


def test_two_equal_tables_of_one_unit_are_one() -> None:
    table = f"internal addrspace(1) constant [100 x i32] [{', '.join(f'i32 {n}' for n in range(100))}]"
    kernel = reading("k", "@one", 100).replace("ret void", "%q = load i32, ptr addrspace(1) @two\n  store i32 %q, ptr %x\n  ret void")
    found = Split(f"@one = {table}\n@two = {table}\n{kernel}")
    (only,) = found.index.tables
    assert found.text("k").count(f"@{only.symbol} = available_externally") == 1
    assert found.unit("k").tables == (only.symbol,)


def test_unnamed_tables_whose_addresses_count_stay_two() -> None:
    table = f"internal addrspace(1) constant [100 x i32] [{', '.join(f'i32 {n}' for n in range(100))}]"
    found = Split(
        f"""
@0 = {table}
@1 = {table}
define ptx_kernel void @k(ptr %x) {{
  %same = icmp eq ptr addrspace(1) %p, @1
  store i1 %same, ptr %x
  ret void
}}
""".replace("(ptr %x)", "(ptr %x, i1 %c)").replace("  %same", "  %p = select i1 %c, ptr addrspace(1) @0, ptr addrspace(1) null\n  %same")
    )
    assert len(found.index.tables) == 2


@pytest.mark.parametrize("form", ["apart", "closed"])
def test_metadata_on_a_variable_brings_along_what_it_names(form: str) -> None:
    """A template's argument in debug information, `!associated`."""
    found = Split(
        """
@y = addrspace(1) global i32 1
@x = addrspace(1) global i32 1, !associated !0
define ptx_kernel void @k(ptr %o) {
  store i32 3, ptr addrspace(1) @x
  ret void
}
!0 = !{!1}
!1 = !{ptr addrspace(1) @y}
""".replace("!associated", "!mine"),
        form,
    )
    assert [state.name for state in found.index.state] == ["x", "y"]


def test_a_variables_attributes_are_not_its_value() -> None:
    found = Split("""
@outer = external addrspace(1) global i32, align 16 #0
@mine = addrspace(1) global i32 7, align 16 #0
define ptx_kernel void @k(ptr %o) {
  store i32 3, ptr addrspace(1) @mine
  store i32 3, ptr addrspace(1) @outer
  ret void
}
attributes #0 = { "bss-section"="here" }
""")
    assert [state.name for state in found.index.state] == ["mine"]
    assert "@mine = external addrspace(1) global i32, align 16\n" in found.text("k")
    assert "@mine = addrspace(1) global i32 7, align 16\n" in found.state


TABLE_OF_FUNCTIONS = """
@buffer = internal addrspace(3) global [64 x i32] undef
@table = internal addrspace(1) global [1 x ptr] [ptr @reads]
declare float @__nv_sinf(float)
define internal i32 @reads(i32 %i) {
  %f = call float @__nv_sinf(float 1.0)
  %p = getelementptr [64 x i32], ptr addrspace(3) @buffer, i32 0, i32 %i
  %v = load i32, ptr addrspace(3) %p
  ret i32 %v
}
define ptx_kernel void @writes(ptr %o, i32 %i) {
  %p = getelementptr [64 x i32], ptr addrspace(3) @buffer, i32 0, i32 %i
  store i32 3, ptr addrspace(3) %p
  %f = load ptr, ptr addrspace(1) @table
  %r = call i32 %f(i32 %i)
  store i32 %r, ptr %o
  ret void
}
define ptx_kernel void @sets(ptr %f) {
  store ptr %f, ptr addrspace(1) @table
  ret void
}
"""


def test_shared_memory_that_would_be_two_is_refused() -> None:
    """The function that state names is a copy, with a buffer of its own; what the kernel wrote would not be there."""
    with pytest.raises(RefusedError, match="writes and a function that it may call through a variable both use shared memory buffer"):
        Split(TABLE_OF_FUNCTIONS)
    assert Split(TABLE_OF_FUNCTIONS, "closed").groups == {("sets", "writes"): "indirect-call, state"}
    assert len(Split(TABLE_OF_FUNCTIONS.replace("store i32 3, ptr addrspace(3) %p", "")
                     .replace("%p = getelementptr [64 x i32], ptr addrspace(3) @buffer, i32 0, i32 %i\n  \n", "")).index.units) == 2  # fmt: skip


def test_state_that_names_functions_says_that_it_needs_libdevice() -> None:
    own = TABLE_OF_FUNCTIONS.replace("store i32 3, ptr addrspace(3) %p", "").replace(
        "%p = getelementptr [64 x i32], ptr addrspace(3) @buffer, i32 0, i32 %i\n  \n", ""
    )
    assert Split(own).index.state_libdevice
    assert not Split(own.replace("call float @__nv_sinf(float 1.0)", "fadd float 1.0, 1.0")).index.state_libdevice
    assert not Split(STATE).index.state_libdevice


def test_weak_variables_that_point_elsewhere_are_not_equal() -> None:
    text = """
@a = addrspace(1) global i32 0
@b = addrspace(1) global i32 0
@p = weak addrspace(1) global ptr addrspace(1) @a
"""
    one, other = (
        next(state for state in Split(each).index.state if state.name == "p") for each in (text, text.replace("(1) @a", "(1) @b"))
    )
    assert one.content != other.content


def test_s12_memory_that_is_defined_elsewhere_is_not_defined_here() -> None:
    found = Split("""
@theirs = available_externally addrspace(1) global i32 5
@known = available_externally addrspace(1) constant i32 6
define ptx_kernel void @k(ptr %o) {
  %v = load i32, ptr addrspace(1) @theirs
  %w = load i32, ptr addrspace(1) @known
  ret void
}
""")
    assert found.index.state == ()
    assert found.unit("k").needs == (("theirs", "k"),)
    assert "@known = internal addrspace(1) constant i32 6" in found.text("k")
