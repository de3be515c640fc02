from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite import binding

from scons_gpu.errors import GpuError, MissingSymbolError, SourceError, UsageError
from scons_gpu.lower.flush import flushing
from scons_gpu.lower.llvm import lower
from scons_gpu.lower.options import LowerOptions, key
from scons_gpu.toolchain.arch import Target
from scons_gpu.toolchain.model import Tool
from scons_gpu.toolchain.ourselves import recipe

NVIDIA = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13"))
LIBDEVICE = str(NVIDIA / "nvvm/libdevice/libdevice.10.bc")
SM_90 = Target("sm_90", real=True)
PTX_78 = LowerOptions(ptx=78)

HEAD = 'target triple = "nvptx64-nvidia-cuda"\n'
FLAT = HEAD + "define ptx_kernel void @flat(ptr addrspace(1) %x) {\n  store float 0.0, ptr addrspace(1) %x\n  ret void\n}\n"
WAVE = (
    HEAD
    + """
define ptx_kernel void @wave(ptr addrspace(1) %x) {
  %v = load float, ptr addrspace(1) %x
  %s = call float @__nv_sinf(float %v)
  %e = call float @__nv_expf(float %s)
  store float %e, ptr addrspace(1) %x
  ret void
}
declare float @__nv_sinf(float)
declare float @__nv_expf(float)
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


def ptx(text: str, options: LowerOptions = PTX_78, *, libdevice: str = LIBDEVICE, **more: object) -> str:
    return lower(text, target=SM_90, options=options, libdevice=libdevice, **more).text


def assembles(text: str, folder: Path) -> None:
    (folder / "in.ptx").write_text(text)
    command = [NVIDIA / "bin/ptxas", "-c", "-arch=sm_90", folder / "in.ptx", "-o", folder / "out.cubin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_every_level_gives_ptx_that_assembles(level: int, tmp_path: Path) -> None:
    text = ptx(WAVE, LowerOptions(ptx=78, opt=level))
    assert ".visible .entry wave(" in text
    assembles(text, tmp_path)


def test_optimised_ir_is_what_ptx_is_emitted_from() -> None:
    text = ptx(WAVE, as_ir=True)
    assert "define ptx_kernel void @wave(" in text
    assert "@__nv_" not in text  # libdevice's functions are in, and inlined
    machine = binding.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(cpu="sm_90", features="+ptx78", opt=3)
    emitted = machine.emit_assembly(binding.parse_assembly(text, binding.create_context()))
    assert emitted == ptx(WAVE)


def test_levels_are_levels() -> None:
    lengths = [len(ptx(WAVE, LowerOptions(ptx=78, opt=level))) for level in (0, 3)]
    assert lengths[0] > lengths[1]


def test_level_four_is_refused() -> None:
    with pytest.raises(UsageError, match="level 4"):
        LowerOptions(ptx=78, opt=4)


def test_loops_unroll_as_clang_has_it() -> None:
    loop = """
define ptx_kernel void @k(ptr addrspace(1) %p) {
entry:
  br label %body
body:
  %i = phi i32 [ 0, %entry ], [ %next, %body ]
  %at = getelementptr float, ptr addrspace(1) %p, i32 %i
  %v = load volatile float, ptr addrspace(1) %at
  %next = add nuw nsw i32 %i, 1
  %more = icmp ult i32 %next, 8
  br i1 %more, label %body, label %end
end:
  ret void
}
"""
    loads = {level: ptx(HEAD + loop, LowerOptions(ptx=78, opt=level)).count("ld.volatile.global") for level in (1, 2, 3)}
    assert loads == {1: 1, 2: 8, 3: 8}


def test_equal_neighbours_become_vectors() -> None:
    lanes = "".join(
        f"  %a{i} = getelementptr float, ptr addrspace(1) %p, i32 {i}\n  %v{i} = load float, ptr addrspace(1) %a{i}, align {16 if i == 0 else 4}\n"
        f"  %w{i} = fmul float %v{i}, 2.0\n  store float %w{i}, ptr addrspace(1) %a{i}, align {16 if i == 0 else 4}\n"
        for i in range(4)
    )
    assert "ld.global.v4" in ptx(f"{HEAD}define ptx_kernel void @k(ptr addrspace(1) %p) {{\n{lanes}  ret void\n}}\n")


@pytest.mark.parametrize(("version", "line"), [(78, ".version 7.8"), (80, ".version 8.0"), (87, ".version 8.7")])
def test_the_ptx_version_is_the_asked_one(version: int, line: str) -> None:
    assert line in ptx(FLAT, LowerOptions(ptx=version)).splitlines()


@pytest.mark.parametrize("name", ["sm_80", "sm_90a", "sm_100f"])
def test_architectures_are_spelled_in_full(name: str) -> None:
    text = lower(FLAT, target=Target(name, real=True), options=LowerOptions(ptx=88), libdevice="", renames={}).text
    assert f".target {name}" in text.splitlines()


def test_s1_launch_bounds_come_out() -> None:
    annotated = FLAT.replace("ptx_kernel ", "") + (
        "!nvvm.annotations = !{!0, !1, !2}\n"
        '!0 = !{ptr @flat, !"kernel", i32 1}\n!1 = !{ptr @flat, !"maxntidx", i32 256}\n!2 = !{ptr @flat, !"minctasm", i32 2}\n'
    )
    text = ptx(annotated)
    assert ".visible .entry flat(" in text
    assert ".maxntid 256" in text
    assert ".minnctapersm 2" in text
    assert ".reqntid 64, 2, 1" in ptx(FLAT.replace(") {", ') "nvvm.reqntid"="64,2,1" {'))


def test_libdevice_goes_in_whole_and_leaves_nothing_behind(tmp_path: Path) -> None:
    text = ptx(WAVE)
    assert "__nv_" not in text
    assert ".extern" not in text
    assembles(text, tmp_path)


def test_libdevice_that_stays_a_call_is_private(tmp_path: Path) -> None:
    pow_ = (
        "define ptx_kernel void @k(ptr %p, double %a) {\n  %v = call double @__nv_pow(double %a, double %a)\n"
        "  store double %v, ptr %p\n  ret void\n}\ndeclare double @__nv_pow(double, double)\n"
    )
    text = ptx(HEAD + pow_)
    assert ".visible .func" not in text
    assert ".weak" not in text
    assembles(text, tmp_path)


def test_s9_without_libdevice_only_those_who_call_it_fail() -> None:
    with pytest.raises(MissingSymbolError, match="__nv_expf, __nv_sinf") as error:
        ptx(WAVE, libdevice="", searched="looked in /opt/cuda")
    assert "looked in /opt/cuda" in str(error.value)
    assert ".entry flat" in ptx(FLAT, libdevice="")


def test_s8_a_libdevice_function_that_does_not_exist_is_named() -> None:
    with pytest.raises(MissingSymbolError, match="__nv_sinq"):
        ptx(WAVE.replace("__nv_sinf", "__nv_sinq"))


def test_a_libdevice_function_of_another_type_is_an_error() -> None:
    other = WAVE.replace("declare float @__nv_sinf(float)", "declare float @__nv_sinf(double)").replace(
        "__nv_sinf(float %v)", "__nv_sinf(double 1.0)"
    )
    with pytest.raises(SourceError, match=r"__nv_sinf as float \(double\); in libdevice it is float \(float\)"):
        ptx(other)


def test_a_module_with_its_own_libdevice_function_keeps_it() -> None:
    own = WAVE.replace("declare float @__nv_expf(float)", "define internal float @__nv_expf(float %x) {\n  ret float 4.2e1\n}")
    bits = f", {0x42280000};"  # 42.0, folded into the store
    assert bits in ptx(own)
    assert bits in ptx(own.replace("define internal", "define linkonce_odr"))


def test_square_roots_are_rounded_unless_fast() -> None:
    root = WAVE.replace("__nv_sinf", "__nv_sqrtf")
    assert "sqrt.rn.f32" in ptx(root)
    assert "sqrt.rn.ftz.f32" in ptx(root, LowerOptions(ptx=78, ftz=True))
    fast = ptx(root, LowerOptions(ptx=78, fast_math=True))
    assert "sqrt.approx.ftz.f32" in fast
    assert "sqrt.rn" not in fast


@pytest.mark.parametrize("flag", ["", '!llvm.module.flags = !{!0}\n!0 = !{i32 4, !"nvvm-reflect-ftz", i32 0}\n'])
@pytest.mark.parametrize("option", ["ftz", "fast_math"])
def test_ftz_reaches_instructions_and_libdevice(flag: str, option: str, tmp_path: Path) -> None:
    text = WAVE.replace("%s = call", "%d = fadd float %v, 1.0\n  %s = call").replace("__nv_sinf(float %v)", "__nv_sinf(float %d)") + flag
    plain, flushed = ptx(text), ptx(text, LowerOptions(ptx=78, **{option: True}))
    assert "add.rn.f32" in plain
    assert "fma.rn.f32" in plain
    assert "add.rn.ftz.f32" in flushed
    assert "fma.rn.ftz.f32" in flushed
    assert "fma.rn.f32" not in flushed
    assert "call" not in flushed  # a function that flushes is not inlined into one that does not
    assembles(flushed, tmp_path)


def test_s10_every_function_flushes_whatever_its_first_line_looks_like() -> None:
    text = """
define ptx_kernel void @"odd (name) {"(ptr byval({ i32, i32 }) align 4 %x, ptr dereferenceable(8) %"(") local_unnamed_addr #0 {
  ret void
}
define internal void @plain() unnamed_addr section "a #1 b" align 8 {
  ret void
}
define void @spoken() "denormal-fp-math-f32"="ieee,ieee" {
  ret void
}
define void @grouped() #1 {
  ret void
}
attributes #0 = { nounwind }
attributes #1 = { "denormal-fp-math-f32"="ieee,ieee" }
"""
    with binding.create_context() as context, binding.parse_assembly(text, context) as module:
        canonical = str(module)
    with binding.create_context() as context, binding.parse_assembly(flushing(canonical), context) as module:
        said = {function.name: b" ".join(function.attributes).decode() for function in module.functions}
    modes = {name: "preserve-sign,preserve-sign" in attributes for name, attributes in said.items()}
    assert modes == {"odd (name) {": True, "plain": True, "spoken": False, "grouped": False}


def test_debug_information_nobody_asked_for_changes_nothing() -> None:
    bare = "\n".join(line.partition(", !dbg")[0].replace(" !dbg !5", "") for line in LINES.splitlines() if not line.startswith("!"))
    assert ptx(LINES) == ptx(bare + "\n")


def test_lines_alone_do_not_make_debug_code() -> None:
    text = ptx(LINES, LowerOptions(ptx=78, lineinfo=True))
    assert ".loc\t1 3 1" in text
    assert ".target sm_90" in text.splitlines()
    assert ".debug_info" not in text


def test_s10_lines_alone_leave_strings_as_they_are() -> None:
    said = '@said = addrspace(1) constant [24 x i8] c"emissionKind: FullDebug\\00"\n'
    text = ptx(LINES.replace("define ", f"{said}define ", 1), LowerOptions(ptx=78, lineinfo=True))
    assert ", ".join(str(byte) for byte in b"FullDebug") in text


def test_debug_information_comes_out_whole() -> None:
    text = ptx(LINES, LowerOptions(ptx=78, debug=True, opt=0))
    assert ".target sm_90, debug" in text.splitlines()
    assert ".debug_info" in text


def test_g1_renames_are_exact() -> None:
    text = HEAD + (
        "@a = addrspace(1) global i32 1\n@b = addrspace(1) global i32 2\n@a.b = addrspace(1) global i32 3\n"
        '@text = addrspace(1) constant [2 x i8] c"@a"\n'
    )
    renamed = ptx(text, renames={"a": "b", "b": "a", "absent": "x"})
    assert ".global .align 4 .u32 b = 1;" in renamed
    assert ".global .align 4 .u32 a = 2;" in renamed
    assert ".u32 a.b = 3;" in renamed
    assert "text[2] = {64, 97}" in renamed


def test_a_rename_onto_a_taken_name_is_an_error() -> None:
    text = HEAD + "@a = addrspace(1) global i32 1\n@b = addrspace(1) global i32 2\n"
    with pytest.raises(GpuError, match="b is taken"):
        ptx(text, renames={"a": "b"})
    with pytest.raises(GpuError, match="no name in PTX"):
        ptx(text, renames={"a": "a.2"})  # LLVM would print it, ptxas not read it


@pytest.mark.parametrize("text", ["define broken", HEAD + "define void @f() {\n  %x = add i32 %y, 1\n  ret void\n}\n"])
def test_s13_text_that_does_not_read_is_an_error_with_a_place(text: str) -> None:
    with pytest.raises(SourceError, match=r"\d+:\d+: error"):
        ptx(text)


def test_s13_text_that_does_not_verify_is_an_error() -> None:
    text = HEAD + "define i32 @f(i1 %c) {\n  br i1 %c, label %a, label %b\na:\n  %x = add i32 1, 1\n  br label %b\nb:\n  ret i32 %x\n}\n"
    with pytest.raises(SourceError, match="does not dominate"):
        ptx(text)


def test_a_missing_layout_is_the_targets() -> None:
    # With LLVM's default layout an i128 is aligned to 8 and a vector of two halves is split.
    text = HEAD + "define ptx_kernel void @k(ptr addrspace(1) %p, { i8, i128 } %v) {\n  ret void\n}\n"
    layout = 'target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"\n'
    assert ".param .align 16 .b8 k_param_1[32]" in ptx(text)
    assert ptx(text) == ptx(layout + text)


CALLS = (
    HEAD
    + """
define internal i32 @inc(i32 %x) noinline {
  %r = add i32 %x, 1
  ret i32 %r
}
define ptx_kernel void @calls(ptr addrspace(1) %out, ptr %f, i32 %x) {
  %a = call i32 @inc(i32 %x)
  %b = call i32 %f(i32 %a)
  %c = call i32 %f(i32 %b)
  store i32 %c, ptr addrspace(1) %out
  ret void
}
"""
)


def test_d4_what_was_lowered_before_does_not_show(tmp_path: Path) -> None:
    # LLVM numbers calls through the whole process, and the prototypes of indirect ones are labelled by that.
    first = [ptx(WAVE), ptx(CALLS), ptx(CALLS, LowerOptions(ptx=78, opt=0))]
    assert "prototype_1;" in first[1]
    ptx(FLAT, LowerOptions(ptx=78, opt=0))
    ptx(LINES, LowerOptions(ptx=78, debug=True))
    assert [ptx(WAVE), ptx(CALLS), ptx(CALLS, LowerOptions(ptx=78, opt=0))] == first
    assembles(first[1], tmp_path)


KEY = {"slice": "s", "target": SM_90, "options": PTX_78, "llvm": "22", "libdevice": "", "renames": {}}


def test_d2_each_field_changes_the_key() -> None:
    others = [
        {"slice": "t"},
        {"target": Target("sm_90a", real=True)},
        {"target": Target("compute_90", real=False)},
        {"options": LowerOptions(ptx=80)},
        {"options": LowerOptions(ptx=78, opt=2)},
        {"options": LowerOptions(ptx=78, ftz=True)},
        {"options": LowerOptions(ptx=78, fast_math=True)},
        {"options": LowerOptions(ptx=78, debug=True)},
        {"options": LowerOptions(ptx=78, lineinfo=True)},
        {"options": LowerOptions(ptx=78, by="nvvm")},
        {"llvm": "23"},
        {"nvvm": Tool(name="nvvm", path="p", version="13.5.37", identity="i", origin="o")},
        {"nvvm": Tool(name="nvvm", path="p", version="13.5.37", identity="j", origin="o")},
        {"nvvm": Tool(name="nvvm", path="p", version="13.6.1", identity="i", origin="o")},
        {"libdevice": "l"},
        {"renames": {"a": "b"}},
    ]
    keys = [key(**KEY), *(key(**{**KEY, **other}) for other in others)]
    assert len(set(keys)) == len(keys)


def test_the_key_is_canonical() -> None:
    fields = key(**{**KEY, "renames": {"b": "c", "a": "d"}})
    assert list(fields) == sorted(fields)
    assert fields == key(**{**KEY, "renames": [("a", "d"), ("b", "c")]})
    assert dict(fields)["format"] == f"scons-gpu/ptx/1 {recipe()}"
    assert key(**KEY) == key(**{**KEY, "options": LowerOptions(ptx=78, opt=3, ftz=False)})
