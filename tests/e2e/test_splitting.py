"""S: splitting. What becomes a unit, what goes along with it, and what is refused by name."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
from project import CUDA, LL_HEAD, Project, ll

from scons_gpu.link import bundle, elf

if TYPE_CHECKING:
    from pathlib import Path

    from scons_gpu.toolchain.tools import Toolchain

FORMS = """
image = env.GpuModule("image", {0}, GPU_LINK="image")
merged = env.GpuModule("merged", {0}, GPU_LINK="auto")
whole = env.GpuModule("whole", {0}, GPU_LINK="whole")
apart = env.GpuModule("bundle", {0}, GPU_LINK="bundle")
text = env.GpuModule("text", {0}, GPU_ARCHS="compute_90")
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[image, merged, whole, apart, text]))
"""
"""The same sources in every form that a module can take."""

NET = 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n'


def forms(project: Project, **sources: str) -> None:
    names = [name.replace("_", ".") for name in sources]
    project.write("SConstruct", CUDA + FORMS.format(repr(names)))
    for name, text in zip(names, sources.values(), strict=True):
        project.write(name, text)
    project.build("-j2")
    assert project.bytes("build/net/merged/sm_90.cubin") == project.bytes("build/net/whole/sm_90.cubin")


def bundled(project: Project) -> list[str]:
    """The kernels of each of the bundle's programs."""
    objects = bundle.read_bundle(project.bytes("build/net/bundle.gpubundle")).objects
    return sorted(" ".join(sorted(kernel.symbol for kernel in elf.read(data).kernels)) for data in objects.values())


def assembled(project: Project, toolchain: Toolchain, tmp_path: Path) -> list[str]:
    """The kernels of what the driver would make of the module's text."""
    assert toolchain.ptxas is not None
    output = tmp_path / "driver.cubin"
    text = project.path("build/net/text/compute_90.ptx")
    done = subprocess.run([toolchain.ptxas.path, "-arch=sm_90", str(text), "-o", str(output)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return sorted(kernel.symbol for kernel in elf.read(output.read_bytes()).kernels)


def errors(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("error: ")]


def slice_of(project: Project, kernel: str, module: str = "net") -> str:
    (name,) = [part["slice"] for part in project.plan(module)["parts"] if kernel in [each["symbol"] for each in part["kernels"]]]
    return project.read(f".gpu-store/slice/{name[:2]}/{name}")


def test_s1_launch_bounds_come_out(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    forms(
        project,
        net_ll=LL_HEAD
        + "define ptx_kernel void @bounded(ptr %x) #0 {\n  store i32 1, ptr %x\n  ret void\n}\n"
        + "define ptx_kernel void @required(ptr %x) #1 {\n  store i32 2, ptr %x\n  ret void\n}\n"
        + "define void @by_metadata(ptr %x) {\n  store i32 3, ptr %x\n  ret void\n}\n"
        + 'attributes #0 = { "nvvm.maxntid"="64,2" "nvvm.minctasm"="3" }\nattributes #1 = { "nvvm.reqntid"="32,4,1" }\n'
        + '!nvvm.annotations = !{!0}\n!0 = !{ptr @by_metadata, !"kernel", i32 1, !"maxntidx", i32 96}\n',
    )
    text = project.read("build/net/text/compute_90.ptx")
    found = {
        name: re.findall(r"\.\w+ \d[\d, ]*", tail.replace("\n", ";")) for name, tail in re.findall(r"\.entry (\w+)\([^)]*\)([^{]*)\{", text)
    }
    assert found == {
        "bounded": [".maxntid 64, 2", ".minnctapersm 3"],
        "required": [".reqntid 32, 4, 1"],
        "by_metadata": [".maxntid 96"],
    }
    assert project.kernels("image") == bundled(project) == assembled(project, toolchain, tmp_path) == sorted(found)
    threads = {name: made["archs"]["sm_90"]["max_threads"] for name, made in project.manifest()["modules"]["image"]["kernels"].items()}
    assert threads == {"bounded": 128, "required": 128, "by_metadata": 96}


def test_s2_template_kernels_of_two_sources_are_in_the_image_once(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    template = "template <class T> __global__ void fill(T* data) { data[threadIdx.x] = T(1); }\n"
    forms(
        project,
        one_cu=template + "template __global__ void fill<int>(int*);\ntemplate __global__ void fill<float>(float*);\n",
        two_cu=template + "template __global__ void fill<double>(double*);\ntemplate __global__ void fill<int>(int*);\n",
    )
    names = ["_Z4fillIdEvPT_", "_Z4fillIfEvPT_", "_Z4fillIiEvPT_"]
    assert project.kernels("image") == bundled(project) == assembled(project, toolchain, tmp_path) == names
    assert sorted(set(project.compiled())) == ["fill<double>(double*)", "fill<float>(float*)", "fill<int>(int*)"]


def test_s2_one_name_with_two_bodies_is_an_error_that_names_both_sources(project: Project) -> None:
    project.write(
        "SConstruct",
        CUDA
        + """
one = env.GpuModule("one", ["a.cu", "b.cu"])
program = env.GpuModule("program", ["a.cu", "b.cu"], GPU_LINK="bundle")
apart = [env.GpuModule("left", ["a.cu"]), env.GpuModule("right", ["b.cu"])]
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[one, program, *apart]))
""",
    )
    project.write("a.cu", "static __global__ void same(float* data) { data[0] = 1.0f; }\nauto keep = same;\n")
    project.write("b.cu", "static __global__ void same(float* data) { data[0] = 2.0f; }\nauto keep = same;\n")
    result = project.fail("-k", "-j2")
    assert sorted(errors(result.output)) == [
        f"error: module {module} (sm_90): kernel same(float*) is defined differently in a.cu and in b.cu" for module in ("one", "program")
    ]
    assert "put the sources into two modules" in result.output
    assert project.kernels("left") == project.kernels("right") == ["_ZL4samePf"]


def test_s3_function_aliases_go_along_and_ifuncs_are_refused(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    forms(
        project,
        net_ll=LL_HEAD
        + "@short = internal alias i32 (i32), ptr @long_name\n@shorter = internal alias i32 (i32), ptr @short\n"
        + "define internal i32 @long_name(i32 %v) noinline {\n  %r = mul i32 %v, %v\n  ret i32 %r\n}\n"
        + "".join(
            f"define ptx_kernel void @{kernel}(ptr %x) {{\n  %v = load i32, ptr %x\n  %r = call i32 @{callee}(i32 %v)\n"
            "  store i32 %r, ptr %x\n  ret void\n}\n"
            for kernel, callee in (("one", "short"), ("two", "shorter"), ("three", "long_name"))
        ),
    )
    assert project.kernels("image") == bundled(project) == assembled(project, toolchain, tmp_path) == ["one", "three", "two"]

    project.write("SConstruct", NET)
    project.write(
        "net.ll",
        LL_HEAD
        + "@chosen = ifunc void (), ptr @chooser\n"
        + "define internal ptr @chooser() {\n  ret ptr null\n}\n"
        + "define ptx_kernel void @k() {\n  call void @chosen()\n  ret void\n}\n",
    )
    result = project.fail()
    assert errors(result.output) == ["error: net/net.ll (sm_90): cannot become units: ifunc @chosen"], result.output
    assert "lower" not in result.stdout


def test_s4_a_kernel_that_names_a_kernel(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    forms(
        project,
        net_ll=LL_HEAD
        + "define ptx_kernel void @named(ptr %x) {\n  store i32 1, ptr %x\n  ret void\n}\n"
        + "define ptx_kernel void @names(ptr %x) {\n  store ptr @named, ptr %x\n  ret void\n}\n"
        + "define ptx_kernel void @other(ptr %x) {\n  store i32 2, ptr %x\n  ret void\n}\n",
    )
    assert project.kernels("image") == assembled(project, toolchain, tmp_path) == ["named", "names", "other"]
    assert bundled(project) == ["named names", "other"]
    assert [part["joined"] for part in project.plan("bundle")["parts"]] == ["kernel-reference", ""]
    assert [part["joined"] for part in project.plan("image")["parts"]] == ["", "", ""]


def test_s4_mutual_recursion_is_copied(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    forms(
        project,
        net_cu="""\
static __device__ int odd(int n);
static __device__ __noinline__ int even(int n) { return n ? odd(n - 1) : 1; }
static __device__ __noinline__ int odd(int n) { return n ? even(n - 1) : 0; }
extern "C" __global__ void a(int* data) { data[0] = even(data[1]); }
extern "C" __global__ void b(int* data) { data[0] = odd(data[1]) + 1; }
extern "C" __global__ void c(int* data) { data[0] = 1; }
""",
    )
    assert project.kernels("image") == bundled(project) == assembled(project, toolchain, tmp_path) == ["a", "b", "c"]


def test_s5_kernels_share_a_static_helper_and_compile_alone(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    text = (
        "static __device__ __noinline__ float helper(float v) { return v * FACTOR + 1.0f; }\n"
        "__device__ __noinline__ float NAME_visible(float v) { return helper(v) / 3.0f; }\n"
        'extern "C" __global__ void NAME_a(float* data) { data[0] = helper(data[1]); }\n'
        'extern "C" __global__ void NAME_b(float* data) { data[0] = helper(data[2]) + NAME_visible(data[3]); }\n'
    )
    forms(
        project,
        one_cu=text.replace("NAME", "one").replace("FACTOR", "2.0f"),
        two_cu=text.replace("NAME", "two").replace("FACTOR", "3.0f"),
    )
    names = ["one_a", "one_b", "two_a", "two_b"]
    assert project.kernels("image") == bundled(project) == assembled(project, toolchain, tmp_path) == names
    # An edit of one helper concerns its own source's kernels.
    project.edit("two.cu", "3.0f + 1.0f", "4.0f + 1.0f")
    project.build("-j2")
    assert sorted(set(project.compiled())) == ["two_a", "two_b"]


LINES = """\
static __device__ __noinline__ float helper(float v) {
  return v * 2.0f;
}
extern "C" __global__ void first(float* data) {
  data[0] = helper(data[1]);
}
extern "C" __global__ void second(float* data) {
  data[0] = sqrtf(data[1]);
}
"""


def test_s6_lines_survive_and_moving_counts_only_where_they_are_asked_for(project: Project, toolchain: Toolchain) -> None:
    project.write(
        "SConstruct",
        CUDA
        + """
plain = env.GpuModule("plain", ["net.cu"])
lines = env.GpuModule("lines", ["net.cu"], GPU_LINEINFO=1)
debug = env.GpuModule("debug", ["net.cu"], GPU_DEBUG=1)
apart = env.GpuModule("apart", ["net.cu"], GPU_LINEINFO=1, GPU_LINK="bundle")
text = env.GpuModule("text", ["net.cu"], GPU_LINEINFO=1, GPU_ARCHS="compute_90")
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[plain, lines, debug, apart, text]))
""",
    )
    project.write("net.cu", LINES)
    project.build("-j2")
    assert toolchain.nvdisasm is not None
    for module in ("lines", "debug"):
        assert project.kernels(module) == ["first", "second"]
        listing = subprocess.run(
            [toolchain.nvdisasm.path, "-g", "-c", str(project.image(module))], check=True, capture_output=True, text=True
        ).stdout
        seen = {int(line) for line in re.findall(r'//## File "[^"]*net\.cu", line (\d+)', listing)}
        assert {2, 5, 8} <= seen, seen
    assert ".debug_line" not in "".join(name for name, _, _ in project.symbols("plain"))
    for kernel in ("first", "second"):
        assert slice_of(project, kernel, "lines").count("distinct !DICompileUnit") == 1
    assert "DILocation" not in slice_of(project, "first", "plain")
    assert re.search(r'\.file\s+1\s+"[^"]*net\.cu"', project.read("build/net/text/compute_90.ptx"))

    project.edit("net.cu", 'extern "C" __global__ void second', '\n\nextern "C" __global__ void second')
    project.build("-j2")
    assert set(project.compiled()) == {"second"}
    modules = {owner for record in project.last() if record["stage"] == "lower" for owner in record["owners"]}
    assert "plain" not in modules
    assert not [record for record in project.last() if record["stage"] == "link" and record["name"] == "plain"]


def test_s7_shared_memory_is_summed_for_each_kernel_before_the_link(project: Project) -> None:
    project.write(
        "SConstruct",
        CUDA
        + """
image = env.GpuModule("image", ["fits.cu", "large.cu"], GPU_LINK="image")
apart = env.GpuModule("apart", ["fits.cu", "large.cu"], GPU_LINK="bundle")
fits = env.GpuModule("fits", ["fits.cu"])
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[image, apart, fits]))
""",
    )
    body = "{ one[threadIdx.x] = data[0]; two[threadIdx.x] = data[1]; __syncthreads(); data[2] = one[data[3]] + two[data[4]]; }\n"
    project.write(
        "fits.cu",
        f'extern "C" __global__ void exactly(int* data) {{ __shared__ int one[6144]; __shared__ int two[6144]; {body} }}\n'
        f'extern "C" __global__ void dynamic(int* data) {{ __shared__ int one[6000]; extern __shared__ int two[]; {body} }}\n'
        # What is never read does not count.
        f'extern "C" __global__ void folded(int* data) {{ __shared__ int one[6144]; __shared__ int two[6144]; __shared__ int three[9000]; {body} }}\n',
    )
    project.write(
        "large.cu", f'extern "C" __global__ void large(int* data) {{ __shared__ int one[6000]; __shared__ int two[7000]; {body} }}\n'
    )
    result = project.fail("-k", "-j2")
    said = sorted(errors(result.output))
    assert len(said) == 2, result.output
    assert said[0].startswith("error: kernel large of apart/large.cu (sm_90): its 52000 bytes of shared memory are more than the 49152")
    assert said[1] == (
        "error: kernel large of image/large.cu (sm_90): "
        "its 52000 bytes of __shared__ variables are more than the 49152 that a kernel can have"
    )
    assert re.search(r" 28000 bytes  \S*two", result.output)
    assert project.kernels("fits") == ["dynamic", "exactly", "folded"]


def test_s8_what_the_device_brings_and_what_nobody_defines(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    def calls(kernel: str, call: str) -> str:
        return f"define ptx_kernel void @{kernel}(ptr %x) {{\n  {call}\n  ret void\n}}\n"

    declared = (
        "declare i32 @vprintf(ptr, ptr)\ndeclare ptr @malloc(i64)\ndeclare void @free(ptr)\n"
        "declare void @__assertfail(ptr, ptr, i32, ptr, i64)\ndeclare i32 @__nvvm_reflect(ptr)\n"
        "declare i32 @printf(ptr, ...)\ndeclare void @__assert_fail(ptr, ptr, i32, ptr)\ndeclare void @lost(ptr)\n"
        '@text = private addrspace(1) constant [3 x i8] c"hi\\00"\n'
        '@flag = private addrspace(1) constant [11 x i8] c"__CUDA_FTZ\\00"\n'
    )
    good = (
        calls("prints", "call i32 @vprintf(ptr addrspacecast (ptr addrspace(1) @text to ptr), ptr null)")
        + calls("allocates", "%m = call ptr @malloc(i64 8)\n  store ptr %m, ptr %x\n  call void @free(ptr %m)")
        + calls("asserts", "call void @__assertfail(ptr %x, ptr %x, i32 1, ptr %x, i64 1)")
        + calls("reflects", "%r = call i32 @__nvvm_reflect(ptr addrspacecast (ptr addrspace(1) @flag to ptr))\n  store i32 %r, ptr %x")
    )
    forms(project, net_ll=LL_HEAD + declared + good)
    names = ["allocates", "asserts", "prints", "reflects"]
    assert project.kernels("image") == bundled(project) == assembled(project, toolchain, tmp_path) == names

    helper = "define internal void @helper(ptr %x) noinline {\n  call void @lost(ptr %x)\n  ret void\n}\n"
    project.write("SConstruct", NET)
    project.write(
        "net.ll",
        LL_HEAD
        + declared
        + good
        + helper
        + calls("host_prints", "call i32 (ptr, ...) @printf(ptr %x)")
        + calls("host_asserts", "call void @__assert_fail(ptr %x, ptr %x, i32 1, ptr %x)")
        + calls("through", "call void @helper(ptr %x)"),
    )
    result = project.fail()
    assert sorted(errors(result.output)) == [
        "error: kernel host_asserts of net/net.ll (sm_90): host_asserts uses __assert_fail, which nobody defines",
        "error: kernel host_prints of net/net.ll (sm_90): host_prints uses printf, which nobody defines",
        "error: kernel through of net/net.ll (sm_90): helper uses lost, which nobody defines",
    ]
    assert "include <cstdio>" in result.output
    assert "the device's is __assertfail" in result.output
    assert not project.exists("build/net/net/sm_90.cubin")
    assert "lower" not in result.stdout


def test_s9_without_libdevice_what_needs_none_still_builds(project: Project) -> None:
    # Whatever this machine has, this project's tools are without it.
    project.write(
        "SConstruct",
        """
import dataclasses
from scons_gpu.scons import session
from scons_gpu.toolchain.tools import Look
found = session.discover
looked = (Look(what="libdevice", where="/some/toolkit/nvvm/libdevice", origin="GPU_CUDA_PATH", result="not there"),)
session.discover = lambda **where: dataclasses.replace(found(**where), libdevice=None, looked=looked)
"""
        + NET,
    )
    project.write(
        "net.ll",
        ll("flat")
        + "declare float @__nv_sinf(float)\n"
        + "define ptx_kernel void @wave(ptr %x) {\n  %v = load float, ptr %x\n  %s = call float @__nv_sinf(float %v)\n"
        + "  store float %s, ptr %x\n  ret void\n}\n",
    )
    result = project.fail("-k")
    (said,) = errors(result.output)
    assert said.startswith("error: kernel wave of net/net.ll (sm_90): ")
    assert "libdevice" in said
    assert "/some/toolkit/nvvm/libdevice" in result.output.partition(said)[2]
    assert project.compiled() == ["flat"]
    project.write("net.ll", ll("flat"))
    project.build()
    assert project.kernels("net") == ["flat"]
    assert project.compiled() == []


ODD = (
    LL_HEAD
    + r"""
@"fake define ptx_kernel void @x() {" = internal addrspace(1) constant i32 3
@0 = private unnamed_addr addrspace(1) constant [22 x i8] c"define @x { !0 = !{} \00"
@1 = internal addrspace(1) global i32 4
%"type } { ; odd" = type { i32, [2 x i8] }
define internal i32 @"helper \22with\22 \5C quotes"(i32 %v) noinline {
  %r = xor i32 %v, 5
  ret i32 %r
}
define internal i32 @"h\C3\A9lper"(i32 %v) noinline {
  %r = xor i32 %v, 6
  ret i32 %r
}
define internal i32 @2(i32 %v) noinline {
  %r = xor i32 %v, 7
  ret i32 %r
}
define ptx_kernel void @"a$c_1"(ptr %x) {
  %v = load i32, ptr addrspace(1) @"fake define ptx_kernel void @x() {"
  %r = call i32 @"helper \22with\22 \5C quotes"(i32 %v)
  %s = call i32 @"h\C3\A9lper"(i32 %r)
  %t = call i32 @2(i32 %s)
  %p = getelementptr [22 x i8], ptr addrspace(1) @0, i32 0, i32 %t
  %b = load i8, ptr addrspace(1) %p
  store i8 %b, ptr %x
  %old = atomicrmw add ptr addrspace(1) @1, i32 1 monotonic
  ret void
}
define ptx_kernel void @plain(ptr %x) {
  %q = getelementptr %"type } { ; odd", ptr %x, i32 0, i32 1, i32 1
  store i8 9, ptr %q
  %r = call i32 @"h\C3\A9lper"(i32 3)
  store i32 %r, ptr %x
  ret void
}
"""
)


def test_s10_odd_names_and_text_that_looks_like_ir(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    forms(project, net_ll=ODD)
    assert project.kernels("image") == bundled(project) == assembled(project, toolchain, tmp_path) == ["a$c_1", "plain"]
    assert "fake" not in slice_of(project, "plain", "image")


def test_s10_a_kernel_that_ptx_cannot_spell_is_named(project: Project) -> None:
    names = ["a.b", '"a b"', '"k\\C3\\A9rnel"', '"1st"', '"quote\\22"']
    modules = ", ".join(f'env.GpuModule("m{number}", ["m{number}.ll"])' for number in range(len(names)))
    project.write("SConstruct", f'env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[{modules}]))\n')
    for number, name in enumerate(names):
        project.write(f"m{number}.ll", LL_HEAD + f"define ptx_kernel void @{name}(ptr %x) {{\n  ret void\n}}\n")
    result = project.fail("-k")
    said = sorted(errors(result.output))
    assert len(said) == len(names)
    for number, line in enumerate(said):
        assert line.startswith(f"error: m{number}/m{number}.ll (sm_90): cannot become units: kernel @{names[number]}"), line
        assert "PTX cannot spell" in line
    assert not list(project.root.glob("build/**/*.json"))


def test_s11_only_what_concerns_a_unit_goes_along(project: Project) -> None:
    project.write("SConstruct", NET)
    project.write(
        "net.ll",
        LL_HEAD
        + """
@kept = internal addrspace(1) global i32 5
@kept_too = internal addrspace(1) constant [4 x i8] c"mark"
@llvm.used = appending global [2 x ptr] [ptr addrspacecast (ptr addrspace(1) @kept to ptr), ptr @helper], section "llvm.metadata"
@llvm.compiler.used = appending global [1 x ptr] [ptr addrspacecast (ptr addrspace(1) @kept_too to ptr)], section "llvm.metadata"
define internal i32 @helper() {
  ret i32 3
}
define ptx_kernel void @uses(ptr %x) {
  %r = call i32 @helper()
  %v = load i32, ptr addrspace(1) @kept
  %s = add i32 %r, %v
  store i32 %s, ptr %x
  ret void
}
define ptx_kernel void @apart(ptr %x) {
  store i32 1, ptr %x
  ret void
}
!llvm.module.flags = !{!0, !1, !2}
!llvm.ident = !{!3}
!some.tool = !{!4}
!0 = !{i32 1, !"wchar_size", i32 4}
!1 = !{i32 4, !"nvvm-reflect-ftz", i32 1}
!2 = !{i32 2, !"SDK Version", [2 x i32] [i32 12, i32 9]}
!3 = !{!"clang version 22"}
!4 = !{!"of a tool", ptr @uses}
""",
    )
    project.build()
    apart, uses = (slice_of(project, kernel) for kernel in ("apart", "uses"))
    for word in ("llvm.used", "helper", "kept", "SDK", "ident", "some.tool", "uses", "wchar"):
        assert word not in apart, word
    assert "nvvm-reflect-ftz" in apart
    assert "@helper" in uses
    assert project.kernels("net") == ["apart", "uses"]
    assert [name.partition("$")[0] for name in project.variables("net")] == ["kept"]


def test_s12_a_function_of_another_source(project: Project) -> None:
    """Taken from where it is defined, and from the strong definition where there is a weak one too."""
    project.write(
        "SConstruct",
        """
calls = env.GpuModule("calls", ["uses.ll", "has.ll"])
strengths = env.GpuModule("strengths", ["has.ll", "weak.ll"])
inline = env.GpuModule("inline", ["has.ll", "inline.ll"])
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[calls, strengths, inline]))
""",
    )
    project.write(
        "uses.ll",
        ll("fine")
        + "declare i32 @elsewhere()\ndefine ptx_kernel void @uses(ptr %x) {\n  %v = call i32 @elsewhere()\n  store i32 %v, ptr %x\n  ret void\n}\n",
    )
    project.write("has.ll", ll("has") + "define i32 @elsewhere() {\n  ret i32 4\n}\n")
    weak = (
        ll("weak")
        + "define weak_odr i32 @elsewhere() {\n  ret i32 5\n}\n"
        + "define ptx_kernel void @own(ptr %x) {\n  %v = call i32 @elsewhere()\n  store i32 %v, ptr %x\n  ret void\n}\n"
    )
    project.write("weak.ll", weak)
    project.write("inline.ll", weak.replace("weak_odr", "linkonce_odr"))
    result = project.fail("-k")
    assert sorted(errors(result.output)) == [
        "error: module inline (sm_90): function elsewhere is defined in has.ll, and inline in inline.ll",
    ], result.output
    assert project.kernels("calls") == ["fine", "has", "uses"]
    assert project.kernels("strengths") == ["has", "own", "weak"]
    for module, kernel in (("calls", "uses"), ("strengths", "own")):
        digest = next(part["digest"] for part in project.plan(module)["parts"] if kernel in [each["symbol"] for each in part["kernels"]])
        assert "], 4;" in project.read(f".gpu-store/ptx/{digest[:2]}/{digest}.ptx")


def test_s13_broken_sources_say_where_and_leave_nothing(project: Project) -> None:
    assembled_ir = llvm.parse_assembly(ll("whole")).as_bitcode()
    broken = {
        "cut.bc": assembled_ir[: len(assembled_ir) // 2],
        "empty.bc": b"",
        "newer.ll": (LL_HEAD + "define ptx_kernel void @k(ptr %x) {\n  frobnicate i32 3\n  ret void\n}\n").encode(),
        "other.ll": b'target triple = "x86_64-unknown-linux-gnu"\ndefine void @k() {\n  ret void\n}\n',
        "invalid.ll": (
            LL_HEAD
            + "define ptx_kernel void @k(i1 %c) {\nentry:\n  br i1 %c, label %a, label %b\na:\n  %v = add i32 1, 2\n  br label %b\nb:\n"
            "  %w = add i32 %v, 1\n  ret void\n}\n"
        ).encode(),
        "latin.ll": b'target triple = "nvptx64-nvidia-cuda"\n; \xe9\xff\x00\ndefine ptx_kernel void @k() {\n  ret i32 1\n}\n',
    }
    modules = ", ".join(f'env.GpuModule("m_{name.replace(".", "_")}", ["{name}"])' for name in broken)
    project.write("SConstruct", f'env.GpuProgram("build/net", env.GpuModule("net", ["good.bc"], submodules=[{modules}]))\n')
    for name, data in broken.items():
        project.path(name).write_bytes(data)
    project.path("good.bc").write_bytes(assembled_ir)
    result = project.fail("-k", "-j2")
    said = errors(result.output)
    expected = {
        "cut.bc": r"m_cut_bc/cut\.bc",
        "newer.ll": r"newer\.ll:5",
        "other.ll": r"m_other_ll/other\.ll.*x86_64-unknown-linux-gnu",
        "invalid.ll": r"m_invalid_ll/invalid\.ll",
        "latin.ll": r"latin\.ll",
    }
    for name, pattern in expected.items():
        assert [line for line in said if re.search(pattern, line)], (name, result.output)
    assert project.kernels("net") == ["whole"]
    made = {name.split("/")[2] for name in project.files("build/net/*/*")} - {"net"}
    assert made <= {"m_empty_bc"}, made
