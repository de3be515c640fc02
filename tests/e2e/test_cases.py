"""Small inputs with a trap each, as a user builds them: what comes out, and what is said where nothing can."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from scons_gpu.link import bundle, elf

if TYPE_CHECKING:
    from project import Project

    from scons_gpu.link.elf import Cubin

TRIPLE = 'target triple = "nvptx64-nvidia-cuda"\n'

BOTH = """
image = env.GpuModule("image", ["{0}"])
split = env.GpuModule("bundle", ["{0}"], GPU_LINK="bundle")
whole = env.GpuModule("whole", ["{0}"], GPU_LINK="whole")
text = env.GpuModule("text", ["{0}"], GPU_ARCHS="compute_90")
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[image, split, whole, text]))
"""
"""One source in every form that a module can take."""

RELU = """
define ptx_kernel void @relu(ptr addrspace(1) %x) #RELU {
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %p = getelementptr float, ptr addrspace(1) %x, i32 %i
  %v = load float, ptr addrspace(1) %p, !tbaa !TBAA
  %c = fcmp ogt float %v, 0.0
  %m = select i1 %c, float %v, float 0.0
  store float %m, ptr addrspace(1) %p, !tbaa !TBAA
  ret void
}
"""

THEN = f"""\
; the same relu as in else.ll, after a kernel that else.ll does not have, and with other numbers for its attributes
{TRIPLE}
define ptx_kernel void @negate(ptr addrspace(1) %x) #0 {{
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %p = getelementptr float, ptr addrspace(1) %x, i32 %i
  %v = load float, ptr addrspace(1) %p, !tbaa !0
  %m = fneg float %v
  store float %m, ptr addrspace(1) %p, !tbaa !0
  ret void
}}
{RELU.replace("#RELU", "#1").replace("!TBAA", "!0")}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x() #2
attributes #0 = {{ nounwind }}
attributes #1 = {{ nounwind "nvvm.maxntid"="256" }}
attributes #2 = {{ nounwind memory(none) }}
!0 = !{{!1, !1, i64 0}}
!1 = !{{!"float", !2, i64 0}}
!2 = !{{!"omnipotent char", !3, i64 0}}
!3 = !{{!"Simple C++ TBAA"}}
"""

ELSE = f"""\
; the relu of then.ll, alone
{TRIPLE}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x() #1
{RELU.replace("#RELU", "#0").replace("!TBAA", "!3")}
attributes #0 = {{ nounwind "nvvm.maxntid"="256" }}
attributes #1 = {{ nounwind memory(none) }}
!0 = !{{!"Simple C++ TBAA"}}
!1 = !{{!"omnipotent char", !0, i64 0}}
!2 = !{{!"float", !1, i64 0}}
!3 = !{{!2, !2, i64 0}}
"""

ROOT = f"""\
{TRIPLE}
define ptx_kernel void @select(ptr addrspace(1) %out, ptr addrspace(1) %in, i32 %n) {{
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %c = icmp slt i32 %i, %n
  br i1 %c, label %body, label %done
body:
  %p = getelementptr float, ptr addrspace(1) %in, i32 %i
  %v = load float, ptr addrspace(1) %p
  %q = getelementptr float, ptr addrspace(1) %out, i32 %i
  store float %v, ptr addrspace(1) %q
  br label %done
done:
  ret void
}}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
"""


def objects(project: Project, module: str, stem: str = "build/net") -> dict[str, Cubin]:
    """Unit's first kernel → its object, of a bundle."""
    archive = bundle.read_bundle(project.bytes(f"{stem}/{module}.gpubundle"))
    kernels = project.manifest(stem)["modules"][module]["kernels"]
    return {
        "+".join(sorted(name for name, other in kernels.items() if other["archs"]["sm_90"]["object"] == key)): elf.read(
            archive.objects[f"sm_90/{key}.cubin"]
        )
        for key in sorted({kernel["archs"]["sm_90"]["object"] for kernel in kernels.values()})
    }


def entries(ptx: str) -> dict[str, str]:
    """Kernel → its directives, of PTX text."""
    return dict(re.findall(r"\.entry (\w+)\([^)]*\)([^{]*)\{", ptx))


def defined(ptx: str) -> list[str]:
    """The variables that PTX text defines for all to see, sorted."""
    return sorted(re.findall(r"^(?:\.visible |\.weak )?\.(?:global|const)\s[^;=]*?([\w$]+)(?:\[\d*\])*(?: =|;)", ptx, re.MULTILINE))


def test_branches(project: Project) -> None:
    project.write(
        "SConstruct",
        """
then = env.GpuModule("then", ["branches/then.ll"])
other = env.GpuModule("else", ["branches/else.ll"])
env.GpuProgram("build/net", env.GpuModule("root", ["branches/root.ll"], submodules=[then, other]))
""",
    )
    project.write("branches/root.ll", ROOT)
    project.write("branches/then.ll", THEN)
    project.write("branches/else.ll", ELSE)
    result = project.build("-j2")

    assert project.compiled() == ["negate", "relu", "select"]
    counts = project.stats()
    assert [counts[name] for name in ("references", "unique", "shared", "compiled", "reused", "linked")] == [4, 3, 1, 3, 0, 3]
    assert [project.kernels(module) for module in ("root", "then", "else")] == [["select"], ["negate", "relu"], ["relu"]]
    relu = [part["slice"] for name in ("then", "else") for part in project.plan(name)["parts"] if part["kernels"][0]["symbol"] == "relu"]
    assert relu[0] == relu[1]
    assert re.search(r"^units 4: 3 compiled, 1 shared · 3 images · \d+\.\d s$", result.stdout, re.MULTILINE), result.stdout
    project.idle()


STATE = f"""\
{TRIPLE}
@coef = addrspace(4) externally_initialized constant [4 x float] zeroinitializer, align 4
@counter = addrspace(1) externally_initialized global i32 0, align 4
@host_only = addrspace(1) externally_initialized global i32 0, align 4
@memo = internal addrspace(1) global [8 x i32] zeroinitializer, align 4
@llvm.compiler.used = appending global [1 x ptr] [ptr addrspacecast (ptr addrspace(1) @host_only to ptr)], section "llvm.metadata"

define internal i32 @bump(i32 %by) {{
  %old = atomicrmw add ptr addrspace(1) @counter, i32 %by monotonic
  %slot = and i32 %old, 7
  %p = getelementptr [8 x i32], ptr addrspace(1) @memo, i32 0, i32 %slot
  store i32 %by, ptr addrspace(1) %p
  ret i32 %old
}}
define ptx_kernel void @first(ptr addrspace(1) %x) {{
  %c = load float, ptr addrspace(4) @coef
  store float %c, ptr addrspace(1) %x
  %r = call i32 @bump(i32 1)
  ret void
}}
define ptx_kernel void @second(ptr addrspace(1) %x) {{
  %p = getelementptr [4 x float], ptr addrspace(4) @coef, i32 0, i32 2
  %c = load float, ptr addrspace(4) %p
  store float %c, ptr addrspace(1) %x
  %r = call i32 @bump(i32 2)
  ret void
}}
define ptx_kernel void @alone(ptr addrspace(1) %x) {{
  store float 1.0, ptr addrspace(1) %x
  ret void
}}
"""


def test_state(project: Project) -> None:
    project.write("SConstruct", BOTH.format("state.ll"))
    project.write("state.ll", STATE)
    project.build("-j2")

    # An image: three units and the state; what the host knows keeps its name, what is private is one variable.
    roles = [part["role"] for part in project.plan("image")["parts"]]
    assert roles == ["unit", "unit", "unit", "state"]
    coef, counter, host_only, memo = project.variables("image")
    assert (coef, counter, host_only) == ("coef", "counter", "host_only")
    assert re.fullmatch(r"memo\$[0-9a-f]{16}", memo)
    assert [state["symbol"] for state in project.manifest()["modules"]["image"]["state"]] == ["coef", "counter", "host_only", memo]
    # The text that the driver assembles: the same.
    assert defined(project.read("build/net/text/compute_90.ptx")) == [coef, counter, host_only, memo]
    # A bundle: who shares memory is one program.
    joined = {tuple(kernel["symbol"] for kernel in part["kernels"]): part["joined"] for part in project.plan("bundle")["parts"]}
    assert joined == {("alone",): "", ("first", "second"): "state"}
    made = objects(project, "bundle")
    # In a program of their own memo is private, and only written: LLVM drops it there.
    assert sorted(symbol.name for symbol in made["first+second"].variables) == ["coef", "counter"]
    assert not made["alone"].variables
    project.idle()


def test_annotations(project: Project) -> None:
    project.write("SConstruct", BOTH.format("annotations.ll"))
    project.write(
        "annotations.ll",
        TRIPLE
        + """
define void @old_style(ptr addrspace(1) %x) {
  %v = call i32 @twice(i32 21)
  store i32 %v, ptr addrspace(1) %x
  ret void
}
define void @plain(ptr addrspace(1) %x) {
  store i32 1, ptr addrspace(1) %x
  ret void
}
define i32 @twice(i32 %v) noinline {
  %r = shl i32 %v, 1
  ret i32 %r
}
!nvvm.annotations = !{!0, !1, !2, !3}
!0 = !{ptr @old_style, !"kernel", i32 1}
!1 = !{ptr @old_style, !"maxntidx", i32 128, !"minctasm", i32 4}
!2 = !{ptr @plain, !"kernel", i32 1}
!3 = !{ptr @twice, !"align", i32 65544}
""",
    )
    project.build("-j2")

    assert project.kernels("image") == ["old_style", "plain"]
    assert sorted(objects(project, "bundle")) == ["old_style", "plain"]
    found = entries(project.read("build/net/text/compute_90.ptx"))
    assert sorted(found) == ["old_style", "plain"]
    assert re.findall(r"\.\w+ \d+", found["old_style"]) == [".maxntid 128", ".minnctapersm 4"]
    assert not found["plain"].strip()
    kernels = project.manifest()["modules"]["image"]["kernels"]
    assert [kernels[name]["archs"]["sm_90"]["max_threads"] for name in ("old_style", "plain")] == [128, 1024]


def test_libdevice(project: Project) -> None:
    project.write("SConstruct", BOTH.format("libdevice.ll"))
    project.write(
        "libdevice.ll",
        TRIPLE
        + """
define ptx_kernel void @wave(ptr addrspace(1) %x) {
  %v = load float, ptr addrspace(1) %x
  %s = call float @__nv_sinf(float %v)
  %e = call float @__nv_expf(float %s)
  store float %e, ptr addrspace(1) %x
  ret void
}
define ptx_kernel void @flat(ptr addrspace(1) %x) {
  store float 0.0, ptr addrspace(1) %x
  ret void
}
declare float @__nv_sinf(float)
declare float @__nv_expf(float)
""",
    )
    project.build("-j2")

    assert project.kernels("image") == ["flat", "wave"]
    for module, arch in (("image", "sm_90"), ("bundle", "sm_90"), ("text", "compute_90")):
        needs = {part["kernels"][0]["symbol"]: part["libdevice"] for part in project.plan(module, arch)["parts"]}
        assert needs == {"flat": False, "wave": True}
        keys = {part["kernels"][0]["symbol"]: dict(part["key"]) for part in project.plan(module, arch)["parts"]}
        assert "libdevice" not in "".join(key for key, value in keys["flat"].items() if value)
    text = project.read("build/net/text/compute_90.ptx")
    assert "__nv_sinf" not in text.replace("__nv_sinf_", "")  # it is inlined, and calls nobody
    flat = text[text.index(".entry flat") :].partition("\n}")[0]
    assert "call" not in flat


def test_names(project: Project) -> None:
    project.write("SConstruct", BOTH.format("names.ll"))
    project.write(
        "names.ll",
        TRIPLE
        + r"""
%"struct.odd name::inner" = type { i32, float }
@0 = private unnamed_addr addrspace(1) constant [24 x i8] c"define void @trap() { }\00"
@"a b\22c" = internal addrspace(1) constant i32 7
@"kernel @only_in_text !0 #1" = internal addrspace(1) constant i32 8

define ptx_kernel void @reads(ptr addrspace(1) %out, i32 %i) {
  %p = getelementptr [24 x i8], ptr addrspace(1) @0, i32 0, i32 %i
  %b = load i8, ptr addrspace(1) %p
  %w = zext i8 %b to i32
  %k = load i32, ptr addrspace(1) @"a b\22c"
  %s = add i32 %w, %k
  store i32 %s, ptr addrspace(1) %out
  ret void
}
define ptx_kernel void @fields(ptr addrspace(1) %s) {
  %p = getelementptr %"struct.odd name::inner", ptr addrspace(1) %s, i32 0, i32 1
  store float 2.0, ptr addrspace(1) %p
  %k = load i32, ptr addrspace(1) @"kernel @only_in_text !0 #1"
  %q = getelementptr %"struct.odd name::inner", ptr addrspace(1) %s, i32 0, i32 0
  store i32 %k, ptr addrspace(1) %q
  ret void
}
""",
    )
    project.build("-j2")

    assert project.kernels("image") == ["fields", "reads"]
    assert sorted(objects(project, "bundle")) == ["fields", "reads"]
    assert [part["role"] for part in project.plan("image")["parts"]] == ["unit", "unit"]
    slices = {
        part["kernels"][0]["symbol"]: project.read(f".gpu-store/slice/{part['slice'][:2]}/{part['slice']}")
        for part in project.plan("image")["parts"]
    }
    assert (r'"a b\22c"' in slices["reads"], "only_in_text" in slices["reads"], "define void @trap" in slices["reads"]) == (
        True,
        False,
        True,
    )
    assert (r'"a b\22c"' in slices["fields"], "only_in_text" in slices["fields"], "trap" in slices["fields"]) == (False, True, False)


INDIRECT = f"""\
{TRIPLE}
@ops = internal constant [2 x ptr] [ptr @inc, ptr @dec]
define internal i32 @inc(i32 %v) {{
  %r = add i32 %v, 1
  ret i32 %r
}}
define internal i32 @dec(i32 %v) {{
  %r = sub i32 %v, 1
  ret i32 %r
}}
define internal i32 @fib(i32 %n) {{
  %c = icmp slt i32 %n, 2
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
}}
define ptx_kernel void @apply(ptr addrspace(1) %x, i32 %which) {{
  %p = getelementptr [2 x ptr], ptr @ops, i32 0, i32 %which
  %f = load ptr, ptr %p
  %v = load i32, ptr addrspace(1) %x
  %r = call i32 %f(i32 %v)
  store i32 %r, ptr addrspace(1) %x
  ret void
}}
define ptx_kernel void @apply_twice(ptr addrspace(1) %x, i32 %which) {{
  %p = getelementptr [2 x ptr], ptr @ops, i32 0, i32 %which
  %f = load ptr, ptr %p
  %v = load i32, ptr addrspace(1) %x
  %r = call i32 %f(i32 %v)
  %s = call i32 %f(i32 %r)
  store i32 %s, ptr addrspace(1) %x
  ret void
}}
define ptx_kernel void @fibonacci(ptr addrspace(1) %x, i32 %n) {{
  %r = call i32 @fib(i32 %n)
  store i32 %r, ptr addrspace(1) %x
  ret void
}}
define ptx_kernel void @neither(ptr addrspace(1) %x) {{
  store i32 3, ptr addrspace(1) %x
  ret void
}}
"""


def test_indirect(project: Project) -> None:
    project.write("SConstruct", BOTH.format("indirect.ll"))
    project.write("indirect.ll", INDIRECT)
    project.build("-j2")

    assert project.kernels("image") == ["apply", "apply_twice", "fibonacci", "neither"]
    assert len([part for part in project.plan("image")["parts"] if part["role"] == "unit"]) == 4
    joined = {tuple(kernel["symbol"] for kernel in part["kernels"]): part["joined"] for part in project.plan("bundle")["parts"]}
    assert joined == {("apply", "apply_twice"): "indirect-call", ("fibonacci",): "", ("neither",): ""}
    made = objects(project, "bundle")
    # Each program holds the functions it may call, and no other. ptxas makes a copy for each kernel, `$apply$dec`.
    called = {name: {symbol.name for symbol in read.symbols if symbol.kind == "function" and symbol.defined} for name, read in made.items()}
    assert {name: {function.rpartition("$")[2] for function in functions} for name, functions in called.items()} == {
        "apply+apply_twice": {"inc", "dec"},
        "fibonacci": {"fib"},
        "neither": set(),
    }
    assert sorted(entries(project.read("build/net/text/compute_90.ptx"))) == ["apply", "apply_twice", "fibonacci", "neither"]


FINE = "define ptx_kernel void @fine(ptr %x) {\n  store i32 1, ptr %x\n  ret void\n}\n"

BROKEN = {
    # source → what the one message says
    "broken.ll": (
        TRIPLE + "define ptx_kernel void @k(ptr %x) {\n  store i32 %undefined_value, ptr %x\n  ret void\n}\n",
        ("broken.ll:3", "use of undefined value '%undefined_value'"),
    ),
    "undefined.ll": (
        TRIPLE
        + "define ptx_kernel void @calls_nobody(ptr %x) {\n  %v = call i32 @nobody_defines_this(i32 1)\n  store i32 %v, ptr %x\n  ret void\n}\n"
        + FINE
        + "declare i32 @nobody_defines_this(i32)\n",
        ("kernel calls_nobody of net/undefined.ll (sm_90)", "nobody_defines_this"),
    ),
    "refused_alias.ll": (
        TRIPLE + "@second_name = alias void (ptr), ptr @kernel\n" + FINE.replace("@fine", "@kernel"),
        ("net/refused_alias.ll (sm_90)", "second_name", "kernel"),
    ),
    "refused_ctor.ll": (
        TRIPLE
        + "@value = addrspace(1) global i32 0\n"
        + "@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @init, ptr null }]\n"
        + "define internal void @init() {\n  store i32 4, ptr addrspace(1) @value\n  ret void\n}\n"
        + "define ptx_kernel void @reads_value(ptr addrspace(1) %x) {\n  %v = load i32, ptr addrspace(1) @value\n"
        + "  store i32 %v, ptr addrspace(1) %x\n  ret void\n}\n",
        ("net/refused_ctor.ll (sm_90)", "global constructor", "init"),
    ),
}


@pytest.mark.parametrize("source", BROKEN)
def test_what_cannot_be_built_is_one_message_and_no_file(project: Project, source: str) -> None:
    text, said = BROKEN[source]
    project.write("SConstruct", f'env.GpuProgram("build/net", env.GpuModule("net", ["{source}"]))\n')
    project.write(source, text)
    result = project.fail()

    errors = re.findall(r"^error: .*", result.output, re.MULTILINE)
    assert len(errors) == 1, result.output
    assert all(word in errors[0] for word in said), errors[0]
    made = set(project.files("build/**/*"))
    read = {f"build/net/net/{source}.sm_90.ll"}
    assert made == {"broken.ll": set(), "undefined.ll": {*read, f"build/net/net/{source}.sm_90.index.json"}}.get(source, read)
    assert not list(project.root.glob(".gpu-store/object/*/*"))


def test_what_does_not_depend_on_the_failure_is_still_made(project: Project) -> None:
    project.write(
        "SConstruct",
        "names = " + repr(list(BROKEN)) + "\n"
        "parts = [env.GpuModule(name.split('.')[0], [name]) for name in names]\n"
        'good = env.GpuModule("good", ["good.ll"])\n'
        'env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[*parts, good]))\n',
    )
    for source, (text, _) in BROKEN.items():
        project.write(source, text)
    project.write("good.ll", TRIPLE + FINE.replace("@fine", "@good"))
    result = project.fail("-k", "-j2")

    assert project.compiled() == ["fine", "good"]
    assert [path.name for path in project.root.glob("build/net/*.fatbin")] == ["good.fatbin"]
    assert [str(path.relative_to(project.root)) for path in project.root.glob("build/**/*.cubin")] == ["build/net/good/sm_90.cubin"]
    assert not project.exists("build/net.json")
    summary = result.stderr.partition("4 steps failed:\n")[2].splitlines()
    assert [re.search(r"(\w+)\.ll", line)[0] for line in summary if line.startswith("  error: ")] == list(BROKEN)  # type: ignore[index]
    # Mended, the rest is made, and what was made stays.
    project.edit("undefined.ll", "call i32 @nobody_defines_this(i32 1)", "add i32 1, 1")
    project.fail("-k")
    assert project.compiled() == ["calls_nobody"]
    assert project.kernels("undefined") == ["calls_nobody", "fine"]
