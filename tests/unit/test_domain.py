"""One link domain: several sources split, planned and lowered as a module, and what their kernels come to."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cached_property

import pytest

from scons_gpu.errors import GpuError, LinkError, MissingSymbolError, RefusedError
from scons_gpu.lower.joining import Group
from scons_gpu.lower.llvm import lower
from scons_gpu.lower.options import LowerOptions
from scons_gpu.plan import Part, Plan, from_text, plan, refusal, to_text
from scons_gpu.split import index as indexes
from scons_gpu.split import split
from scons_gpu.split.ptx import split_ptx
from scons_gpu.toolchain.arch import parse

(SM_90,) = parse("sm_90")
HEAD = 'target triple = "nvptx64-nvidia-cuda"\n'


def key(slice_name: str, *, libdevice: bool, renames: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return (("libdevice", str(libdevice)), ("renames", repr(renames)), ("slice", slice_name))


@dataclass
class Sources:
    """A module's sources by name, as one plan."""

    sources: dict[str, str]
    link: str = "image"
    texts: dict[str, str] = field(default_factory=dict)

    def put(self, text: str) -> str:
        name = hashlib.sha256(text.encode()).hexdigest()[:32]
        self.texts[name] = text
        return name

    @cached_property
    def indexes(self) -> list[indexes.Index]:
        form = "closed" if self.link == "bundle" else "apart"
        several = len(self.sources) > 1
        found = [
            split(HEAD + text, source=f"{name}.ll", target=SM_90, form=form, put=self.put, exports=several)
            for name, text in self.sources.items()
        ]
        assert [indexes.from_text(indexes.to_text(each)) for each in found] == found
        return found

    @cached_property
    def plan(self) -> Plan:
        made = plan(self.indexes, module="m", arch="sm_90", link=self.link, key=key)
        assert from_text(to_text(made)) == made
        return made

    def part(self, kernel: str) -> Part:
        return next(part for part in self.plan.units if kernel in [each.symbol for each in part.kernels])

    def state(self, source: str) -> Part:
        return next(part for part in self.plan.parts if part.role == "state" and part.source == source)

    def error(self, kernel: str) -> GpuError:
        error = refusal(self.part(kernel))
        assert error is not None
        return error

    def ptx(self, part: Part | str, **options: bool) -> str:
        part = self.part(part) if isinstance(part, str) else part
        assert not part.refused, part.refused
        groups = [
            Group(tuple(map(self.texts.__getitem__, each.slices)), dict(each.renames), each.own, each.dropped, each.shows, each.source)
            for each in part.joins
        ]
        wanted = LowerOptions(ptx=78, **options)  # type: ignore[arg-type]
        return lower(self.texts[part.slice], target=SM_90, options=wanted, renames=dict(part.renames), joins=groups).text

    def stores(self, kernel: str) -> list[int]:
        """The numbers that a kernel, wholly folded, stores."""
        text = self.ptx(kernel)
        assert "call" not in text, text
        return [int(number) for number in re.findall(r"st\.global\.b32 \t?\[\S+\], (-?\d+);", text)]


def domain(link: str = "image", **sources: str) -> Sources:
    return Sources(sources, link)


def kernel(name: str, *calls: str, linkage: str = "") -> str:
    """A kernel that stores what each of these values is: `call i32 @f(i32 3)`."""
    lines = [
        f"  %v{number} = {call}\n  %p{number} = getelementptr i32, ptr addrspace(1) %p, i32 {number}\n"
        f"  store i32 %v{number}, ptr addrspace(1) %p{number}\n"
        for number, call in enumerate(calls)
    ]
    return f"define {linkage} ptx_kernel void @{name}(ptr addrspace(1) %p) {{\n{''.join(lines)}  ret void\n}}\n"


def function(name: str, value: str, linkage: str = "", *, attributes: str = "") -> str:
    """An integer's function; `%x + 3`, or one instruction's text."""
    body = f"add i32 %x, {value}" if value.lstrip("-").isdigit() else value
    return f"define {linkage} i32 @{name}(i32 %x) {attributes} {{\n  %r = {body}\n  ret i32 %r\n}}\n"


F = "declare i32 @f(i32)\n"
USES_F = F + kernel("k", "call i32 @f(i32 3)")


def test_s12_a_function_of_another_source_is_compiled_into_its_caller() -> None:
    found = domain(a=USES_F, b=function("f", "100"))
    assert found.stores("k") == [103]
    assert [(joined.source, joined.own) for joined in found.part("k").joins] == [("b.ll", False)]
    together = domain(a=kernel("k", "call i32 @f(i32 3)") + function("f", "100"))
    assert found.ptx("k") == together.ptx("k")


def test_s12_what_the_function_needs_of_a_third_source_comes_along() -> None:
    found = domain(
        a=USES_F,
        b="declare i32 @g(i32)\n" + function("f", "call i32 @g(i32 %x)"),
        c="declare i32 @h(i32)\n" + function("g", "call i32 @h(i32 7)"),
        d=function("h", "1000") + kernel("own", "call i32 @h(i32 0)"),
    )
    assert found.stores("k") == [1007]
    assert [joined.source for joined in sorted(found.part("k").joins, key=lambda each: each.source)] == ["b.ll", "c.ll", "d.ll"]
    assert not found.part("own").joins


RECURSIVE = """
declare i32 @{other}(i32)
define i32 @{name}(i32 %x) {{
  %done = icmp eq i32 %x, 0
  br i1 %done, label %end, label %more
more:
  %less = sub i32 %x, 1
  %r = call i32 @{other}(i32 %less)
  %s = mul i32 %r, {factor}
  ret i32 %s
end:
  ret i32 {factor}
}}
"""


def test_no_function_s_text_is_made_twice_for_other_sources() -> None:
    private = function("inner", "1", "internal")
    found = domain(a=USES_F, b=private + function("g", "call i32 @inner(i32 %x)") + function("f", "call i32 @g(i32 %x)"))
    offers = {export.symbol: found.texts[export.offer.slice] for export in found.indexes[1].exports if export.offer}
    assert "define internal i32 @inner" in offers["g"]
    assert "inner" not in offers["f"]
    assert "declare i32 @g(i32)" in offers["f"]
    assert found.stores("k") == [4]


def test_s4_recursion_across_sources() -> None:
    found = domain(
        a=RECURSIVE.format(name="f", other="g", factor=3) + kernel("k", "call i32 @f(i32 4)"),
        b=RECURSIVE.format(name="g", other="f", factor=5) + kernel("l", "call i32 @g(i32 0)"),
    )
    # The kernel's own source comes along too: what the other source calls back is the very function of the kernel's.
    assert [(joined.source, joined.own) for joined in found.part("k").joins] == [("a.ll", True), ("b.ll", False)]
    text = found.ptx("k")
    assert len(re.findall(r"^\.(?:visible |weak )?func", text, re.MULTILINE)) <= 4, text  # a prototype and a body each
    assert not re.search(r"^\.(?:visible|weak) \.?func", text, re.MULTILINE)


def test_d5_the_digest_covers_what_joins_and_nothing_else() -> None:
    one = domain(a=USES_F, b=function("f", "100"))
    edited = domain(a=USES_F, b=function("f", "101"))
    more = domain(a=USES_F + kernel("l"), b=function("e", "5") + function("f", "100") + kernel("m"), c=function("g", "3"))
    other_names = domain(zz=USES_F, aa=function("f", "100"))
    assert one.part("k").digest != edited.part("k").digest
    assert dict(one.part("k").key)["joins"] != dict(edited.part("k").key)["joins"]
    assert one.part("k").key == more.part("k").key == other_names.part("k").key
    assert one.ptx("k") == more.ptx("k") == other_names.ptx("k")
    # A unit that nothing joins is the same node whether or not its module has other sources.
    alone = kernel("k", "call i32 @f(i32 3)") + function("f", "100")
    assert domain(a=alone).part("k").key == domain(a=alone, b=USES_F.replace("@k", "@l")).part("k").key


def test_m7_the_order_of_sources_does_not_show() -> None:
    texts = {
        "a": "declare i32 @f(i32)\ndeclare i32 @g(i32)\n" + kernel("k", "call i32 @f(i32 3)", "call i32 @g(i32 3)"),
        "b": "@n = internal addrspace(1) global i32 0\n" + function("f", "load i32, ptr addrspace(1) @n"),
        "c": "@m = internal addrspace(1) global i32 0\n" + function("g", "load i32, ptr addrspace(1) @m"),
    }
    orders = [domain(**{name: texts[name] for name in order}) for order in ("abc", "cba", "bca")]
    assert len({found.part("k").digest for found in orders}) == 1
    assert len({found.ptx("k") for found in orders}) == 1


@pytest.mark.parametrize(
    ("declared", "defined", "types"),
    [
        ("declare float @f(i32)", "define i32 @f(i32 %x) {\n  ret i32 %x\n}", ("float (i32)", "i32 (i32)")),
        ("declare i32 @f(i32, i32)", "define i32 @f(i32 %x) {\n  ret i32 %x\n}", ("i32 (i32, i32)", "i32 (i32)")),
        (
            "declare i32 @f(ptr byval({ i32, float }) align 4)",
            "define i32 @f(ptr byval({ i32, float }) align 8 %x) {\n  ret i32 0\n}",
            ("i32 (ptr byval({ i32, float }) align 4)", "i32 (ptr byval({ i32, float }) align 8)"),
        ),
        (
            "%struct.s = type { i32, %struct.t }\n%struct.t = type { float }\ndeclare %struct.s @f(i32)",
            "%struct.s = type { i32, float }\ndefine %struct.s @f(i32 %x) {\n  ret %struct.s zeroinitializer\n}",
            ("{ i32, { float } } (i32)", "{ i32, float } (i32)"),
        ),
        ("declare zeroext i8 @f(i32)", "define signext i8 @f(i32 %x) {\n  ret i8 0\n}", ("zeroext i8 (i32)", "signext i8 (i32)")),
        ("declare fastcc i32 @f(i32)", "define i32 @f(i32 %x) {\n  ret i32 %x\n}", ("fastcc i32 (i32)", "i32 (i32)")),
        ("declare i32 @f(i32, ...)", "define i32 @f(i32 %x) {\n  ret i32 %x\n}", ("i32 (i32, ...)", "i32 (i32)")),
    ],
)
def test_s12_a_call_of_another_type_names_function_sources_and_types(declared: str, defined: str, types: tuple[str, str]) -> None:
    user = "define ptx_kernel void @k(ptr addrspace(1) %p) {\n  store ptr @f, ptr addrspace(1) %p\n  ret void\n}\n"
    error = domain(a=f"{declared}\n{user}", b=defined).error("k")
    assert isinstance(error, RefusedError)
    assert str(error).splitlines() == [
        "kernel k of a.ll: k uses f, which a.ll declares otherwise than b.ll defines it",
        f"    a.ll: {types[0]}",
        f"    b.ll: {types[1]}",
        "  let both include the header that declares it",
    ]


def test_s12_what_is_merely_known_of_a_parameter_may_differ() -> None:
    declared = "declare noundef i32 @f(ptr nonnull align 1 captures(none)) #0\nattributes #0 = { convergent }\n"
    use = "define ptx_kernel void @k(ptr addrspace(1) %p, ptr %q) {\n  %v = call i32 @f(ptr %q)\n  store i32 %v, ptr addrspace(1) %p\n  ret void\n}\n"
    defined = "define dso_local i32 @f(ptr noundef nonnull align 8 dereferenceable(8) %x) local_unnamed_addr #3 {\n  %r = load i32, ptr %x\n  ret i32 %r\n}\n"
    assert "call" not in domain(a=declared + use, b=defined + "attributes #3 = { nounwind }\n").ptx("k")


STRENGTHS = [
    ("", "weak", 1000, 1000),
    ("weak", "", 2000, 2000),
    ("weak_odr", "", 2000, 2000),
    ("", "weak_odr", 1000, 1000),
    ("linkonce", "", 2000, 2000),
]


@pytest.mark.parametrize("link", ["image", "bundle"])
@pytest.mark.parametrize(("first", "second", "in_first", "in_second"), STRENGTHS)
def test_s12_a_strong_function_is_meant_where_a_weak_one_stands_too(
    first: str, second: str, in_first: int, in_second: int, link: str
) -> None:
    """As a linker does it: in the source of the weak one, too, directly and through others."""
    through = "define internal i32 @through(i32 %x) {\n  %r = call i32 @f(i32 %x)\n  ret i32 %r\n}\n"
    found = domain(
        link,
        a=function("f", "1000", first) + kernel("k", "call i32 @f(i32 0)"),
        b=function("f", "2000", second) + through + kernel("l", "call i32 @through(i32 0)"),
        c=F + kernel("m", "call i32 @f(i32 0)"),
    )
    assert found.stores("k") == [in_first]
    assert found.stores("l") == [in_second]
    assert found.stores("m") == [in_first]


def test_s12_two_strong_functions_name_both_sources() -> None:
    for link in ("image", "bundle"):
        with pytest.raises(RefusedError, match=r"function f is defined in a\.ll and in b\.ll") as error:
            assert domain(link, a=function("f", "1"), b=function("f", "1")).plan
        assert "make it static or inline" in str(error.value)


def test_s12_weak_functions_that_are_equal_are_one_and_others_name_both_sources() -> None:
    weak = function("f", "5", "weak")
    found = domain(
        a=weak + kernel("k", "call i32 @f(i32 1)"), b=weak + kernel("l", "call i32 @f(i32 1)"), c=F + kernel("m", "call i32 @f(i32 1)")
    )
    assert [found.stores(name) for name in "klm"] == [[6], [6], [6]]
    with pytest.raises(RefusedError, match=r"weak function f is defined differently in a\.ll and in b\.ll"):
        assert domain(a=weak, b=function("f", "6", "weak")).plan


def test_s12_an_inline_function_is_every_source_s_own() -> None:
    inline = function("f", "5", "linkonce_odr")
    found = domain(a=inline + kernel("k", "call i32 @f(i32 1)"), b=inline + kernel("l", "call i32 @f(i32 1)"))
    assert not any(part.joins for part in found.plan.parts)
    error = domain(a=USES_F, b=inline + kernel("l", "call i32 @f(i32 1)")).error("k")
    assert isinstance(error, RefusedError)
    assert "k uses f, which b.ll defines inline" in str(error)
    with pytest.raises(RefusedError, match=r"function f is defined in b\.ll, and inline in a\.ll"):
        assert domain(a=inline, b=function("f", "6")).plan


def test_s12_an_alias_of_another_source() -> None:
    found = domain(
        a="declare i32 @alias(i32)\n" + kernel("k", "call i32 @alias(i32 3)"), b=function("f", "9") + "@alias = alias i32 (i32), ptr @f\n"
    )
    assert found.stores("k") == [12]


def test_s8_what_nobody_defines_is_named_however_far_it_is() -> None:
    found = domain(a=USES_F + kernel("fine"), b="declare i32 @lost(i32)\n" + function("f", "call i32 @lost(i32 %x)"))
    error = found.error("k")
    assert isinstance(error, MissingSymbolError)
    assert str(error).startswith("kernel k of a.ll: f uses lost, which nobody defines")
    assert not found.part("fine").refused


def test_s8_what_may_stay_undefined_is_taken_where_it_is_defined() -> None:
    asks = (
        "declare extern_weak i32 @f(i32)\n"
        "define ptx_kernel void @k(ptr addrspace(1) %p) {\n"
        "  %no = icmp eq ptr @f, null\n  %v = zext i1 %no to i32\n  store i32 %v, ptr addrspace(1) %p\n  ret void\n}\n"
    )
    assert domain(a=asks, b=function("f", "1")).stores("k") == [0]
    assert not domain(a=asks, b=function("g", "1")).part("k").joins


CONSTANTS = """
@few = external addrspace(1) constant [4 x i32]
@many = external addrspace(1) constant [400 x i32]
define ptx_kernel void @k(ptr addrspace(1) %p, i32 %i) {
  %a = getelementptr [4 x i32], ptr addrspace(1) @few, i32 0, i32 2
  %b = load i32, ptr addrspace(1) %a
  store i32 %b, ptr addrspace(1) %p
  %c = getelementptr [400 x i32], ptr addrspace(1) @many, i32 0, i32 399
  %d = load i32, ptr addrspace(1) %c
  %q = getelementptr i32, ptr addrspace(1) %p, i32 1
  store i32 %d, ptr addrspace(1) %q
  ret void
}
"""


def test_g4_constants_of_another_source_have_its_values() -> None:
    many = ", ".join(f"i32 {number}" for number in range(400))
    defined = f"@few = addrspace(1) constant [4 x i32] [i32 1, i32 2, i32 30, i32 4]\n@many = addrspace(1) constant [400 x i32] [{many}]\n"
    found = domain(a=CONSTANTS, b=defined)
    assert found.stores("k") == [30, 399]
    # The large one is an object of its own, which an image holds once: whoever asks for an element that is not known sees that.
    (table,) = (part for part in found.plan.parts if part.role == "table")
    assert table.defines == found.part("k").uses
    reads = "load i32, ptr addrspace(1) getelementptr ([400 x i32], ptr addrspace(1) @many, i32 0, i32 3)"
    asks = CONSTANTS.replace("i32 0, i32 399", "i32 0, i32 %i")
    more = domain(
        a=asks,
        b=defined + function("f", reads) + kernel("l", "call i32 @f(i32 1)"),
        c=F + asks.replace("@k", "@m") + kernel("n", "call i32 @f(i32 1)"),
    )
    tables = {
        name: part.defines[0]
        for name in "km"
        for part in more.plan.parts
        if part.role == "table" and part.defines[0] in more.part(name).uses
    }
    assert len(set(tables.values())) == 1
    for name, symbol in tables.items():
        assert re.search(rf"\.extern \.global .*{re.escape(symbol)}\[\d+\];", more.ptx(name))
    assert more.stores("n") == [3]
    assert domain("bundle", a=CONSTANTS, b=defined).stores("k") == [30, 399]
    with pytest.raises(RefusedError, match=r"variable few is defined in b\.ll and in c\.ll"):
        assert domain(a=CONSTANTS, b=defined, c="@few = addrspace(1) constant [4 x i32] zeroinitializer\n").plan


def test_g4_a_constant_table_of_functions_of_another_source() -> None:
    """As virtual functions are called: the table is in the source of the class, the call anywhere."""
    found = domain(
        a="@table = external addrspace(1) constant [2 x ptr]\n"
        "define ptx_kernel void @k(ptr addrspace(1) %p) {\n"
        "  %a = getelementptr [2 x ptr], ptr addrspace(1) @table, i32 0, i32 1\n  %f = load ptr, ptr addrspace(1) %a\n"
        "  %v = call i32 %f(i32 4)\n  store i32 %v, ptr addrspace(1) %p\n  ret void\n}\n",
        b="declare i32 @g(i32)\n@table = addrspace(1) constant [2 x ptr] [ptr @f, ptr @g]\n" + function("f", "1"),
        c=function("g", "20"),
    )
    assert found.stores("k") == [24]


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("addrspace(1) global i64", "i64 in __device__ memory, 8 bytes, aligned to 8"),
        ("addrspace(4) global i32", "i32 in __constant__ memory, 4 bytes, aligned to 4"),
        ("addrspace(1) global i32, align 16", "i32 in __device__ memory, 4 bytes, aligned to 16"),
    ],
)
@pytest.mark.parametrize("kind", ["global i32 7", "constant i32 7"])
def test_g1_a_variable_that_is_declared_otherwise_names_both(declared: str, said: str, kind: str) -> None:
    space = 4 if "(4)" in declared else 1
    user = f"@x = external {declared}\ndefine ptx_kernel void @k(ptr %p) {{\n  store ptr addrspacecast (ptr addrspace({space}) @x to ptr), ptr %p\n  ret void\n}}\n"
    error = domain(a=user, b=f"@x = addrspace(1) {kind}\n").error("k")
    assert isinstance(error, RefusedError)
    assert error.output.splitlines() == [f"a.ll: {said}", "b.ll: i32 in __device__ memory, 4 bytes, aligned to 4"]


def test_g1_an_array_of_unknown_length_is_anything() -> None:
    user = "@x = external addrspace(1) global [0 x i32]\n" + kernel("k", "load i32, ptr addrspace(1) @x")
    found = domain(a=user, b="@x = addrspace(1) global [4 x i32] zeroinitializer\n")
    assert found.part("k").uses == ("x",)
    assert ".extern .global" in found.ptx("k")


def counts(name: str, linkage: str = "") -> str:
    return "@n = internal addrspace(1) global i32 0\n" + function(name, "atomicrmw add ptr addrspace(1) @n, i32 %x monotonic", linkage)


def test_g6_private_state_of_another_source_is_one_variable() -> None:
    """Two sources with a counter of one name and content: each function counts in its own source's, whoever calls it."""
    found = domain(
        a="declare i32 @g(i32)\n" + counts("f") + kernel("k", "call i32 @f(i32 1)", "call i32 @g(i32 1)"),
        b=counts("g") + kernel("l", "call i32 @g(i32 1)"),
    )
    mine, theirs = (state.symbol for state in found.plan.state)
    assert theirs == f"{mine}$2"
    assert found.part("k").uses == (mine, theirs)
    counted = re.findall(r"atom\S* \t?\S+ \[(\S+)\]", found.ptx("k"))
    assert counted == [mine, theirs], found.ptx("k")
    assert theirs in found.ptx("l")
    assert mine not in found.ptx("l").replace(theirs, "")
    assert re.search(rf"\.visible \.global \.align 4 \.u32 {re.escape(theirs)};", found.ptx(found.state("b.ll")))


def test_g4_state_that_names_functions_of_another_source() -> None:
    found = domain(
        a="@table = addrspace(1) global [1 x ptr] [ptr @f]\n" + F + kernel("k"),
        b=function("f", "77"),
    )
    text = found.ptx(found.state("a.ll"))
    assert re.search(r"table\[1\] = \{f\}", text)
    assert re.search(r"^\.func .*f\(", text, re.MULTILINE)
    assert "77" in text


def test_g1_a_weak_variable_gives_way_to_a_strong_one() -> None:
    for weak, strong in (("ab", "ba"), ("ba", "ab")):
        texts = {weak[0]: "@x = weak addrspace(1) global i32 1\n" + kernel("k", "load i32, ptr addrspace(1) @x")}
        texts[strong[0]] = "@x = addrspace(1) global i32 2\n" + kernel("l", "load i32, ptr addrspace(1) @x")
        found = domain(**dict(sorted(texts.items())))
        assert [state.source for state in found.plan.state] == [f"{strong[0]}.ll"]
        assert "= 2;" in found.ptx(found.state(f"{strong[0]}.ll"))
        assert not re.search(r"^\.(?:visible|weak) \.global", found.ptx(found.state(f"{weak[0]}.ll")), re.MULTILINE)
    differ = {"a": "@x = weak addrspace(1) global i32 1\n", "b": "@x = addrspace(1) global i64 1\n"}
    with pytest.raises(RefusedError, match=r"variable x is defined in b\.ll, and otherwise where it may be replaced in a\.ll"):
        assert domain(**differ).plan
    assert domain("bundle", **differ).plan.link == "bundle", "there each source keeps its own"


SHARES = """
@s = internal addrspace(3) global [32 x i32] undef
define i32 @put(i32 %x) noinline {
  %p = getelementptr [32 x i32], ptr addrspace(3) @s, i32 0, i32 %x
  store volatile i32 %x, ptr addrspace(3) %p
  ret i32 0
}
define i32 @get(i32 %x) noinline {
  %p = getelementptr [32 x i32], ptr addrspace(3) @s, i32 0, i32 %x
  %r = load volatile i32, ptr addrspace(3) %p
  ret i32 %r
}
"""
PUT_AND_GET = "declare i32 @put(i32)\ndeclare i32 @get(i32)\n" + kernel("k", "call i32 @put(i32 3)", "call i32 @get(i32 3)")


def shared(text: str) -> list[str]:
    return sorted(re.findall(r"\.shared \.align \d+ \.b8 ([\w$]+)\[", text))


def test_g5_functions_of_a_source_share_its_shared_memory_wherever_they_are() -> None:
    found = domain(a=PUT_AND_GET, b=SHARES)
    assert shared(found.ptx("k")) == ["s"]
    (planned,) = found.part("k").kernels
    assert planned.shared_bytes == 128
    # A private name of another source is another thing.
    twice = domain(a=PUT_AND_GET.replace("define", "@s = internal addrspace(3) global [8 x i32] undef\ndefine", 1), b=SHARES)
    mine = (
        PUT_AND_GET
        + "@s = internal addrspace(3) global [8 x i32] undef\n"
        + kernel("l", "load volatile i32, ptr addrspace(3) @s", "call i32 @get(i32 1)")
    )
    assert len(shared(domain(a=mine, b=SHARES).ptx("l"))) == 2
    assert shared(twice.ptx("k")) == ["s"]


def test_g5_a_source_that_is_called_back_has_its_shared_memory_once() -> None:
    calls_back = "declare i32 @get(i32)\n" + function("back", "call i32 @get(i32 %x)")
    mine = (
        SHARES
        + "declare i32 @back(i32)\n"
        + kernel("k", "call i32 @put(i32 3)", "call i32 @back(i32 3)", "load volatile i32, ptr addrspace(3) @s")
    )
    found = domain(a=mine, b=calls_back)
    assert [joined.own for joined in found.part("k").joins] == [True, False]
    assert shared(found.ptx("k")) == ["s"]
    assert len(re.findall(r"^\.func .*get\(", found.ptx("k"), re.MULTILINE)) == 1


def test_g5_shared_memory_of_an_inline_function_is_one_though_two_sources_bring_it() -> None:
    inline = SHARES.replace("define i32", "define linkonce_odr i32").replace("@s", "@inline_s")
    found = domain(
        a=inline + "declare i32 @via(i32)\n" + kernel("k", "call i32 @put(i32 3)", "call i32 @via(i32 3)"),
        b=inline + function("via", "call i32 @get(i32 %x)"),
    )
    assert shared(found.ptx("k")) == ["inline_s"] or len(shared(found.ptx("k"))) == 2
    found = domain(
        a=inline + "declare i32 @via(i32)\n" + kernel("k", "call i32 @put(i32 3)", "call i32 @via(i32 3)"),
        b=inline + function("via", "call i32 @put(i32 %x)"),
    )
    assert shared(found.ptx("k")) == ["inline_s"]
    assert len(re.findall(r"^\.func .*put\(", found.ptx("k"), re.MULTILINE)) == 1


def test_g5_shared_memory_at_file_scope_is_each_source_s_own() -> None:
    mine = "@s = addrspace(3) global [32 x i32] undef\n"
    get = function("f", "load volatile i32, ptr addrspace(3) @s")
    found = domain(a=mine + F + kernel("k", "load volatile i32, ptr addrspace(3) @s", "call i32 @f(i32 1)"), b=mine + get)
    assert len(shared(found.ptx("k"))) == 2
    assert found.part("k").kernels[0].shared_bytes == 256
    given = "@s = external addrspace(3) global [0 x i32]\n"
    found = domain(a=given + F + kernel("k", "load volatile i32, ptr addrspace(3) @s", "call i32 @f(i32 1)"), b=given + get)
    assert len(re.findall(r"\.extern \.shared", found.ptx("k"))) == 1


def test_s2_a_template_kernel_of_two_sources_may_call_a_function_of_one() -> None:
    linkage = "weak_odr"
    declared = "declare noundef i32 @f(i32 noundef range(i32 0, 9)) #3\nattributes #3 = { convergent }\n"
    made = declared + kernel("k", "call i32 @f(i32 3)", linkage=linkage)
    found = domain(a=made, b=function("f", "4") + kernel("k", "call i32 @f(i32 3)", linkage=linkage))
    assert [part.source for part in found.plan.units] == ["a.ll"]
    assert found.stores("k") == [7]
    with pytest.raises(RefusedError, match="kernel k is defined differently"):
        assert domain(a=made, b=function("f", "4") + kernel("k", "call i32 @f(i32 4)", linkage=linkage)).plan


def test_a_bundle_takes_functions_and_refuses_memory() -> None:
    assert domain("bundle", a=USES_F, b=function("f", "100")).stores("k") == [103]
    error = domain("bundle", a=USES_F, b=counts("f")).error("k")
    assert isinstance(error, RefusedError)
    assert "k uses f of b.ll, and that uses n" in str(error)
    assert "link an image" in str(error)
    # A weak function of the kernel's own source may: kernels of one source that share memory are one unit.
    weak = counts("f", "weak")
    found = domain("bundle", a=weak + kernel("k", "call i32 @f(i32 1)") + kernel("l", "call i32 @f(i32 2)"), b=function("g", "1"))
    assert [each.symbol for each in found.part("k").kernels] == ["k", "l"]
    assert len(re.findall(r"\.global \.align 4 \.u32 n", found.ptx("k"))) == 1


def test_a_bundle_s_kernels_that_call_through_memory_are_not_joined_across_sources() -> None:
    calls = "define i32 @f(i32 %x) {\n  %p = inttoptr i32 %x to ptr\n  %r = call i32 %p(i32 1)\n  ret i32 %r\n}\n"
    takes = "define ptx_kernel void @l(ptr %p) {\n  store ptr @g, ptr %p\n  ret void\n}\n" + function("g", "1")
    with pytest.raises(
        RefusedError, match=r"kernel k of m/a\.ll \(sm_90\): it and kernel l of b\.ll may call functions of each other through memory"
    ):
        assert domain("bundle", a=USES_F, b=calls + takes).plan
    assert not domain("bundle", a=USES_F, b=calls).part("k").refused
    assert not domain(a=USES_F, b=calls + takes).part("k").refused


def test_a_kernel_of_another_source_is_the_link_s_to_find() -> None:
    user = "declare ptx_kernel void @l(ptr)\ndefine ptx_kernel void @k(ptr %p) {\n  store ptr @l, ptr %p\n  ret void\n}\n"
    found = domain(a=user, b="define ptx_kernel void @l(ptr %p) {\n  ret void\n}\n")
    assert not found.part("k").refused
    assert "mov.b64" in found.ptx("k")
    assert "which b.ll defines" in str(domain("bundle", a=user, b="define ptx_kernel void @l(ptr %p) {\n  ret void\n}\n").error("k"))


def test_what_joins_a_kernel_is_told_of_it() -> None:
    sized = "@dyn = external addrspace(3) global [0 x i32]\ndeclare float @__nv_sinf(float)\n"
    text = "define i32 @f(i32 %x) {\n  %a = load i32, ptr addrspace(3) @dyn\n  %b = sitofp i32 %a to float\n"
    text += "  %c = call float @__nv_sinf(float %b)\n  %d = fptosi float %c to i32\n  ret i32 %d\n}\n"
    found = domain(a=USES_F, b=sized + text)
    assert found.part("k").libdevice
    assert dict(found.part("k").key)["libdevice"] == "True"
    assert found.part("k").kernels[0].dynamic_shared
    assert found.part("k").bytes > domain(a=USES_F, b=function("f", "1")).part("k").bytes


def test_a_function_that_goes_with_assembly_stays_in_its_source() -> None:
    assembly = 'module asm ".global .u32 in_asm;"\n' + function("f", 'call i32 asm "ld.global.u32 $0, [in_asm];", "=r"()')
    error = domain(a=USES_F, b=assembly).error("k")
    assert isinstance(error, RefusedError)
    assert "k uses f of b.ll, and that goes with assembly at file scope" in str(error)


def test_flags_that_contradict_each_other_name_the_source() -> None:
    flag = '!llvm.module.flags = !{{!0}}\n!0 = !{{i32 4, !"nvvm-reflect-ftz", i32 {}}}\n'
    found = domain(a=USES_F + flag.format(0), b=function("f", "1") + flag.format(1))
    with pytest.raises(LinkError, match=r"what joins it from b\.ll does not link with it"):
        found.ptx("k")
    assert "103" not in found.ptx("k", ftz=True)


def test_a_source_split_for_itself_has_nothing_to_give() -> None:
    alone = [
        split(HEAD + text, source=name, target=SM_90, form="apart", put=lambda _: "x")
        for name, text in (("a.ll", USES_F), ("b.ll", function("f", "1")))
    ]
    assert [export.offer for index in alone for export in index.exports] == [None]
    made = plan(alone, module="m", arch="sm_90", link="image", key=key)
    assert "split b.ll with --exports" in str(refusal(made.units[0]))


def test_s12_what_every_source_has_alike_stays_its_own() -> None:
    """`weak_odr`, as explicit instances of templates are: equal by the rules of the language, whatever was inlined where."""
    one, other = function("f", "5", "weak_odr"), function("f", "6", "weak_odr")
    found = domain(
        a=one + kernel("k", "call i32 @f(i32 1)"), b=other + kernel("l", "call i32 @f(i32 1)"), c=F + kernel("m", "call i32 @f(i32 1)")
    )
    assert [found.stores(name) for name in "klm"] == [[6], [7], [6]]


def test_s12_what_replaces_a_weak_function_has_its_type() -> None:
    with pytest.raises(RefusedError, match=r"function f is defined in b\.ll, and otherwise where it may be replaced in a\.ll") as error:
        assert domain(a=function("f", "1", "weak"), b="define float @f(i32 %x) {\n  ret float 1.0\n}\n").plan
    assert error.value.output.splitlines() == ["a.ll: i32 (i32)", "b.ll: float (i32)"]


def test_s12_a_function_that_the_device_brings_is_not_replaced_in_silence() -> None:
    own = "define ptr @malloc(i64 %x) {\n  ret ptr null\n}\n"
    assert domain(a=own + kernel("k")).plan.units
    with pytest.raises(RefusedError, match=r"function malloc is defined in a\.ll, and the device brings one"):
        assert domain(a=own, b=kernel("k")).plan


def test_g1_in_a_bundle_state_of_a_weak_function_keeps_its_name() -> None:
    weak = "@x = addrspace(1) global i32 0\n" + function("f", "load volatile i32, ptr addrspace(1) @x", "weak")
    text = domain("bundle", a=weak + kernel("k", "call i32 @f(i32 1)"), b=function("g", "1")).ptx("k")
    assert ".visible .global .align 4 .u32 x;" in text


def test_d1_kernels_whose_private_names_matter_are_no_twins() -> None:
    """What the own source offers meets a kernel's private functions by name."""
    private = "".join(function(name, "1", "internal", attributes="noinline") for name in ("one", "two"))
    mine = "declare i32 @g(i32)\n" + function("back", "call i32 @one(i32 %x)") + private
    kernels = kernel("k", "call i32 @one(i32 2)", "call i32 @g(i32 2)") + kernel("l", "call i32 @two(i32 2)", "call i32 @g(i32 2)")
    found = domain("bundle", a=mine + kernels, b="declare i32 @back(i32)\n" + function("g", "call i32 @back(i32 %x)"))
    assert found.part("k").body != found.part("l").body
    assert domain(a=mine + kernels, b=function("g", "1")).part("k").body == domain(a=mine + kernels, b=function("g", "1")).part("l").body


PTX = """\
.version 7.8
.target sm_90
.address_size 64
{}
.visible .entry {}(.param .u64 p) {{
  .reg .b32 %r<2>;
  {{
  .param .b32 x;
  .param .b32 r;
  mov.u32 %r0, 3;
  st.param.b32 [x], %r0;
  call (r), f, (x);
  }}
  ret;
}}
"""
PTX_F = ".visible .func (.param .b32 r) f(.param .b32 x) { ret; }"


def test_s12_ptx_and_ir_are_not_compiled_together() -> None:
    def of_ptx(text: str, source: str) -> indexes.Index:
        return split_ptx(text, source=source, target=SM_90, form="apart", put=lambda _: "0" * 32)

    user = of_ptx(PTX.format(".extern .func (.param .b32 r) f(.param .b32 x);", "k"), "a.ptx")
    owner = of_ptx(PTX.format(PTX_F, "l"), "b.ptx")
    for found in (
        [user, owner],
        [user, *domain(b=function("f", "1"), c=kernel("n")).indexes],
        [owner, *domain(a=USES_F.replace("@k", "@m"), c=kernel("n")).indexes],
    ):
        made = plan(found, module="m", arch="sm_90", link="image", key=key)
        (refused,) = [part for part in made.units if part.refused]
        assert "uses f, which" in str(refusal(refused))
        assert re.search("PTX (is joined with|joins) nothing", str(refusal(refused)))


def test_s5_private_names_of_two_sources_never_meet() -> None:
    private = function("g", "7", "internal")
    found = domain(
        a=private + F + kernel("k", "call i32 @g(i32 1)", "call i32 @f(i32 1)"),
        b="declare i32 @g(i32)\n" + function("f", "call i32 @g(i32 %x)"),
        c=function("g", "1000"),
    )
    assert found.stores("k") == [8, 1001]
    through = "declare i32 @h(i32)\ndefine i32 @f(i32 %x) {\n  %h = call i32 @h(i32 %x)\n  %r = call i32 @g(i32 %h)\n  ret i32 %r\n}\n"
    found = domain(a=USES_F, b=private + through, c="declare i32 @g(i32)\n" + function("h", "call i32 @g(i32 %x)"), d=function("g", "5000"))
    assert found.stores("k") == [5010]


def test_a_library_defines_what_sources_lack_for_images_of_machine_code() -> None:
    def planned(arch: str, link: str, libraries: dict[str, str]) -> Part:
        made = plan(domain(a=USES_F, b=kernel("other")).indexes, module="m", arch=arch, link=link, key=key, libraries=libraries)
        return next(part for part in made.units if part.kernels[0].symbol == "k")

    found = planned("sm_90", "image", {"f": "lib.a"})
    assert (found.refused, found.joins) == ("", ())
    assert found == planned("sm_90", "image", {"f": "another.a", "g": "lib.a"}), "where it lies, the link alone is told"
    assert isinstance(refusal(planned("sm_90", "image", {"g": "lib.a"})), MissingSymbolError)
    for arch, link in (("compute_90", "image"), ("sm_90", "whole")):
        refused = refusal(planned(arch, link, {"f": "lib.a"}))
        assert isinstance(refused, RefusedError)
        assert "k uses f of lib.a, which is machine code" in str(refused)


def test_a_source_s_own_goes_before_a_library_s() -> None:
    made = domain(a=USES_F, b=function("f", "1"))
    found = plan(made.indexes, module="m", arch="sm_90", link="image", key=key, libraries={"f": "lib.a"})
    assert [joined.source for joined in found.units[0].joins] == ["b.ll"]
