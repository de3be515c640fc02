"""PTX as a source: what becomes of each statement, held against the real assembler."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from scons_gpu.errors import RefusedError, SourceError
from scons_gpu.source.ptx import read_ptx
from scons_gpu.split import digest, ptx_uses
from scons_gpu.split.index import Index, Unit, from_text, to_text
from scons_gpu.split.ptx import split_ptx
from scons_gpu.toolchain.arch import parse

PTXAS = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/bin/ptxas"))
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


@dataclass
class Split:
    index: Index
    texts: dict[str, str]

    def unit(self, kernel: str) -> Unit:
        return next(unit for unit in self.index.units if kernel in [each.symbol for each in unit.kernels])

    def slice(self, kernel: str) -> str:
        return self.texts[self.unit(kernel).slice]

    @property
    def state(self) -> str:
        return self.texts[self.index.state_slice]

    def joined(self) -> list[tuple[list[str], str]]:
        return [([kernel.symbol for kernel in unit.kernels], unit.joined) for unit in self.index.units]


def split(*statements: str, form: str = "apart", head: str = HEAD, arch: str = "sm_90", lines: bool = False) -> Split:
    texts: dict[str, str] = {}

    def put(text: str) -> str:
        texts[digest.content(text.encode())] = text
        return digest.content(text.encode())

    index = split_ptx(head + "\n".join(statements), source="k.ptx", target=parse(arch)[0], form=form, put=put, lines=lines)
    assert from_text(to_text(index)) == index
    return Split(index, texts)


def entry(name: str, body: str = "", *, parameters: str = ".param .u64 p", bounds: str = "") -> str:
    return f"""
.visible .entry {name}({parameters}) {bounds}
{{
	.reg .pred %p<9>;
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	{body}
	ret;
}}"""


def function(name: str, body: str = "", *, linkage: str = "") -> str:
    return f"{linkage}.func (.param .b32 out) {name}(.param .b32 in)\n{{\n.reg .b32 %r<9>; .reg .b64 %rd<9>;\nld.param.b32 %r1, [in];\n{body}\nst.param.b32 [out], %r1;\nret;\n}}"


def call(name: str) -> str:
    return f"{{ .param .b32 a; .param .b32 b; st.param.b32 [a], 1; call (b), {name}, (a); ld.param.b32 %r1, [b]; }}"


def add(name: str) -> str:
    return f"ld.global.u32 %r1, [{name}]; add.u32 %r1, %r1, 1; st.global.u32 [{name}], %r1;"


def code(ptx: str, folder: Path, *options: str, arch: str = "sm_90") -> dict[str, bytes]:
    """Machine code by section, whatever else the program holds."""
    (folder / "in.ptx").write_text(ptx)
    done = subprocess.run(
        [PTXAS, f"-arch={arch}", *options, "in.ptx", "-o", "out.cubin"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr + ptx
    assert "warning" not in done.stderr.replace("warning : Stack size", ""), done.stderr
    with (folder / "out.cubin").open("rb") as file:
        return {each.name.removeprefix(".text."): each.data() for each in ELFFile(file).iter_sections() if each.name.startswith(".text.")}


def test_an_entry_goes_with_what_it_reaches_and_nothing_else(tmp_path: Path) -> None:
    made = split(
        function("deep", add("%rd1")),
        function("helper", call("deep"), linkage=".visible "),
        function("other"),
        entry("a", call("helper")),
        entry("b"),
        form="closed",
    )
    text = made.slice("a")
    assert ".func (.param .b32 out) deep(" in text
    assert "\n.func (.param .b32 out) helper(" in text, "known to the unit alone"
    assert "other" not in text
    assert "b" not in code(text, tmp_path)
    assert "helper" not in made.slice("b")
    assert [(each.symbol, each.weak) for each in made.index.exports] == [("helper", False)]


def test_d4_comments_blanks_and_neighbours_leave_a_unit_alone() -> None:
    plain = split(entry("a", "bra.uni $L__BB0_1;\n$L__BB0_1:"), entry("b", "bra.uni $L__BB1_1;\n$L__BB1_1:"))
    odd = split(
        "/* said { before */ .global .u32 more;",
        entry("first", "bra.uni $L__BB0_1;\n$L__BB0_1:"),
        entry("b", "\t \n// a comment }\n bra.uni   $L__BB2_7; /* ;\n} */\n\n$L__BB2_7:"),
        entry("a", "bra.uni $L__BB1_2;\n  $L__BB1_2  :").replace(" .entry", " /* here */ .entry").replace("__BB1_2  :", "__BB1_2:"),
    )
    assert plain.unit("a").slice == odd.unit("a").slice
    assert plain.unit("b").slice == odd.unit("b").slice
    assert plain.unit("a").slice != plain.unit("b").slice


def test_d4_what_compilers_count_through_a_module_does_not_matter(tmp_path: Path) -> None:
    printf = ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 v);"

    def says(string: str, depot: int) -> str:
        return (
            f".local .align 8 .b8 __local_depot{depot}[8]; mov.u64 %rd1, __local_depot{depot};\n"
            f"mov.u64 %rd1, {string};\ncvta.global.u64 %rd2, %rd1;\n"
            "{\n.param .b64 f; .param .b64 v; .param .b32 r;\nst.param.b64 [f+0], %rd2;\nst.param.b64 [v+0], 0;\n"
            "call.uni (r),\nvprintf,\n(\nf,\nv\n);\n}"
        )

    hello, bye = "[3] = {104, 105};", "[4] = {98, 121, 101};"
    one = split(printf, f".global .align 1 .b8 $str{hello}", entry("a", says("$str", 0)), form="closed")
    two = split(
        printf,
        f".global .align 1 .b8 $str{bye}",
        f".global .align 1 .b8 $str$1{hello}",
        entry("b", says("$str", 0)),
        entry("a", says("$str$1", 1)),
        form="closed",
    )
    assert one.unit("a").slice == two.unit("a").slice
    assert two.joined() == [(["a"], ""), (["b"], "")], "a string that is only printed joins nothing"
    assert two.index.state == ()
    assert code(two.slice("b"), tmp_path)["b"]


def test_g1_state_is_defined_once_and_keeps_its_name(tmp_path: Path) -> None:
    made = split(
        ".visible .global .align 4 .u32 count = 3;",
        ".const .align 8 .u64 table[2] = {one, two};",
        ".global .align 4 .b8 memo[16], more[8];",
        function("one"),
        function("two"),
        entry("a", add("count") + "mov.u64 %rd1, table;"),
        entry("b", add("count") + add("memo+4")),
    )
    assert [(each.symbol, each.bytes, each.space, each.private) for each in made.index.state] == [
        ("count", 4, "global", False),
        ("memo", 16, "global", True),
        ("more", 8, "global", True),
        ("table", 16, "constant", True),
    ]
    assert made.unit("a").state == ("count", "table")
    assert ".extern .global .align 4 .u32 count;" in made.slice("a")
    assert ".extern .const .align 8 .u64 table[2];" in made.slice("a")
    assert ".func" not in made.slice("a"), "what a table of functions leads to is with the table"
    assert ".visible .global .align 4 .b8 memo[16];" in made.state
    assert made.state.index("one(") < made.state.index("table[2] =")
    for text in (made.slice("a"), made.slice("b"), made.state):
        code(text, tmp_path, "-c")


def test_g6_kernels_that_share_state_are_one_unit_of_a_bundle(tmp_path: Path) -> None:
    statements = (".global .u32 memo;", entry("a", add("memo")), entry("b", add("memo")), entry("c"))
    made = split(*statements, form="closed")
    assert made.joined() == [(["a", "b"], "state"), (["c"], "")]
    assert "\n.global .u32 memo;" in made.slice("a"), "as the source has it"
    whole = code(HEAD + "\n".join(statements), tmp_path)
    assert {name: data for text in map(made.slice, "ac") for name, data in code(text, tmp_path).items()} == whole


def test_what_only_compilers_name_and_nothing_writes_is_copied() -> None:
    table = ".global .align 4 .b8 __cudart_i2opi_f[8] = {1, 2, 3, 4, 5, 6, 7, 8};"
    coefficients = ".const .align 8 .b8 __cudart_coeffs[8] = {1, 2, 3, 4, 5, 6, 7, 8};"
    reads = "mov.u64 %rd1, __cudart_i2opi_f; add.s64 %rd2, %rd1, 4; ld.global.nc.u32 %r1, [%rd2+-4]; ld.const.u32 %r2, [__cudart_coeffs];"
    made = split(table, coefficients, entry("a", reads), entry("b", reads))
    assert made.index.state == ()
    assert made.unit("a").constant_bytes == 8
    for writes in (
        add("__cudart_i2opi_f"),
        "mov.u64 %rd1, __cudart_i2opi_f; st.global.u64 [p], %rd1;",
        "mov.u64 %rd1, __cudart_i2opi_f; cvta.global.u64 %rd2, %rd1; atom.add.u32 %r1, [%rd2], 1;",
        "mov.u64 %rd1, __cudart_i2opi_f; { .param .b64 a; st.param.b64 [a], %rd1; call unknown, (a); }",
        "mov.b64 {%r1, %r2}, __cudart_i2opi_f;",
    ):
        kept = split(table, ".func unknown(.param .b64 a) { ret; }", entry("a", reads + writes), coefficients)
        assert [each.symbol for each in kept.index.state] == ["__cudart_i2opi_f"], writes


def test_a_variable_that_the_host_may_know_is_state_whoever_reads_it() -> None:
    made = split(
        ".const .align 4 .f32 scale = 0f3F800000;",
        ".global .u32 flag;",
        ".const .align 4 .b8 __unset[4];",
        entry("a", "ld.const.f32 %r1, [scale]; ld.global.u32 %r2, [flag]; ld.const.u32 %r3, [__unset];"),
    )
    assert [each.symbol for each in made.index.state] == ["__unset", "flag", "scale"]


def test_shared_memory_is_each_units_own_and_counted(tmp_path: Path) -> None:
    made = split(
        ".visible .shared .align 16 .b8 tile[1024];",
        ".shared .align 4 .f32 both[2][3];",
        ".extern .shared .align 16 .b8 dyn[];",
        function("uses", "ld.shared.u32 %r1, [both];\n.shared .align 8 .b64 own[4];\nst.shared.u32 [own], %r1;"),
        entry("a", "st.shared.u32 [tile], %r1; st.shared.u32 [dyn], %r1;" + call("uses")),
        entry("b", call("uses")),
        form="closed",
    )
    assert sum(each.bytes for each in made.unit("a").shared) == 1024 + 24 + 32
    assert sum(each.bytes for each in made.unit("b").shared) == 24 + 32
    assert [(made.unit(name).kernels[0].dynamic_shared) for name in "ab"] == [True, False]
    assert ".extern .shared .align 16 .b8 dyn[];" in made.slice("a")
    code(made.slice("a"), tmp_path)


def test_s1_launch_bounds_are_read() -> None:
    made = split(
        entry("a", bounds=".maxntid 32, 2, 2 .minnctapersm 3"),
        entry("b", bounds=".reqntid 64\n.maxnreg 40"),
        ".weak .entry c() { ret; }",
        ".entry d\n.maxntid 8,8,1\n{ ret; }",
    )
    kernels = {kernel.symbol: kernel for unit in made.index.units for kernel in unit.kernels}
    assert [(kernels[name].max_threads, kernels[name].min_blocks, kernels[name].weak) for name in "abcd"] == [
        (128, 3, False),
        (64, None, False),
        (None, None, True),
        (64, None, False),
    ]
    assert ".visible .entry d .maxntid 8, 8, 1\n" in made.slice("d")


def test_s8_what_nobody_defines_is_named_with_its_user() -> None:
    made = split(
        ".extern .func lost(.param .b64 p);",
        ".extern .func free(.param .b64 p);",
        ".extern .global .u32 gone;",
        ".func h() { .reg .b64 %rd<3>; { .param .b64 p; st.param.b64 [p], %rd1; call lost, (p); } { .param .b64 p; call free, (p); } ret; }",
        entry("a", "call h; ld.global.u32 %r1, [gone];"),
        entry("b"),
    )
    assert made.unit("a").needs == (("gone", "a"), ("lost", "h"))
    assert made.unit("b").needs == ()


INDIRECT = "ld.global.u64 %rd1, [p]; { .param .b32 a; .param .b32 b; pr: .callprototype (.param .b32 _) _ (.param .b32 _); call (b), %rd1, (a), pr; }"


def test_s4_calls_through_memory_join_in_bundles_alone(tmp_path: Path) -> None:
    statements = (function("f"), entry("caller", INDIRECT), entry("taker", "mov.u64 %rd1, f;"), entry("plain", call("f")))
    assert split(*statements, form="closed").joined() == [(["caller", "taker"], "indirect-call"), (["plain"], "")]
    apart = split(*statements)
    assert [names for names, _ in apart.joined()] == [["caller"], ["plain"], ["taker"]]
    code(apart.slice("taker"), tmp_path, "-c")


def test_s4_recursion_is_copied(tmp_path: Path) -> None:
    made = split(
        function("even", call("odd")), function("odd", call("even")), entry("a", call("odd")), form="closed", head=HEAD + PROTOTYPE
    )
    assert all(f"\n.func (.param .b32 out) {name}(.param .b32 in)\n{{" in made.slice("a") for name in ("even", "odd"))
    code(made.slice("a"), tmp_path)


PROTOTYPE = ".func (.param .b32 out) odd(.param .b32 in);\n"


def test_names_that_a_function_declares_for_itself_are_no_symbols(tmp_path: Path) -> None:
    hiding = """{ .reg .b32 x; mov.u32 x, 1; { .reg .b32 y<2>, f; mov.u32 f, x; add.u32 %r1, x, f; } st.global.u32 [g], x; }
    ld.global.u32 %r2, [x]; st.global.u32 [g], %r2; bra l; l: st.global.u32 [g], %r1;"""
    source = (".global .u32 g, x;", function("f"), entry("k"), entry("a", hiding, parameters=".param .u64 g2, .param .u32 f"))
    made = split(*source, form="closed")
    assert made.joined() == [(["a"], ""), (["k"], "")]
    assert ".func" not in made.slice("a")
    assert code(made.slice("a"), tmp_path)["a"] == code(HEAD + "\n".join(source), tmp_path)["a"]


def test_s4_a_kernel_that_names_a_kernel(tmp_path: Path) -> None:
    statements = (entry("child"), entry("parent", "mov.u64 %rd1, child;"))
    closed = split(*statements, form="closed")
    assert closed.joined() == [(["child", "parent"], "kernel-reference")]
    code(closed.slice("child"), tmp_path)
    apart = split(*statements)
    assert ".extern .entry child(" in apart.slice("parent")
    code(apart.slice("parent"), tmp_path, "-c")


def test_s3_an_alias_is_the_function_that_it_stands_for(tmp_path: Path) -> None:
    made = split(
        function("real", linkage=".visible "),
        ".visible .func (.param .b32 out) nick(.param .b32 in);",
        ".alias nick, real;",
        entry("a", call("nick")),
        form="closed",
    )
    assert "nick" not in made.slice("a")
    assert [each.symbol for each in made.index.exports] == ["nick", "real"]
    code(made.slice("a"), tmp_path)


ODD = r"""
.pragma "nounroll";
.func (.param .align 16 .b8 out[16]) wide(.param .align 16 .b8 in[16]) { ret; }
.func gone() .noreturn { trap; }
.common .global .align 4 .b8 both[8];
.visible .entry all(.param .u64 .ptr .global .align 16 p, .param .align 8 .b8 s[24]) .maxntid 64 .minnctapersm 1
{
	.reg .pred %p<3>; .reg .b32 lo, hi, add, %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>;
	ld.param.u64 %rd1, [p];
	ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1]; mov.b64 {lo, hi}, %rd1;
	add.u32 add, lo, hi;
	setp.eq.u32 %p1, add, 0; @!%p1 bra lab12;
	{ .reg .b32 %r1; mov.u32 %r1, 3; lab3: add.u32 lo, lo, %r1; }
	{ ts: .branchtargets lab12, lab7; brx.idx %r1, ts; }
lab7: { fs: .calltargets one, two; mov.u64 %rd2, one; { .param .b32 a; .param .b32 b; call (b), %rd2, (a), fs; } }
	@%p1 call gone; { .param .align 16 .b8 x[16]; .param .align 16 .b8 y[16]; call (x), wide, (y); }
	.pragma "used_bytes_mask 0xf";
	ld.global.u32 %r1, [both+4]; st.global.v2.u32 [%rd1], {add, %r1};
lab12: ret;
}
"""


def test_what_llvm_never_prints_survives(tmp_path: Path) -> None:
    source = function("one") + function("two", "add.u32 %r1, %r1, 2;") + ODD
    made = split(source, form="closed", head=HEAD.replace("8.0", "8.3"))
    text = made.slice("all")
    for said in (
        ".noreturn",
        ".minnctapersm 1",
        ".calltargets one, two;",
        '.pragma "nounroll";',
        "{add, %r1}",
        ".common .global .align 4 .b8 both[8];",
    ):
        assert said in text
    assert code(text, tmp_path)["all"] == code(HEAD.replace("8.0", "8.3") + source, tmp_path)["all"]


def test_symbols_that_read_like_opcodes_and_strings_that_hold_braces(tmp_path: Path) -> None:
    made = split(
        ".global .u32 add, exit;",
        ".global .u32 v<3>;",
        function("min"),
        entry("a", "ld.global.u32 %r1, [add]; add.u32 %r1, %r1, 1; st.global.u32 [add], %r1; ld.global.u32 %r2, [v2];" + call("min")),
        entry("b", "@%p1 exit; ld.global.u32 %r1, [exit]; exit;"),
        '.file 1 "a { b } // c.cu"',
        lines=True,
    )
    assert made.unit("a").state == ("add", "v2")
    assert made.unit("b").state == ("exit",)
    code(made.slice("a"), tmp_path, "-c")


LINES = '.file 7 "far.cu"\n.file 3 "near.cu", 1234, 56\n'


def test_s6_line_information_stays_where_it_is_asked_for(tmp_path: Path) -> None:
    sections = ".section .debug_info\n{\n.b32 7\n$L__info_string0:\n.b8 66,0\n}\n.section .debug_loc\t{\t}\n"
    body = ".loc 3 12 1\n add.u32 %r1, %r1, 1;\n.loc 7 2 3, function_name $L__info_string0, inlined_at 3 12 1\nadd.u32 %r1, %r1, 2;"
    statements = (entry("a", body), entry("b", ".loc 7 1 1\n"), LINES, sections)
    head = HEAD.replace("sm_80", "sm_80, debug")
    bare = split(*statements, head=head)
    assert ".loc" not in bare.slice("a")
    assert ".file" not in bare.slice("a")
    assert ".target sm_80\n" in bare.slice("a")
    assert bare.unit("a").slice == split(entry("a", "add.u32 %r1, %r1, 1; \n add.u32 %r1, %r1, 2;").replace("; \n", ";\n")).unit("a").slice
    (note,) = bare.index.notes
    assert "DWARF" in note
    kept = split(*statements, head=head, lines=True)
    assert ".loc 1 12 1\n" in kept.slice("a")
    assert ".loc 2 2 3\nadd" in kept.slice("a")
    assert kept.slice("a").endswith('.file 1 "near.cu"\n.file 2 "far.cu"\n')
    assert kept.slice("b").endswith('.file 1 "far.cu"\n')
    code(kept.slice("a"), tmp_path, "-lineinfo")


def test_d1_twins_have_one_body() -> None:
    made = split(
        entry("a", parameters=".param .u64 a_param_0"), entry("b", parameters=".param .u64 b_param_0"), entry("c", "add.u32 %r1, %r1, 1;")
    )
    assert made.unit("a").body == made.unit("b").body != made.unit("c").body
    assert made.unit("a").slice != made.unit("b").slice


def test_what_a_body_declares_for_good_is_refused_where_it_would_be_several() -> None:
    with pytest.raises(RefusedError, match="function f declares kept in its body"):
        split(function("f", ".global .u32 kept;\n"), entry("a", call("f")))
    assert split(entry("a", ".global .u32 kept; ld.global.u32 %r1, [kept];")).index.units


def test_shared_memory_of_a_function_that_state_leads_to_is_not_doubled() -> None:
    statements = (
        ".shared .u32 s;",
        function("f", "ld.shared.u32 %r1, [s];"),
        ".visible .global .u64 t = f;",
        entry("a", "st.shared.u32 [s], %r1; ld.global.u64 %rd1, [t];"),
    )
    with pytest.raises(RefusedError, match="both use shared memory s"):
        split(*statements)
    assert split(*statements, form="closed").joined() == [(["a"], "")]


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        (HEAD + ".visible .entry k() {\n", "k.ptx:4", "opens a brace that nothing closes"),
        (HEAD + "\n.visible .entry k() { ret; }\n}\n", "k.ptx:6", "does not"),
        (HEAD + ".visible .entry k() { ret; } .global .u32 x", "k.ptx:4", "does not end"),
        (HEAD + "/* open\n.visible .entry k() { ret; }", "k.ptx:4", "does not"),
        (".target sm_80\n.visible .entry k() { ret; }", "k.ptx", r"not PTX: no \.version"),
        ("#include <x>\n", "k.ptx:1", "does not"),
        (HEAD + ".visible .entry k() { ret; } .visible .entry k() { ret; }", "k.ptx", "k is defined twice"),
        (HEAD + ".global .u32 x; .visible .global .u32 x;", "k.ptx", "x is defined twice"),
        (HEAD + ".alias a, b;", "k.ptx", "alias a stands for b"),
        (HEAD + entry("a") + "\n" + HEAD + entry("b"), "k.ptx:13", "is a second head: one file holds one module"),
        (HEAD + entry("a") + ".target sm_70\n" + entry("b"), "k.ptx:12", "is a second head: one file holds one module"),
        (HEAD + '// \u00fc\n.file 1 "\u00fc.cu"\n' + entry("k\u00e4"), "k.ptx:7", "'\u00e4' stands outside comments and strings"),
        (HEAD + "\ufeff" + entry("a"), "k.ptx:4", "stands outside comments and strings"),
        (HEAD.replace("64", "32") + ".entry k() { ret; }", "k.ptx", r"\.address_size is 32"),
        (HEAD.replace("sm_80", "sm_90a") + ".entry k() { ret; }", "k.ptx", r"its \.target is sm_90a, which cannot be built for sm_90"),
        (HEAD.replace("sm_80", "sm_100") + ".entry k() { ret; }", "k.ptx", r"its \.target is sm_100, which cannot be built for sm_90"),
    ],
)
def test_s13_broken_ptx_is_an_error_with_its_place(text: str, where: str, said: str) -> None:
    with pytest.raises(SourceError, match=said) as caught:
        split(head=text)
    assert caught.value.source == where


@pytest.mark.parametrize(("named", "hint"), [("banana", "no architecture is called so"), ("sm_100a", "name sm_100a in GPU_ARCHS")])
def test_a_target_that_does_not_fit_has_a_hint_that_does(named: str, hint: str) -> None:
    with pytest.raises(SourceError, match=f"its .target is {named}") as caught:
        split(head=HEAD.replace("sm_80", named) + entry("a"))
    assert hint in caught.value.hint


def test_the_mark_that_editors_put_first_is_no_text(tmp_path: Path) -> None:
    """ptxas does not read it, Windows' editors write it."""
    path = tmp_path / "k.ptx"
    path.write_bytes(b"\xef\xbb\xbf" + (HEAD + entry("a")).replace("\n", "\r\n").encode())
    assert read_ptx(path, name="k.ptx", target=parse("sm_90")[0]) == HEAD + entry("a")


def test_m4_nothing_is_no_kernel_and_no_error() -> None:
    assert split(head="").index.units == ()
    assert split(head="// nothing\n/* at\nall */\n").index.units == ()
    assert split().index.units == ()


def test_hundreds_of_strings_are_looked_at_once() -> None:
    """A count, not a time: each statement is taken apart once, whatever the number of strings."""
    printf = ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 v);"
    says = "mov.u64 %rd1, $str${}; {{ .param .b64 f; .param .b64 v; .param .b32 r; st.param.b64 [f], %rd1; call (r), vprintf, (f, v); }}"
    strings = [f".global .align 1 .b8 $str${number}[2] = {{1, 2}};" for number in range(200)]
    ptx_uses._indexed.cache_clear()
    made = split(printf, *strings, entry("a", "\n".join(says.format(number) for number in range(200))))
    assert made.index.state == ()
    assert ptx_uses._indexed.cache_info().misses == 1
