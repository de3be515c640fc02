from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from scons_gpu.errors import SourceError, UsageError
from scons_gpu.inspect import undivided
from scons_gpu.inspect.compare import Report, compare
from scons_gpu.inspect.reference import Reference, Tools
from scons_gpu.inspect.undivided import Request
from scons_gpu.toolchain.tools import discover

ARCH, PTX = "sm_90", 88

COMMON = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
"""

# `n + 1 > n` holds where the sum cannot wrap, and has to be computed where it can.
STEP = """
define ptx_kernel void @step(ptr addrspace(1) %x, ptr addrspace(1) %y, i32 %n) #0 {
  %i = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %k = add nsw i32 %n, 1
  %more = icmp sgt i32 %k, %n
  %p = getelementptr float, ptr addrspace(1) %x, i32 %i
  %a = load float, ptr addrspace(1) %p
  %b = select i1 %more, float %a, float 1.0
  %q = getelementptr float, ptr addrspace(1) %y, i32 %i
  %d = load float, ptr addrspace(1) %q
  %c = fdiv float %b, %d
  store float %c, ptr addrspace(1) %q
  ret void
}
attributes #0 = { "nvvm.maxntid"="256" }
"""

SCALE = """
define ptx_kernel void @scale(ptr addrspace(1) %x) {
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %p = getelementptr float, ptr addrspace(1) %x, i32 %i
  %a = load float, ptr addrspace(1) %p
  %b = fmul float %a, 3.0
  store float %b, ptr addrspace(1) %p
  ret void
}
"""


def table(name: str, first: int) -> str:
    values = ", ".join(f"i32 {first + 7 * k}" for k in range(64))
    return f"@{name} = internal addrspace(4) constant [64 x i32] [{values}]\n"


def reading(kernel: str, name: str) -> str:
    return f"""
define ptx_kernel void @{kernel}(ptr addrspace(1) %x) {{
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %t = getelementptr i32, ptr addrspace(4) @{name}, i32 %i
  %v = load i32, ptr addrspace(4) %t
  %p = getelementptr i32, ptr addrspace(1) %x, i32 %i
  store i32 %v, ptr addrspace(1) %p
  ret void
}}
"""


def writing(kernel: str, name: str) -> str:
    return f"""
define ptx_kernel void @{kernel}(ptr addrspace(1) %x) {{
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %p = getelementptr i32, ptr addrspace(1) %x, i32 %i
  %v = load i32, ptr addrspace(1) %p
  %w = add i32 %v, 5
  store i32 %w, ptr addrspace(1) %p
  store i32 %v, ptr addrspace(1) @{name}
  ret void
}}
"""


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    return Tools.of(discover(environ=os.environ, prefix=sys.prefix, facts=tmp_path_factory.mktemp("facts")))


@pytest.fixture(autouse=True)
def _lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same IR with the same options is lowered once: most tests change one side alone."""
    build = undivided.build

    def known(request: Request) -> str:
        key = (*(Path(source).read_text() for source in request.sources), str(replace(request, sources=())))
        if key not in LOWERED:
            LOWERED[key] = build(request)
        return LOWERED[key]

    monkeypatch.setattr(undivided, "build", known)


LOWERED: dict[tuple[str, ...], str] = {}


def run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True)


class Project:
    """A program of one module `m`, whose image or bundle a test makes from whatever IR it likes."""

    def __init__(self, folder: Path, tools: Tools) -> None:
        self.folder, self.tools = folder, tools
        self.module = folder / "net" / "m"
        self.module.mkdir(parents=True)
        self.kernels: dict[str, dict[str, object]] = {}
        self.state: list[dict[str, object]] = []
        self.images: dict[str, object] = {}
        self.bundle: str | None = None
        self.options: dict[str, object] = {"opt": 3, "ptx": {ARCH: PTX}}

    def source(self, text: str, *, name: str = "s.ll") -> None:
        (self.module / f"{name}.{ARCH}.ll").write_text(COMMON + text)

    def lower(self, text: str, name: str) -> Path:
        path = self.folder / f"{name}.ll"
        path.write_text(COMMON + text)
        made = self.folder / f"{name}.ptx"
        made.write_text(undivided.build(Request(sources=(str(path),), cpu=ARCH, ptx=PTX, libdevice=self.tools.libdevice)))
        return made

    def image(self, *units: str, kernels: tuple[str, ...], flags: tuple[str, ...] = ()) -> Project:
        objects = []
        for number, unit in enumerate(units):
            ptx = self.lower(unit, f"u{number}")
            objects.append(ptx.with_suffix(".o"))
            run(self.tools.ptxas, "-c", "-enable-func-clone-sc", "true", *flags, f"-arch={ARCH}", ptx, "-o", objects[-1])
        run(self.tools.nvlink, f"-arch={ARCH}", *objects, "-o", self.module / f"{ARCH}.cubin")
        self.images = {ARCH: {"file": f"net/m/{ARCH}.cubin", "sha256": ""}}
        for kernel in kernels:
            self.kernel(kernel)
        return self

    def bundled(self, **units: str) -> Project:
        self.bundle = "net/m.gpubundle"
        with zipfile.ZipFile(self.folder / self.bundle, "w") as bundle:
            for kernel, unit in units.items():
                ptx = self.lower(unit, kernel)
                run(self.tools.ptxas, f"-arch={ARCH}", ptx, "-o", ptx.with_suffix(".cubin"))
                key = hashlib.sha256(kernel.encode()).hexdigest()[:32]
                bundle.write(ptx.with_suffix(".cubin"), f"{ARCH}/{key}.cubin")
                self.kernel(kernel, object=key)
        return self

    def kernel(self, name: str, **more: object) -> None:
        self.kernels[name] = {"readable": name, "source": "s.ll", "archs": {ARCH: {"entry": name, "spill_bytes": 0, **more}}}

    def manifest(self) -> Path:
        module = {
            "images": self.images,
            "bundle": self.bundle,
            "kernels": self.kernels,
            "state": self.state,
            "bypass": False,
            "options": self.options,
        }
        path = self.folder / "net.json"
        data = {"schema": "scons-gpu/manifest/1", "program": "net", "archs": [ARCH], "modules": {"m": module}}
        path.write_text(json.dumps(data))
        return path

    def report(self, **options: str) -> Report:
        return compare(self.manifest(), tools=self.tools, **options)

    def classes(self) -> dict[str, str]:
        return {one.kernel: one.verdict.kind for one in self.report().kernels}


@pytest.fixture
def project(tmp_path: Path, tools: Tools) -> Project:
    return Project(tmp_path, tools)


def test_a_bundle_of_the_same_ir_is_identical(project: Project) -> None:
    project.source(STEP + SCALE)
    assert project.bundled(step=STEP, scale=SCALE).classes() == {"step": "identical", "scale": "identical"}


def test_an_image_of_the_same_ir_keeps_registers(project: Project) -> None:
    project.source(STEP + SCALE)
    report = project.image(STEP, SCALE, kernels=("step", "scale")).report()
    assert {one.verdict.kind for one in report.kernels} <= {"identical", "other schedule"}
    assert not report.different


def test_a_dropped_launch_bound_is_different_though_the_code_is_the_same(project: Project) -> None:
    project.source(STEP)
    unbound = STEP.replace('"nvvm.maxntid"="256"', "nounwind")
    assert unbound != STEP
    (one,) = project.bundled(step=unbound).report().kernels
    verdict = one.verdict
    assert verdict.kind == "different"
    assert "max threads" in verdict.cause


def test_a_dropped_minimum_of_blocks_is_different(project: Project) -> None:
    bound = STEP.replace('"nvvm.maxntid"="256"', '"nvvm.maxntid"="256" "nvvm.minctasm"="4"')
    project.source(bound)
    (one,) = project.bundled(step=STEP).report().kernels
    verdict = one.verdict
    assert verdict.kind == "different"
    assert "register limit" in verdict.cause


@pytest.mark.parametrize("link", ["image", "bundle"])
def test_a_dropped_nsw_is_different(project: Project, link: str) -> None:
    project.source(STEP)
    wrapped = STEP.replace("add nsw", "add")
    made = project.image(wrapped, kernels=("step",)) if link == "image" else project.bundled(step=wrapped)
    (one,) = made.report().kernels
    verdict = one.verdict
    assert verdict.kind == "different"
    assert verdict.cause.startswith("not explained")
    assert verdict.undivided is not None
    assert verdict.built is not None
    assert verdict.undivided.instructions != verdict.built.instructions


@pytest.mark.parametrize("link", ["image", "bundle"])
def test_a_changed_immediate_is_different(project: Project, link: str) -> None:
    project.source(SCALE)
    changed = SCALE.replace("3.0", "5.0")
    made = project.image(changed, kernels=("scale",)) if link == "image" else project.bundled(scale=changed)
    assert made.classes() == {"scale": "different"}


def test_a_table_that_lies_elsewhere_is_constant_placement(project: Project) -> None:
    first, second = table("t1", 1) + reading("one", "t1"), table("t2", 1000) + reading("two", "t2")
    project.source(first + second)
    kinds = project.bundled(one=first, two=second).classes()
    assert sorted(kinds.values()) == ["constant placement", "identical"]


def test_a_table_of_other_content_at_the_same_place_is_different(project: Project) -> None:
    project.source(table("t1", 1) + reading("one", "t1"))
    assert project.bundled(one=table("t1", 2) + reading("one", "t1")).classes() == {"one": "different"}


def test_private_state_made_visible_is_a_class_of_its_own(project: Project) -> None:
    private, seen = "_ZL4last", "_ZL4last$0123456789abcdef"
    project.source(f"@{private} = internal addrspace(1) global i32 0\n" + writing("put", private))
    # undivided, nobody reads the variable, so LLVM deletes it with its stores
    image = f'@"{seen}" = addrspace(1) global i32 0\n' + writing("put", f'"{seen}"')
    project.image(image, kernels=("put",))
    assert project.classes() == {"put": "different"}
    project.state = [{"symbol": seen, "bytes": 4, "space": "global"}]
    assert project.classes() == {"put": "private state made visible"}


def test_the_wrong_one_of_two_equal_variables_is_different(project: Project) -> None:
    both = "@a = addrspace(1) externally_initialized global i32 0\n@b = addrspace(1) externally_initialized global i32 0\n"
    project.source(both + writing("put", "a"))
    project.image(both + writing("put", "b"), kernels=("put",))
    project.state = [{"symbol": name, "bytes": 4, "space": "global"} for name in "ab"]
    assert project.classes() == {"put": "different"}


PRINTING = """
@text = private unnamed_addr constant [4 x i8] c"hi\\0A\\00"
declare i32 @vprintf(ptr, ptr)
define ptx_kernel void @say() {
  %r = call i32 @vprintf(ptr @text, ptr null)
  ret void
}
"""


def test_s8_a_call_of_the_device_runtime_is_no_difference_but_another_text_is(project: Project) -> None:
    project.source(PRINTING)
    assert project.bundled(say=PRINTING).classes() == {"say": "identical"}
    assert project.bundled(say=PRINTING.replace("hi", "ho")).classes() == {"say": "different"}


def test_a_kernel_that_one_side_lacks_is_different(project: Project) -> None:
    project.source(STEP + SCALE)
    report = project.image(STEP, kernels=("step",)).report()
    assert {one.kernel: one.verdict.cause for one in report.different} == {"scale": "the build lacks the kernel"}


def test_a_kernel_of_other_parameters_is_different(project: Project) -> None:
    project.source(SCALE)
    (one,) = project.bundled(scale=SCALE.replace("%x)", "%x, i32 %more)")).report().kernels
    verdict = one.verdict
    assert verdict.kind == "different"
    assert "parameters" in verdict.cause


def test_sources_of_one_module_are_linked_and_private_names_do_not_clash(project: Project) -> None:
    first, second = table("t", 1) + reading("one", "t"), table("t", 1000) + reading("two", "t")
    project.source(first, name="a.ll")
    project.source(second, name="b.ll")
    assert "different" not in project.bundled(one=first, two=second).classes().values()


def test_options_come_from_the_manifest(project: Project) -> None:
    project.source(STEP)
    project.bundled(step=STEP)
    project.options["opt"] = 0
    assert project.classes() == {"step": "different"}


def test_flags_of_the_manifest_overrule_those_of_relocatable_assembly(project: Project) -> None:
    """Without cloning a division is a call, with the registers of one: the undivided IR makes it too, by the same flags."""
    project.source(STEP)
    flags = ("-enable-func-clone-sc=false",)
    project.options["ptxas_flags"] = flags
    (found,) = project.image(STEP, kernels=("step",), flags=flags).report().kernels
    assert found.verdict.kind == "different"
    assert found.verdict.cause.startswith("relocatable assembly alone makes the same code; registers ")


def test_one_kernel_can_be_asked_for(project: Project) -> None:
    project.source(STEP + SCALE)
    project.bundled(step=STEP, scale=SCALE)
    assert [one.kernel for one in project.report(kernel="scale").kernels] == ["scale"]
    with pytest.raises(UsageError, match="has no sm_80"):
        project.report(arch="sm_80")
    with pytest.raises(UsageError, match=r"no kernel is called sclae(?s:.*)did you mean scale"):
        project.report(kernel="sclae")


def ended_with_ptx(folder: Path, **modules: dict[str, object]) -> Path:
    """A manifest of modules for sm_90 and compute_90, each with one kernel k."""
    archs = {arch: {"object": None} for arch in ("sm_90", "compute_90")}
    kernels = {"k": {"readable": "k(float*)", "source": "a.ll", "archs": archs}}
    data = {name: {"kernels": kernels, **module} for name, module in modules.items()}
    text = {"schema": "scons-gpu/manifest/1", "program": "net", "archs": ["sm_90", "compute_90"], "modules": data}
    path = folder / "net.json"
    path.write_text(json.dumps(text), encoding="utf-8")
    return path


@pytest.mark.parametrize("module", [{"images": {"sm_90": {"file": "net/a/sm_90.ptx"}}}, {"images": {}, "bundle": "net/a.gpubundle"}])
@pytest.mark.parametrize("asked", [{}, {"arch": "sm_90"}, {"kernel": "k"}])
def test_l7_where_modules_end_with_ptx_there_is_nothing_to_compare(
    tmp_path: Path, tools: Tools, module: dict[str, object], asked: dict[str, str]
) -> None:
    """Said once, with each module; a report without kernels would read like one without differences."""
    with pytest.raises(UsageError) as caught:
        compare(ended_with_ptx(tmp_path, a=module, b={**module}), tools=tools, **asked)
    assert caught.value.what == f"{tmp_path / 'net.json'}: there is no machine code to compare: what was asked about ends with PTX"
    archs = ["sm_90"] if asked.get("arch") else ["sm_90", "compute_90"]
    notes = [f"{name} ({arch}): PTX, which the driver assembles; not compared" for name in "ab" for arch in archs]
    assert caught.value.output.splitlines() == notes
    assert "GPU_PROVIDER other than none" in caught.value.hint
    assert "GPU_ARCHS=sm_90" in caught.value.hint


def test_what_is_no_manifest_is_a_usage_error(tmp_path: Path, tools: Tools) -> None:
    for text in ("{}", "not json", "[1]"):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(UsageError, match=r"x\.json: not"):
            compare(tmp_path / "x.json", tools=tools)


def test_state_that_the_host_sees_is_not_folded(tmp_path: Path, tools: Tools) -> None:
    source = tmp_path / "s.ll"
    private = "@seen = internal addrspace(4) externally_initialized global i32 7\n"
    text = COMMON + reading("k", "seen").replace("i32, ptr addrspace(4) @seen, i32 %i", "i32, ptr addrspace(4) @seen, i32 0")
    source.write_text(private.replace("internal ", "") + text)
    made = undivided.build(Request(sources=(str(source),), cpu=ARCH, ptx=PTX))
    assert "ld.const" in made
    assert ".visible .const .align 4 .u32 seen" in made
    source.write_text(private.replace("externally_initialized ", "") + text)
    assert "ld.const" not in undivided.build(Request(sources=(str(source),), cpu=ARCH, ptx=PTX))
    assert tools.libdevice


def test_flushing_and_exact_square_roots_follow_the_options(tmp_path: Path, tools: Tools) -> None:
    source = tmp_path / "s.ll"
    root = "define ptx_kernel void @k(ptr addrspace(1) %x) {\n  %a = load float, ptr addrspace(1) %x\n  %b = call float @__nv_sqrtf(float %a)\n"
    source.write_text(
        root + "  %c = fadd float %b, 1.0\n  store float %c, ptr addrspace(1) %x\n  ret void\n}\ndeclare float @__nv_sqrtf(float)\n"
    )

    def ptx(**options: bool) -> str:
        return undivided.build(Request(sources=(str(source),), cpu=ARCH, ptx=PTX, libdevice=tools.libdevice, **options))

    assert ("sqrt.rn.f32" in ptx(), "add.rn.f32" in ptx()) == (True, True)
    assert "sqrt.rn.ftz.f32" in ptx(ftz=True)
    assert "add.rn.ftz.f32" in ptx(ftz=True)
    assert "sqrt.approx.ftz.f32" in ptx(fast_math=True)


def test_broken_ir_is_a_source_error(tmp_path: Path) -> None:
    (tmp_path / "s.ll").write_text("define void @x( {")
    with pytest.raises(SourceError, match="could not be lowered"):
        undivided.build(Request(sources=(str(tmp_path / "s.ll"),), cpu=ARCH, ptx=PTX))


def test_s10_names_are_read_through_quotes() -> None:
    text = 'define ptx_kernel void @"odd name\\22"() {\ndefine weak_odr ptx_kernel void @k(ptr %x) #0 comdat {\ndefine void @f() {\n'
    assert undivided.kernels(text) == ('odd name"', "k")
    text = '@a = internal global i32 0\n@b = addrspace(1) global i32 0\n@c = addrspace(4) constant i32 0\n@"d e" = dso_local addrspace(4) externally_initialized constant i32 0\n@s = addrspace(3) global i32 undef\n@x = external addrspace(1) global i32\n'
    assert undivided.visible_state(text) == ("b", "d e")


def test_equal_code_is_disassembled_once(project: Project, tmp_path: Path) -> None:
    """nvdisasm takes most of a second to start: a bundle of identical kernels needs what was read of the undivided build, and no more."""
    calls, wrapper = tmp_path / "calls", tmp_path / "nvdisasm"
    wrapper.write_text(f'#!/bin/sh\necho x >> {calls}\nexec {project.tools.nvdisasm} "$@"\n')
    wrapper.chmod(0o755)
    project.tools = replace(project.tools, nvdisasm=str(wrapper))
    project.source(STEP + SCALE)
    assert set(project.bundled(step=STEP, scale=SCALE).classes().values()) == {"identical"}
    assert not calls.exists()  # equal bytes tell
    other = SCALE.replace("3.0", "5.0")
    assert project.bundled(scale=other, step=STEP).classes() == {"scale": "different", "step": "identical"}
    assert calls.read_text() in {"x\n" * count for count in range(1, 5)}


def test_modules_of_equal_ir_share_an_undivided_build(project: Project) -> None:
    project.source(SCALE)
    manifest = project.bundled(scale=SCALE).manifest()
    known: dict[object, Reference] = {}
    assert not compare(manifest, tools=project.tools, references=known).different
    assert len(known) == 1
    project.source(SCALE.replace("3.0", "5.0"))  # other IR is another undivided build
    assert compare(manifest, tools=project.tools, references=known).different
    assert len(known) == 2


ALLOCATING = """
declare ptr @malloc(i64)
define ptx_kernel void @first(ptr addrspace(1) %x) {
  %p = call ptr @malloc(i64 8)
  store ptr %p, ptr addrspace(1) %x
  ret void
}
"""

SAYING = """
declare i32 @vprintf(ptr, ptr)
@word = private constant [3 x i8] c"hi\\00"
@other = private constant [3 x i8] c"ho\\00"
define ptx_kernel void @second(ptr %x, i1 %c) {
  %w = select i1 %c, ptr @word, ptr @other
  %n = call i32 @vprintf(ptr %w, ptr null)
  store i32 %n, ptr %x
  ret void
}
"""


def test_addresses_that_lie_elsewhere_in_bank_4_are_constant_placement(project: Project) -> None:
    """Of a function of the device runtime the offset is put into a register first."""
    project.source(ALLOCATING + SAYING)
    kinds = project.bundled(first=ALLOCATING, second=SAYING).classes()
    assert "constant placement" in kinds.values()
    assert set(kinds.values()) <= {"constant placement", "identical"}


def test_another_string_behind_the_same_slot_is_different(project: Project) -> None:
    project.source(SAYING)
    assert project.bundled(second=SAYING.replace("ho\\00", "hu\\00")).classes() == {"second": "different"}


THROUGH_A_TABLE = """
@rules = internal constant [2 x ptr] [ptr @add, ptr @sub]
define internal i32 @add(i32 %n) noinline {
  %k = mul nsw i32 %n, 3
  ret i32 %k
}
define internal i32 @sub(i32 %n) noinline {
  %k = mul nsw i32 %n, 5
  ret i32 %k
}
define ptx_kernel void @k(ptr addrspace(1) %x, i64 %i) {
  %p = getelementptr [2 x ptr], ptr @rules, i64 0, i64 %i
  %f = load ptr, ptr %p
  %v = load i32, ptr addrspace(1) %x
  %w = call i32 %f(i32 %v)
  store i32 %w, ptr addrspace(1) %x
  ret void
}
"""


def test_s4_functions_behind_pointers_are_compared_too(project: Project) -> None:
    project.source(THROUGH_A_TABLE)
    assert project.bundled(k=THROUGH_A_TABLE).classes() == {"k": "identical"}
    assert project.bundled(k=THROUGH_A_TABLE.replace("%n, 5", "%n, 7")).classes() == {"k": "different"}


RECURSIVE = """
define internal i32 @down(i32 %n) noinline {
  %end = icmp slt i32 %n, 1
  br i1 %end, label %out, label %in
in:
  %m = sub i32 %n, 2
  %a = call i32 @down(i32 %m)
  %o = sub i32 %n, 3
  %b = call i32 @down(i32 %o)
  %s = xor i32 %a, %b
  br label %out
out:
  %r = phi i32 [ 1, %0 ], [ %s, %in ]
  ret i32 %r
}
define ptx_kernel void @k(ptr addrspace(1) %x) {
  %v = load i32, ptr addrspace(1) %x
  %w = call i32 @down(i32 %v)
  store i32 %w, ptr addrspace(1) %x
  ret void
}
"""


def test_a_stack_that_nobody_knows_is_no_difference(project: Project) -> None:
    """With recursion the assembler writes 0xFFFFFFFF, the linker 0."""
    project.source(RECURSIVE)
    (one,) = project.image(RECURSIVE, kernels=("k",)).report().kernels
    assert one.verdict.undivided is not None
    assert one.verdict.undivided.stack_bytes is None
    assert one.verdict.kind in {"identical", "other schedule"}
