"""libNVVM, the real one: what it makes of a unit, and what becomes of that before anybody sees it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scons_gpu.errors import MissingSymbolError, SourceError, ToolError, ToolMissingError, UsageError
from scons_gpu.lower.joining import Group
from scons_gpu.lower.libnvvm import LAYOUT, facts, load
from scons_gpu.lower.nvvm import arguments, lower
from scons_gpu.lower.options import LowerOptions
from scons_gpu.toolchain.arch import Target, parse
from scons_gpu.toolchain.tables import PTX_OF_CUDA

NVIDIA = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13"))
LIBDEVICE = str(NVIDIA / "nvvm/libdevice/libdevice.10.bc")
LIBRARY = str(next(NVIDIA.glob("lib*/libnvvm.so.4")))
SM_100 = Target("sm_100", real=True)
PTX = max(PTX_OF_CUDA.values())
PLAIN = LowerOptions(ptx=PTX, by="nvvm")
HEAD = 'target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"\ntarget triple = "nvptx64-nvidia-cuda"\n'
ARITHMETIC = (
    HEAD
    + """
define ptx_kernel void @k(ptr addrspace(1) %p, float %x, float %y) {
  %q = fdiv float %x, %y
  %r = call float @llvm.sqrt.f32(float %q)
  %m = fmul float %r, %x
  %a = fadd float %m, %y
  store float %a, ptr addrspace(1) %p
  ret void
}
declare float @llvm.sqrt.f32(float)
"""
)
LINES = (
    HEAD
    + """
define ptx_kernel void @k(ptr addrspace(1) %p) !dbg !5 {
  %v = load float, ptr addrspace(1) %p, !dbg !8
  %w = fmul float %v, %v, !dbg !9
  store float %w, ptr addrspace(1) %p, !dbg !9
  ret void, !dbg !9
}
!llvm.dbg.cu = !{!0}
!llvm.module.flags = !{!2}
!0 = distinct !DICompileUnit(language: DW_LANG_C99, file: !1, isOptimized: false, runtimeVersion: 0, emissionKind: FullDebug)
!1 = !DIFile(filename: "k.cu", directory: "/x")
!2 = !{i32 2, !"Debug Info Version", i32 3}
!5 = distinct !DISubprogram(name: "k", file: !1, line: 1, type: !6, unit: !0, spFlags: DISPFlagDefinition)
!6 = !DISubroutineType(types: !7)
!7 = !{null}
!8 = !DILocation(line: 2, column: 1, scope: !5)
!9 = !DILocation(line: 3, column: 1, scope: !5)
"""
)
CALLS = (
    HEAD
    + """
@table = internal addrspace(1) constant [2 x ptr] [ptr @one, ptr @two]
define internal i32 @one(i32 %x) {
  ret i32 %x
}
define internal i32 @two(i32 %x) {
  %y = add i32 %x, 1
  ret i32 %y
}
define ptx_kernel void @calls(ptr addrspace(1) %p, i64 %i) {
  %g = getelementptr ptr, ptr addrspace(1) @table, i64 %i
  %f = load ptr, ptr addrspace(1) %g
  %v = call i32 %f(i32 3)
  store i32 %v, ptr addrspace(1) %p
  ret void
}
"""
)


def kernel(body: str, *, head: str = "", attributes: str = "", name: str = "k") -> str:
    return f"{HEAD}{head}define ptx_kernel void @{name}(ptr addrspace(1) %p, i64 %i, float %x) {attributes} {{\n{body}  ret void\n}}\n"


def ptx(text: str, options: LowerOptions = PLAIN, *, target: Target = SM_100, libdevice: str = LIBDEVICE, **more: object) -> str:
    return lower(text, target=target, options=options, library=LIBRARY, libdevice=libdevice, **more).text  # type: ignore[arg-type]


def assembles(text: str, folder: Path, *, arch: str = "sm_100", relocatable: bool = True) -> None:
    (folder / "k.ptx").write_text(text)
    command = [str(NVIDIA / "bin/ptxas"), f"-arch={arch}", *(["-c"] if relocatable else []), "k.ptx", "-o", "k.cubin"]
    subprocess.run(command, cwd=folder, check=True)


def test_it_takes_this_data_layout_and_no_other() -> None:
    nvvm = load(LIBRARY)
    text = re.sub('datalayout = ".*"', f'datalayout = "{LAYOUT}"', kernel("")) + nvvm.version_node
    assert ".entry k(" in nvvm.compile(text.encode(), name="k", options=["-arch=compute_100"]).text
    other = text.replace(LAYOUT, "e-i64:64-i128:128-v16:16-v32:32-n16:32:64")
    with pytest.raises(ToolError, match="DataLayout") as caught:
        nvvm.compile(other.encode(), name="k", options=["-arch=compute_100"])
    assert caught.value.hint == "GPU_LOWER=llvm lowers with LLVM"


def test_what_it_says_of_itself() -> None:
    """A contract: LLVM 22's IR from Blackwell on, an older dialect below; PTX of its own release."""
    found = facts(load(LIBRARY), ["75", "90", "90a", "100", "100a", "120f", "999"])
    assert found == {"dialects": "75=7 90=7 90a=7 100=22 100a=22 120f=22", "ptx": "95", "trouble": ""}


def test_what_is_no_library_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ToolMissingError, match=r"nowhere\.so.*cannot be used") as caught:
        load(str(tmp_path / "nowhere.so"))
    assert "GPU_LOWER=llvm" in caught.value.hint


def test_another_library_that_is_loaded_already_is_not_taken_for_it(tmp_path: Path) -> None:
    """The bindings take what was loaded first; its machine code would go by the other's name."""
    code = "import sys\nfrom scons_gpu.lower.libnvvm import load\nload(sys.argv[1])\nload(sys.argv[2])\n"
    copy = tmp_path / "libnvvm.so.4"
    copy.write_bytes(Path(LIBRARY).read_bytes())
    done = subprocess.run([sys.executable, "-c", code, LIBRARY, str(copy)], capture_output=True, text=True, check=False)
    assert f"{copy} was found, and cuda.bindings took {LIBRARY}" in done.stderr


@pytest.mark.parametrize("name", ["sm_100", "sm_100a", "sm_103", "sm_110f", "sm_120", "compute_100"])
def test_each_architecture_is_spelled_in_its_way(name: str, tmp_path: Path) -> None:
    target = parse(name)[0]
    text = ptx(ARITHMETIC, target=target)
    assert f".version {PTX // 10}.{PTX % 10}\n.target {target.cpu}\n" in text
    assembles(text, tmp_path, arch=target.cpu)


def test_every_option_is_spelled_out() -> None:
    options = LowerOptions(ptx=PTX, by="nvvm", opt=2, fast_math=True, lineinfo=True)
    said = ("-arch=compute_100", "-opt=2", "-ftz=1", "-prec-div=0", "-prec-sqrt=0", "-fma=1", "-generate-line-info")
    assert arguments(SM_100, options, flush=True) == said
    assert "-g" in arguments(SM_100, LowerOptions(ptx=PTX, debug=True, lineinfo=True), flush=False)


@pytest.mark.parametrize(
    ("options", "instructions"),
    [
        ({}, ("div.rn.f32", "sqrt.rn.f32", "fma.rn.f32")),
        ({"ftz": True}, ("div.rn.ftz.f32", "sqrt.rn.ftz.f32", "fma.rn.ftz.f32")),
        ({"fast_math": True}, ("div.full.ftz.f32", "sqrt.approx.ftz.f32", "fma.rn.ftz.f32")),
    ],
)
def test_arithmetic_is_as_exact_as_the_options_say(options: dict[str, bool], instructions: tuple[str, ...]) -> None:
    text = ptx(ARITHMETIC, LowerOptions(ptx=PTX, by="nvvm", **options))
    assert re.findall(r"\b(?:div|sqrt|fma)\.\S+", text) == list(instructions)


FLUSHES = '"denormal-fp-math-f32"="preserve-sign,preserve-sign"'


@pytest.mark.parametrize("attributes", [FLUSHES, "#0"])
def test_flushing_that_the_source_asks_for_is_kept(attributes: str) -> None:
    body = "  %a = fadd float %x, 1.0\n  store float %a, ptr addrspace(1) %p\n"
    text = kernel(body, attributes=attributes) + (f"attributes #0 = {{ {FLUSHES} }}\n" if attributes == "#0" else "")
    assert "add.ftz.f32" in ptx(text)
    assert "add.f32" in ptx(text.replace("preserve-sign", "ieee"))


def test_a_unit_of_both_kinds_is_refused() -> None:
    """libNVVM has one answer for a whole unit, and either would be wrong for one of the functions."""
    text = kernel("  call void @helper(ptr addrspace(1) %p, float %x)\n", attributes=FLUSHES)
    text += "define internal void @helper(ptr addrspace(1) %p, float %x) {\n  store float %x, ptr addrspace(1) %p\n  ret void\n}\n"
    with pytest.raises(SourceError, match="some of its functions flush denormals") as caught:
        ptx(text)
    assert "GPU_LOWER=llvm" in caught.value.hint
    assert ".entry k(" in ptx(text, LowerOptions(ptx=PTX, by="nvvm", ftz=True))


def test_libdevice_is_linked_on_demand_and_answers_for_the_options(tmp_path: Path) -> None:
    head = "declare float @__nv_sinf(float)\ndeclare float @__nv_sqrtf(float)\n"
    body = "  %s = call float @__nv_sinf(float %x)\n  %r = call float @__nv_sqrtf(float %s)\n  store float %r, ptr addrspace(1) %p\n"
    text = ptx(kernel(body, head=head))
    assert "sqrt.rn.f32" in text
    assert ".func" not in text
    assembles(text, tmp_path, relocatable=False)
    assert "sqrt.approx.ftz.f32" in ptx(kernel(body, head=head), LowerOptions(ptx=PTX, by="nvvm", fast_math=True))
    with pytest.raises(MissingSymbolError, match="__nv_sinf"):
        ptx(kernel(body, head=head), libdevice="")


def test_what_libdevice_asks_is_answered_by_the_options() -> None:
    head = '@q = private addrspace(1) constant [11 x i8] c"__CUDA_FTZ\\00"\ndeclare i32 @__nvvm_reflect(ptr)\n'
    body = "  %v = call i32 @__nvvm_reflect(ptr addrspacecast (ptr addrspace(1) @q to ptr))\n  store i32 %v, ptr addrspace(1) %p\n"
    answers = [ptx(kernel(body, head=head), LowerOptions(ptx=PTX, by="nvvm", ftz=ftz)) for ftz in (False, True)]
    assert [re.findall(r"st\.global\.b32 .*, (\d);", text) for text in answers] == [["0"], ["1"]]


def test_s1_launch_bounds_of_both_spellings_come_out() -> None:
    bounds = '"nvvm.maxntid"="128,2" "nvvm.minctasm"="2" "nvvm.maxnreg"="64"'
    text = ptx(kernel("", attributes=bounds))
    assert re.search(r"\.maxntid 128, 2\n\.minnctapersm 2\n\.maxnreg 64\n", text)
    old = HEAD + "define void @k(ptr %p) {\n  ret void\n}\n!nvvm.annotations = !{!0, !1}\n"
    old += '!0 = !{ptr @k, !"kernel", i32 1}\n!1 = !{ptr @k, !"maxntidx", i32 96}\n!nvvmir.version = !{!2}\n!2 = !{i32 1, i32 4}\n'
    assert re.search(r"\.entry k\([^)]*\)\n\.maxntid 96\n", ptx(old))


SEEN = """@state = available_externally addrspace(1) global i32 0
@counter = external addrspace(1) global i32
@table = available_externally addrspace(4) constant [4 x i32] [i32 5, i32 6, i32 7, i32 8]
@folded = available_externally addrspace(4) constant [40000 x i8] zeroinitializer
@host = addrspace(4) externally_initialized constant i32 9
"""
USES = """  %s = load i32, ptr addrspace(1) @state
  %c = load i32, ptr addrspace(1) @counter
  %a = add i32 %s, %c
  %tp = getelementptr i32, ptr addrspace(4) @table, i64 %i
  %t = load i32, ptr addrspace(4) %tp
  %b = add i32 %a, %t
  %fp = getelementptr i8, ptr addrspace(4) @folded, i64 3
  %f = load i8, ptr addrspace(4) %fp
  %w = zext i8 %f to i32
  %d = add i32 %b, %w
  %h = load i32, ptr addrspace(4) @host
  %e = add i32 %d, %h
  store i32 %e, ptr addrspace(1) @state
  store i32 %e, ptr addrspace(1) %p
"""


def test_g1_what_others_define_is_declared_and_what_folds_away_is_gone(tmp_path: Path) -> None:
    text = ptx(kernel(USES, head=SEEN))
    names = r"\b(?:state|counter|table|folded|host)\b.*"
    declarations = re.findall(rf"^\.[\w. ]*?{names}$", text, re.MULTILINE)
    assert sorted(declarations) == [
        ".extern .const .align 4 .b8 table[16];",
        ".extern .global .align 4 .u32 counter;",
        ".extern .global .align 4 .u32 state;",
        ".visible .const .align 4 .u32 host = 9;",
    ]
    assert "ld.const.b32" in text
    assembles(text, tmp_path)


def test_a_state_object_defines(tmp_path: Path) -> None:
    state = """@counter = addrspace(1) global i32 7
@twice = weak_odr addrspace(1) global [2 x i32] [i32 1, i32 2]
@scale = addrspace(4) externally_initialized constant [4 x float] zeroinitializer
@where = addrspace(1) global ptr addrspacecast (ptr addrspace(1) @counter to ptr)
@llvm.used = appending global [1 x ptr] [ptr addrspacecast (ptr addrspace(1) @twice to ptr)], section "llvm.metadata"
"""
    text = ptx(HEAD + state)
    found = re.findall(r"^(\.(?:visible|weak)) \.\w+ .*?(\w+)(?:\[\d+\])?(?: =.*)?;$", text, re.MULTILINE)
    assert found == [(".visible", "counter"), (".weak", "twice"), (".visible", "scale"), (".visible", "where")]
    assembles(text, tmp_path)


@pytest.mark.parametrize(
    ("options", "found"),
    [({}, []), ({"lineinfo": True}, [".loc"]), ({"debug": True, "opt": 0}, [".loc", ".debug_info"])],
)
def test_s6_debug_information_is_what_was_asked_for(options: dict[str, int], found: list[str], tmp_path: Path) -> None:
    text = ptx(LINES, LowerOptions(ptx=PTX, by="nvvm", **options))  # type: ignore[arg-type]
    assert [word for word in (".loc", ".debug_info") if word in text] == found
    assembles(text, tmp_path)


SHAPES = {
    "shared": kernel(
        "  %q = getelementptr i32, ptr addrspace(3) @own, i64 %i\n  store volatile i32 1, ptr addrspace(3) %q\n"
        "  %w = load volatile i32, ptr addrspace(3) @dynamic\n  store i32 %w, ptr addrspace(1) %p\n",
        head="@own = internal addrspace(3) global [64 x i32] undef\n@dynamic = external addrspace(3) global [0 x i32], align 16\n",
    ),
    "alias": kernel(
        "  %v = call float @f(float %x)\n  store float %v, ptr addrspace(1) %p\n",
        head="define internal float @g(float %x) noinline {\n  ret float %x\n}\n@f = internal alias float (float), ptr @g\n",
    ),
    "assembly": kernel('  %a = call i32 asm sideeffect "mov.u32 $0, %laneid;", "=r"()\n  store i32 %a, ptr addrspace(1) %p\n'),
    "file-scope assembly": kernel("", head='module asm ".global .u32 said;"\n'),
    "prints": kernel(
        "  %a = alloca i64\n  store i64 %i, ptr %a\n  %r = call i32 @vprintf(ptr @f, ptr %a)\n"
        "  call void @__assertfail(ptr @f, ptr @f, i32 1, ptr @f, i64 1)\n",
        head='@f = private unnamed_addr constant [4 x i8] c"%d\\0A\\00"\ndeclare i32 @vprintf(ptr, ptr)\n'
        "declare void @__assertfail(ptr, ptr, i32, ptr, i64) noreturn\n",
    ),
    "atomics": kernel(
        "  %a = atomicrmw fadd ptr addrspace(1) %p, float %x monotonic\n"
        '  %b = atomicrmw add ptr addrspace(1) %p, i32 1 syncscope("block") acq_rel\n'
        "  %c = cmpxchg ptr addrspace(1) %p, i32 1, i32 2 seq_cst seq_cst\n  fence seq_cst\n"
    ),
    "halves": kernel(
        "  %h = fptrunc float %x to half\n  %m = fmul half %h, %h\n  store volatile half %m, ptr addrspace(1) %p\n"
        "  %b = fptrunc float %x to bfloat\n  %n = fadd bfloat %b, %b\n  store volatile bfloat %n, ptr addrspace(1) %p\n"
    ),
    "a long name": kernel("", name="_Z" + "x" * 5000),
    "an attribute that nobody knows": kernel("", attributes='"no-such-attribute"="1" memory(none) nounwind willreturn'),
    "recursion": kernel(
        "  call void @again(i64 %i)\n", head="define internal void @again(i64 %i) noinline {\n  call void @again(i64 %i)\n  ret void\n}\n"
    ),
    "indirect": CALLS,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_of_real_units_assemble(shape: str, tmp_path: Path) -> None:
    assembles(ptx(SHAPES[shape]), tmp_path)


def test_intrinsics_that_only_new_architectures_have(tmp_path: Path) -> None:
    head = "declare void @llvm.nvvm.tcgen05.alloc.shared.cg1(ptr addrspace(3), i32)\n@s = internal addrspace(3) global i32 undef\n"
    text = ptx(
        kernel("  call void @llvm.nvvm.tcgen05.alloc.shared.cg1(ptr addrspace(3) @s, i32 32)\n", head=head), target=parse("sm_100a")[0]
    )
    assert "tcgen05.alloc" in text
    assembles(text, tmp_path, arch="sm_100a")


def test_what_it_refuses_is_told_in_its_words() -> None:
    with pytest.raises(ToolError, match=r"libNVVM does not lower this unit: .*\n.*function k .*llvm\.nvvm\.nosuch") as caught:
        ptx(kernel("  call void @llvm.nvvm.nosuch()\n", head="declare void @llvm.nvvm.nosuch()\n"))
    assert caught.value.hint == "GPU_LOWER=llvm lowers with LLVM"


def test_a_ptx_version_that_is_not_its_own_is_refused() -> None:
    with pytest.raises(UsageError, match=r"libNVVM writes \.version 9\.5, and \.version 8\.8 was asked for"):
        ptx(kernel(""), LowerOptions(ptx=88, by="nvvm"))


def test_broken_ir_is_the_sources_mistake() -> None:
    with pytest.raises(SourceError, match="not IR that LLVM reads"):
        ptx(HEAD + "define ptx_kernel void @k( {\n")
    with pytest.raises(SourceError, match="does not verify"):
        ptx(
            kernel(
                "  store i32 1, ptr addrspace(1) @v\n", head="@v = external addrspace(1) global i32\n@llvm.used = appending global i32 1\n"
            )
        )


def test_what_clang_says_of_every_kernel_is_no_news() -> None:
    made = lower(kernel("", attributes="noinline"), target=SM_100, options=PLAIN, library=LIBRARY)
    assert not made.output


def test_private_state_gets_its_name_in_the_image() -> None:
    text = kernel(USES, head=SEEN)
    renamed = ptx(text, renames={"state": "state$2"})
    assert ".extern .global .align 4 .u32 state$2;" in renamed
    assert not re.search(r"\bstate\b(?!\$)", renamed)


def test_d4_what_was_lowered_before_changes_nothing() -> None:
    first = [ptx(CALLS), ptx(ARITHMETIC)]
    ptx(LINES, LowerOptions(ptx=PTX, by="nvvm", debug=True, opt=0))
    assert [ptx(CALLS), ptx(ARITHMETIC)] == first
    assert "callseq 0, 0" in first[0]


def test_s12_what_joins_a_unit_is_compiled_with_it() -> None:
    """As for LLVM (test_domain.py); a table and state of the other source are declared, not defined."""
    unit = HEAD + "declare i32 @f(i32)\ndefine ptx_kernel void @k(ptr addrspace(1) %p, i32 %i) {\n"
    unit += "  %v = call i32 @f(i32 %i)\n  store i32 %v, ptr addrspace(1) %p\n  ret void\n}\n"
    other = HEAD + "!nvvmir.version = !{!0}\n!0 = !{i32 1, i32 0}\n"
    other += "@table$1 = available_externally addrspace(1) constant [4 x i32] [i32 1, i32 2, i32 3, i32 4]\n"
    other += "@x = external addrspace(1) global i32\ndefine i32 @f(i32 %i) {\n  %g = getelementptr i32, ptr addrspace(1) @table$1, i32 %i\n"
    other += "  %a = load i32, ptr addrspace(1) %g\n  %b = load i32, ptr addrspace(1) @x\n  %c = add i32 %a, %b\n  ret i32 %c\n}\n"
    group = Group(texts=(other,), renames={"x": "x$2"}, source="b.ll")
    text = lower(unit, target=SM_100, options=PLAIN, library=LIBRARY, joins=[group]).text
    assert "call" not in text
    assert re.findall(r"^\.\w+ \.global .*?([\w$]+)(?:\[\d+\])?;", text, re.MULTILINE) == ["table$1", "x$2"]
    assert not re.search(r"^\.(?:weak|visible) \.global", text, re.MULTILINE)


def test_flushing_is_asked_for_by_all_that_is_compiled_together_or_by_none() -> None:
    unit = HEAD + "declare float @f(float)\ndefine ptx_kernel void @k(ptr addrspace(1) %p) {\n"
    unit += "  %v = call float @f(float 1.0)\n  store float %v, ptr addrspace(1) %p\n  ret void\n}\n"
    other = HEAD + 'define float @f(float %x) "denormal-fp-math-f32"="preserve-sign,preserve-sign" {\n  ret float %x\n}\n'
    with pytest.raises(SourceError, match="some of its functions flush denormals"):
        lower(unit, target=SM_100, options=PLAIN, library=LIBRARY, joins=[Group(texts=(other,))])
