from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st

from scons_gpu.errors import GpuError, LinkError, MissingSymbolError
from scons_gpu.link import elf
from scons_gpu.link.ptx import PtxPart, merge, merge_ptx
from scons_gpu.toolchain.arch import parse

PTXAS = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/bin/ptxas"))
HEAD = ".version 7.8\n.target sm_90\n.address_size 64\n"


def kernel(name: str, body: str = "ret;", parameters: str = ".param .u64 p") -> str:
    return f".visible .entry {name}({parameters})\n{{\n\t.reg .b32 %r<9>;\n\t.reg .b64 %rd<9>;\n\t{body}\n}}\n"


def part(label: str, *statements: str, head: str = HEAD) -> PtxPart:
    return PtxPart(label, head + "\n".join(statements))


def lower(ir: str) -> str:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(ir, llvm.create_context())
    machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(cpu="sm_90", features="+ptx78", opt=3)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return machine.emit_assembly(module)


def assemble(ptx: str, folder: Path, *options: str) -> Path:
    (folder / "in.ptx").write_text(ptx)
    done = subprocess.run(
        [PTXAS, "-arch=sm_90", *options, "in.ptx", "-o", "out.cubin"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr + ptx
    return folder / "out.cubin"


def code(cubin: Path) -> dict[str, bytes]:
    with cubin.open("rb") as file:
        return {s.name.removeprefix(".text."): s.data() for s in ELFFile(file).iter_sections() if s.name.startswith(".text.")}


def symbols(cubin: Path) -> list[str]:
    with cubin.open("rb") as file:
        return [symbol.name for symbol in ELFFile(file).get_section_by_name(".symtab").iter_symbols()]


def resources(cubin: Path) -> dict[str, elf.KernelResources]:
    return {each.symbol: each for each in elf.read(cubin.read_bytes()).kernels}


# A helper, a string, static and dynamic shared memory, recursion, a function table: each unit brings its own under the same names.
UNIT = """
target triple = "nvptx64-nvidia-cuda"
@table = internal constant [2 x ptr] [ptr @inc, ptr @dec]
@tile = internal addrspace(3) global [32 x i32] undef, align 4
@both = internal addrspace(3) global [NUMBER x i32] undef, align 4
@dyn = external addrspace(3) global [0 x i32], align ALIGN
define internal i32 @inc(i32 %v) noinline {
  %r = add i32 %v, NUMBER
  ret i32 %r
}
define internal void @keep(i32 %t) noinline {
  %p = getelementptr [NUMBER x i32], ptr addrspace(3) @both, i32 0, i32 %t
  store volatile i32 %t, ptr addrspace(3) %p
  ret void
}
define internal i32 @dec(i32 %v) noinline {
  %r = sub i32 %v, 1
  ret i32 %r
}
define internal i32 @fib(i32 %n) {
  %c = icmp slt i32 %n, NUMBER
  br i1 %c, label %base, label %more
base:
  ret i32 %n
more:
  %a = sub i32 %n, 1
  %b = sub i32 %n, 2
  %x = call i32 @fib(i32 %a)
  %y = call i32 @fib(i32 %b)
  %s = add i32 %x, %y
  ret i32 %s
}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @vprintf(ptr, ptr)
define ptx_kernel void @NAME_calls(ptr addrspace(1) %x, i32 %n) {
  %v = load i32, ptr addrspace(1) %x
  %a = call i32 @inc(i32 %v)
  %f = call i32 @fib(i32 %a)
  store i32 %f, ptr addrspace(1) %x
  %p = call i32 @vprintf(ptr null, ptr null)
  ret void
}
define ptx_kernel void @NAME_shared(ptr addrspace(1) %x, i32 %n) {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %p = getelementptr [32 x i32], ptr addrspace(3) @tile, i32 0, i32 %t
  %d = getelementptr [0 x i32], ptr addrspace(3) @dyn, i32 0, i32 %t
  call void @keep(i32 %t)
  %q = load volatile i32, ptr addrspace(3) @both
  store i32 %q, ptr addrspace(3) %p
  store i32 %n, ptr addrspace(3) %d
  %v = load i32, ptr addrspace(3) @tile
  store i32 %v, ptr addrspace(1) %x
  ret void
}
"""


def unit(name: str, number: int, align: int) -> str:
    return lower(UNIT.replace("NAME", name).replace("NUMBER", str(number)).replace("ALIGN", str(align)))


def test_units_with_equal_local_names_keep_their_machine_code(tmp_path: Path) -> None:
    texts = {name: unit(name, number, align) for name, number, align in (("a", 3, 4), ("b", 5, 16), ("c", 7, 8))}
    merged = merge_ptx([PtxPart(name, text) for name, text in texts.items()])
    image = assemble(merged, tmp_path)
    together, taken = code(image), resources(image)
    for name, text in texts.items():
        cubin = assemble(text, tmp_path)
        alone = code(cubin)
        assert {f"{name}_calls", f"{name}_shared"} <= set(alone)
        for symbol in (f"{name}_calls", f"{name}_shared"):
            assert together[symbol] == alone[symbol]
            assert taken[symbol] == resources(cubin)[symbol]
    assert merged.count(".extern .func") == 1
    assert [line for line in merged.splitlines() if "dyn[" in line] == [".extern .shared .align 16 .b8 dyn[];"]


def helper(name: str, body: str) -> str:
    return f".func {name}()\n{{\n\t.reg .b32 %r<9>;\n\t.reg .b64 %rd<9>;\n{body}\n$L__BB0_1:\n\tret;\n}}"


def test_a_function_that_several_parts_have_alike_stands_once(tmp_path: Path) -> None:
    """Also where it calls itself through another one, and where LLVM numbered its labels otherwise."""
    alike = [".func even();", helper("odd", "\tcall even;"), helper("even", "\tbar.sync 0;\n\tcall odd;")]
    other = [text.replace("BB0_1", "BB7_1") for text in alike]
    merged = merge_ptx([part("a", *alike, kernel("a", "call odd;\n\tret;")), part("b", *other, kernel("b", "call odd;\n\tret;"))])
    assert len(re.findall(r"^\.func \w+\(\)\n\{", merged, re.MULTILINE)) == 2
    assert len(set(re.findall(r"call (odd__\w+);\n\tret", merged))) == 1
    assemble(merged, tmp_path)


def test_a_function_that_calls_what_differs_is_another_one(tmp_path: Path) -> None:
    texts = [
        part(
            name,
            f".global .u32 limit = {number};",
            helper("inner", f"\tld.global.u32 %r1, [{use}];"),
            helper("outer", "\tcall inner;"),
            body,
        )
        for name, number, use in (("a", 1, "limit"), ("b", 2, "limit"), ("c", 2, "limit"), ("d", 2, "limit+0"))
        for body in [kernel(name, "call outer;\n\tret;")]
    ]
    merged = merge_ptx(texts)
    called = re.findall(r"call (outer__\w+);\n\tret", merged)
    assert len(called) == 4
    assert called[1] == called[2]
    assert len(set(called)) == 3
    assert len(re.findall(r"^\.global \.u32 limit__\w+ = 2;", merged, re.MULTILINE)) == 1
    assemble(merged, tmp_path)


def test_what_is_alike_stands_before_whoever_comes_first(tmp_path: Path) -> None:
    """`a` needs a variable of `b`, so `b` comes first, and brings what both have."""
    alike = helper("alike", "\tbar.sync 0;")
    merged = merge_ptx(
        [
            part("a", ".extern .global .u32 state;", alike, kernel("a", "call alike;\n\tld.global.u32 %r1, [state];\n\tret;")),
            part("b", ".visible .global .u32 state;", alike, kernel("b", "call alike;\n\tret;")),
        ]
    )
    assert merged.index(".func alike__") < merged.index(".entry b") < merged.index(".entry a")
    assemble(merged, tmp_path)


def test_lines_of_two_files_are_not_alike() -> None:
    texts = [part(name, f'.file 1 "{name}.cu"', helper("f", "\t.loc 1 2 3"), kernel(name, "call f;\n\tret;")) for name in "ab"]
    assert len(set(re.findall(r"call (f__\w+);", merge_ptx(texts)))) == 2


def test_l5_each_line_knows_its_part() -> None:
    texts = [part("first", ".visible .global .u32 one;"), part("second", kernel("two"), kernel("three")), part("third", kernel("four"))]
    merged = merge(texts)
    lines = merged.text.split("\n")
    where = {
        name: merged.label_at(next(n for n, line in enumerate(lines, start=1) if name in line)) for name in ("one", "two", "three", "four")
    }
    assert where == {"one": "first", "two": "second", "three": "second", "four": "third"}
    assert merged.label_at(1) == ""
    alone = merge(texts[:1])
    assert (alone.text, alone.label_at(2)) == (texts[0].text, "first")


def test_a_unit_more_leaves_the_text_of_the_others_alone() -> None:
    texts = [PtxPart(name, unit(name, 3, 4)) for name in "abc"]
    two, three = merge_ptx(texts[:2]), merge_ptx(texts)
    assert three.startswith(two.rstrip())


def test_labels_and_paths_leave_no_trace() -> None:
    text = unit("a", 3, 4), unit("b", 5, 4)
    one = merge_ptx([PtxPart("/home/somebody/x.cu", text[0]), PtxPart("y", text[1])])
    assert one == merge_ptx([PtxPart("p", text[0]), PtxPart("q", text[1])])
    assert "somebody" not in one


def test_g1_state_stands_once_and_before_its_uses(tmp_path: Path) -> None:
    uses = [
        part(
            name,
            ".extern .global .align 4 .u32 counter;\n.extern .const .align 4 .b8 coef[16];",
            kernel(name, "ld.const.u32 %r1, [coef+4];\n\tst.global.u32 [counter], %r1;\n\tret;"),
        )
        for name in ("first", "second")
    ]
    state = part(
        "state",
        ".visible .global .align 4 .u32 counter;",
        ".visible .const .align 4 .b8 coef[16];",
        ".visible .global .align 4 .u32 host_only;",
    )
    merged = merge_ptx([*uses, state])
    assert len(re.findall(r"\bcounter;", merged)) == 1
    assert ".extern" not in merged
    assert merged.index("counter;") < merged.index("first")
    names = symbols(assemble(merged, tmp_path))
    assert [names.count(name) for name in ("counter", "coef", "host_only", "first", "second")] == [1] * 5


def test_g3_tables_stay_only_where_they_are_asked_for() -> None:
    tables = [
        PtxPart("t1", HEAD + ".visible .global .align 8 .u64 t1[1] = {t2};", optional=True),
        PtxPart("t2", HEAD + ".visible .global .align 4 .u32 t2 = 7;", optional=True),
        PtxPart("t3", HEAD + ".visible .global .align 4 .u32 t3 = 7;", optional=True),
    ]
    tables[0] = PtxPart("t1", HEAD + ".extern .global .align 4 .u32 t2;\n.visible .global .align 8 .u64 t1[1] = {t2};", optional=True)
    merged = merge_ptx(
        [
            part(
                "u", ".extern .global .align 8 .u64 t1[1];", kernel("k", "ld.global.u64 %rd1, [t1];\n\tst.global.u64 [%rd1], %rd1;\n\tret;")
            ),
            *tables,
        ]
    )
    assert merged.index("t2 = 7") < merged.index("t1[1] = {t2}") < merged.index("entry k")
    assert "t3" not in merged


def test_a_variable_that_no_part_defines_is_named() -> None:
    with pytest.raises(MissingSymbolError, match=r"kernel k of a\.cu uses the variable lost, which no part"):
        merge_ptx(
            [
                part("kernel k of a.cu", ".extern .global .u32 lost;", kernel("k", "ld.global.u32 %r1, [lost];\n\tret;")),
                part("b", kernel("b")),
            ]
        )


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (HEAD.replace("sm_90", "sm_90a"), r"differ in \.target: a has sm_90, b has sm_90a"),
        (HEAD.replace("sm_90", "sm_90, debug"), r"differ in \.target: a has sm_90, b has sm_90, debug"),
        (HEAD.replace("sm_90", "sm_90, texmode_independent"), r"differ in \.target"),
        (HEAD.replace("64", "32"), r"differ in \.address_size"),
    ],
)
def test_l4_parts_of_different_options_are_refused_and_named(head: str, said: str) -> None:
    with pytest.raises(LinkError, match=said):
        merge_ptx([part("a", kernel("a")), part("b", kernel("b"), head=head)])


def test_parts_written_for_older_tools_join_those_for_newer_ones(tmp_path: Path) -> None:
    old = HEAD.replace("7.8", "7.0").replace("sm_90", "sm_80")
    newer = HEAD.replace("7.8", "10.1").replace("sm_90", "sm_100")
    merged = merge_ptx([part("a", kernel("a")), part("b", kernel("b"), head=old)])
    assert merged.startswith(HEAD)
    assert set(code(assemble(merged, tmp_path))) == {"a", "b"}
    assert merge_ptx([part("b", kernel("b"), head=old), part("a", kernel("a")), part("c", kernel("c"), head=newer)]).startswith(newer)


@pytest.mark.parametrize("parts", [1, 2])
def test_what_was_written_for_an_older_gpu_is_for_the_wanted_one(parts: int) -> None:
    old = HEAD.replace("7.8", "7.1").replace("sm_90", "sm_80")
    texts = [part(name, kernel(name), head=old) for name in ("a", "b")[:parts]]
    assert merge_ptx(texts, target=parse("compute_90")[0]).startswith(".version 7.8\n.target sm_90\n")
    assert merge_ptx(texts, target=parse("compute_80")[0]).startswith(old)
    specific = [part("a", kernel("a"), head=HEAD.replace("sm_90", "sm_90a"))]
    assert merge_ptx(specific, target=parse("compute_90a")[0]) == specific[0].text


def test_prototypes_that_two_compilers_print_are_one() -> None:
    ours = ".extern .func (.param .b32 r) vprintf(.param .b64 one, .param .b64 two);"
    theirs = ".extern .func  (.param .b32 func_retval0) vprintf\n(\n\t.param .b64 vprintf_param_0,\n\t.param .b64 vprintf_param_1\n)\n;"
    call = kernel("NAME", "{ .param .b64 p; .param .b64 q; .param .b32 r; call (r), vprintf, (p, q); }\n\tret;")
    merged = merge_ptx([part("a", ours, call.replace("NAME", "a")), part("b", theirs, call.replace("NAME", "b"))])
    assert merged.count(".extern") == 1


def test_l3_empty_parts_are_dropped_and_none_is_an_error() -> None:
    full = part("a", kernel("a"))
    assert merge_ptx([PtxPart("empty", ""), full, PtxPart("comment", "// nothing\n/* at all */\n")]) == full.text
    with pytest.raises(LinkError, match="no part holds any PTX"):
        merge_ptx([PtxPart("empty", "\n")])


def test_one_name_of_two_parts_is_refused() -> None:
    with pytest.raises(LinkError, match="k is defined by both a and b"):
        merge_ptx([part("a", kernel("k")), part("b", kernel("k", "add.s32 %r1, %r1, 1;\n\tret;"))])


def test_d6_equal_weak_state_is_one_and_different_is_refused() -> None:
    weak = ".weak .global .align 4 .u32 x = 3;"
    use = kernel("k", "st.global.u32 [x], %r1;\n\tret;")
    merged = merge_ptx([part("a", weak, use), part("b", "// said otherwise\n" + weak.replace(" = ", "  =  "), use.replace("k(", "l("))])
    assert merged.count(".weak") == 1
    with pytest.raises(LinkError, match="x is defined differently by a and b"):
        merge_ptx([part("a", weak), part("b", weak.replace("3", "4"))])
    with pytest.raises(LinkError, match="x is defined by both a and b"):
        merge_ptx([part("a", weak), part("b", weak.replace("weak", "visible"))])


def test_equal_weak_functions_are_one_though_llvm_numbers_their_labels(tmp_path: Path) -> None:
    ir = """
target triple = "nvptx64-nvidia-cuda"
define weak_odr i32 @sum(i32 %n, i32 %m) noinline {
  %c = icmp slt i32 %n, 2
  br i1 %c, label %base, label %more
base:
  ret i32 %n
more:
  %a = sub i32 %n, %m
  %x = call i32 @sum(i32 %a, i32 %m)
  %s = mul i32 %x, %n
  ret i32 %s
}
define ptx_kernel void @k(ptr addrspace(1) %x, i32 %n) {
  %s = call i32 @sum(i32 %n, i32 3)
  store i32 %s, ptr addrspace(1) %x
  ret void
}
"""
    before = "define i32 @pad(i32 %n) {\n  %c = icmp slt i32 %n, 2\n  br i1 %c, label %b, label %m\nb:\n  store i32 0, ptr null\n  ret i32 1\nm:\n  ret i32 %n\n}\n"
    one, other = lower(ir), lower(ir.replace("@k(", "@l(").replace("define weak", before + "define weak", 1))
    merged = merge_ptx([PtxPart("a", one), PtxPart("b", other)])
    assert len(re.findall(r"\.weak \.func[^;{]*\{", merged)) == 1
    assert {"k", "l"} <= set(code(assemble(merged, tmp_path)))


def test_a_function_that_another_part_defines_is_declared_before_it_is_called(tmp_path: Path) -> None:
    caller = part(
        "a",
        ".extern .func (.param .b32 r) twice(.param .b32 v);",
        kernel("k", "{ .param .b32 i; .param .b32 o; call (o), twice, (i); }\n\tret;"),
    )
    callee = part("b", ".visible .func (.param .b32 r) twice(.param .b32 v)\n{\n\tret;\n}")
    merged = merge_ptx([caller, callee])
    assert ".extern" not in merged
    assert "k" in code(assemble(merged, tmp_path))


def test_declarations_that_disagree_are_refused() -> None:
    one = part("a", ".extern .func f(.param .b32 v);", kernel("k"))
    assert merge_ptx([one, part("b", ".extern .func f(.param .b32 otherwise);", kernel("l"))]).count(".extern") == 1
    with pytest.raises(LinkError, match="f is declared differently by a and b"):
        merge_ptx([one, part("b", ".extern .func f(.param .b64 v);", kernel("l"))])


def test_s10_names_in_strings_and_comments_are_left_alone(tmp_path: Path) -> None:
    body = 'call note; // note is called; { note\n\t/* note } " */ .pragma "note";\n\tret;'
    texts = [part(name, f"// note\n.func note()\n{{\n\t.reg .b32 %{name};\n\tret; // }}\n}}", kernel(name, body)) for name in "ab"]
    merged = merge_ptx(texts)
    assert merged.count('"note"') == 2
    assert merged.count("// note is called; { note\n") == 2
    assert len(set(re.findall(r"call (note__[0-9a-f]{16});", merged))) == 2
    assert {"a", "b"} <= set(code(assemble(merged, tmp_path)))


def test_numbers_registers_and_modifiers_are_no_names(tmp_path: Path) -> None:
    body = "mov.b32 %f, 0f3F800000;\n\tst.global.f32 [f3F800000], %f;\n\tld.global.u32 %r1, [b32+4];\n\tret;"
    statements = ".global .f32 f3F800000;", ".global .u32 b32[{}], u32;"
    register = ".reg .f32 %f;\n\t"
    merged = merge_ptx([part(name, statements[0], statements[1].format(ord(name)), kernel(name, register + body)) for name in "ab"])
    assert merged.count(", 0f3F800000;") == 2
    assert "[f3F800000]" not in merged
    assert merged.count("ld.global.u32 %r1, [b32__") == 2
    assert len(set(re.findall(r", (u32__\w+);", merged))) == 2
    assemble(merged, tmp_path)


def test_shared_arrays_keep_the_largest_alignment_and_size(tmp_path: Path) -> None:
    use = "mov.u64 %rd1, s;\n\tst.shared.u32 [%rd1], %r1;\n\tret;"
    declared = ".extern .shared .align 4 .b8 s[];", ".extern .shared .align 16 .v2 .f32 s[8];", ".extern .shared .u64 s[2][2];"
    merged = merge_ptx([part(name, text, kernel(name, use)) for name, text in zip("abc", declared, strict=True)])
    assert re.findall(r".*\.shared.*s\[.*", merged) == [".extern .shared .align 16 .b8 s[64];"]
    assemble(merged, tmp_path)


def test_aliases_follow_their_function(tmp_path: Path) -> None:
    text = ".visible .func NAME_f();\n.func g()\n{\n\tret;\n}\n.alias NAME_f, g;\n" + kernel("NAME", "call NAME_f;\n\tret;")
    merged = merge_ptx([part(name, text.replace("NAME", name)) for name in "ab"])
    assert re.search(r"\.alias a_f, g__[0-9a-f]{16};", merged)
    assert {"a", "b"} <= set(code(assemble(merged, tmp_path)))


def test_s6_files_are_numbered_anew_and_lines_survive(tmp_path: Path) -> None:
    def lines(name: str, *files: str) -> PtxPart:
        body = f".loc {len(files)} 7 3\n\tst.global.u32 [%rd1], %r1; // .loc 9 9 9\n\t.loc 1 8 0\n\tret;"
        return part(name, kernel(name, body), *(f'\t.file\t{number} "{file}"' for number, file in enumerate(files, 1)))

    merged = merge_ptx([lines("a", "/t/a.cu", "/t/odd, 'name' // x.h"), lines("b", "/t/b.cu", "/t/a.cu")])
    assert re.findall(r"\.file\s+(\d+) (.*)", merged) == [("1", '"/t/a.cu"'), ("2", "\"/t/odd, 'name' // x.h\""), ("3", '"/t/b.cu"')]
    assert re.findall(r"\.loc (\d+ [78])", merged) == ["2 7", "1 8", "1 7", "3 8"]
    assert merged.count("// .loc 9 9 9") == 2
    assemble(merged, tmp_path, "-lineinfo")


def test_s6_a_line_of_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(LinkError, match=r"a: its PTX has a \.loc for file 3"):
        merge_ptx([part("a", kernel("a", ".loc 3 1 1\n\tret;")), part("b", kernel("b"))])


DEBUG = HEAD.replace("sm_90", "sm_90, debug")


def test_debug_sections_are_refused_or_left_out_and_told(tmp_path: Path) -> None:
    def debug(name: str) -> PtxPart:
        body = ".loc 1 7 3, function_name info0, inlined_at 1 5 2\n\tret;"
        return part(
            name,
            kernel(name, body),
            '.file 1 "/t/a.cu"',
            ".section .debug_str\n{\ninfo0:\n.b8 102,0\n}",
            ".section .debug_macinfo { }",
            head=DEBUG,
        )

    with pytest.raises(LinkError, match="debug information of several units does not merge into one PTX module: a and 1 more"):
        merge_ptx([debug("a"), debug("b")])
    said: list[str] = []
    merged = merge_ptx([debug("a"), debug("b")], warn=said.append)
    assert said == ["debug information does not merge into one PTX module, line tables do; left out: that of a and 1 more"]
    assert "debug" not in merged
    assert merged.count(".loc 1 7 3\n") == 2
    assemble(merged, tmp_path, "-lineinfo")
    assert merge_ptx([debug("a")]) == debug("a").text


def test_empty_debug_sections_say_nothing() -> None:
    merged = merge_ptx([part(name, kernel(name), ".section\t.debug_macinfo\t{\t}") for name in "ab"])
    assert "section" not in merged


def test_module_wide_pragmas_must_agree() -> None:
    pragma = '.pragma "nounroll";'
    assert merge_ptx([part("a", pragma, kernel("a")), part("b", pragma, kernel("b"))]).count("nounroll") == 1
    with pytest.raises(LinkError, match=r"differ in their module-wide \.pragma"):
        merge_ptx([part("a", pragma, kernel("a")), part("b", kernel("b"))])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "a: line 1 of its PTX does not end: hello"),
        ("hello;", "a: line 1 of its PTX does not read: hello;"),
        (HEAD + "\n.visible .entry k() {\n ret;\n", r"a: line 5 of its PTX opens a brace that nothing closes"),
        (HEAD + ".nonsense 3;", r"a: line 4 of its PTX does not read: \.nonsense 3;"),
        (".visible .func f() { }", r"a: not PTX: no \.version and no \.target"),
        (HEAD + ".func " + ".b8 " * 200 + ";", "line 4 of its PTX does not read"),
        (HEAD + ".weak .global .u32 x, y;", "declares several names at once"),
        ("\x7fELF\x02\x01\x01", "a: line 1 of its PTX does not end"),
    ],
)
def test_l3_what_is_no_ptx_is_named_with_its_line(text: str, said: str) -> None:
    with pytest.raises(LinkError, match=said):
        merge_ptx([PtxPart("a", text), part("b", kernel("b"))])


def test_two_parts_that_use_each_others_variables_are_refused() -> None:
    with pytest.raises(LinkError, match="each use a variable that the other defines"):
        merge_ptx(
            [
                part("a", ".extern .global .u32 y;", ".visible .global .u32 x;"),
                part("b", ".extern .global .u32 x;", ".visible .global .u32 y;"),
            ]
        )


@given(
    st.lists(
        st.sampled_from(["f", "%f", ".f", "f3", "0f3F800000", "_f", "$f", "f$", " ", "\n", "+", "[", "]", ",", "// f\n", '"f"', "/*f*/"]),
        max_size=40,
    )
)
def test_renaming_touches_whole_names_only(tokens: list[str]) -> None:
    text = " ".join(tokens)
    merged = merge_ptx([part("a", ".global .u32 f;", f".visible .func g()\n{{\n{text}\n}}"), part("b", kernel("b"))])
    body = merged[merged.index("g()\n{\n") + 6 :]
    suffix = re.search(r"\.u32 f(__[0-9a-f]{16});", merged)
    assert suffix
    expected = " ".join("f" + suffix[1] if each == "f" else each for each in tokens)
    assert body.startswith(expected + "\n}")


SAMPLE = (
    HEAD
    + """.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.extern .shared .align 4 .b8 dyn[];
.global .align 1 .b8 str[3] = {104, 105, 0};
.weak .global .align 8 .u64 table[1] = {helper};
.func helper() // "a comment
{
	.pragma "nounroll";
	.loc 1 2 3
	mov.u64 %rd1, str; /* { */
	ret;
}
"""
    + kernel("k", "{ call helper; }\n\tret;")
    + '.file 1 "a.cu"\n.section .debug_macinfo { }\n.alias other, k;\n'
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 1),
            st.integers(0, 30),
            st.sampled_from(["", "{", "}", ";", '"', "//", "/*", "*/", "(", ",", "=", ".extern ", "\n", "k"]),
        ),
        max_size=3,
    )
)
def test_s13_damaged_ptx_gives_a_clean_error_or_a_module(damage: list[tuple[float, int, str]]) -> None:
    text = SAMPLE
    for place, length, put in damage:
        start = int(place * len(text))
        text = text[:start] + put + text[start + length :]
    merged = ""
    with suppress(GpuError):
        merged = merge_ptx([PtxPart("a", text), part("b", kernel("b"))], warn=lambda _: None)
    assert not merged or merged.startswith(".version")


def test_s4_a_kernel_that_names_a_kernel_before_and_behind_its_body(tmp_path: Path) -> None:
    """ptxas takes an entry's prototype behind its body for a second definition."""
    names = kernel("names", "ld.param.b64 %rd1, [p]; mov.b64 %rd2, target; st.global.b64 [%rd1], %rd2; ret;")
    naming, named = part("naming", ".visible .entry target(.param .u64 p);", names), part("named", kernel("target"))
    for parts in ([naming, named], [named, naming]):
        assert {"names", "target"} <= set(symbols(assemble(merge_ptx(parts), tmp_path)))
