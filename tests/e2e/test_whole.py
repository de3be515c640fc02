"""GPU_LINK=whole: units are lowered one by one, and a module's PTX is assembled in one piece."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest
from project import CUDA, IMAGE, LL_HEAD, Project, ll

from scons_gpu.link import elf

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from toolkits import Toolkit

WHOLE = 'env["GPU_LINK"] = "whole"\n'
NET = WHOLE + 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n'
STATE = "@counter = addrspace(1) externally_initialized global i32 0\n"


def net(project: Project, text: str, head: str = "") -> Project:
    project.write("SConstruct", head + NET)
    project.write("net.ll", text)
    return project


def errors(project: Project, *args: str) -> list[str]:
    result = project.fail(*args)
    assert not project.exists("build/net/net/sm_90.cubin")
    assert not list(project.root.glob("build/**/.*"))
    return re.findall(r"^error: .*\n(?: .*\n)*", result.stderr, re.MULTILINE)


def compared(project: Project, *args: str) -> dict[str, dict[str, str]]:
    """Kernel → what `compare` says of it."""
    result = project.command("compare", "--json", "build/net.json", *args)
    return {f"{each['module']} {each['kernel']}": each for each in json.loads(result.stdout)["kernels"]}


def test_m1_equal_kernels_of_two_modules_are_lowered_once_and_assembled_with_each(project: Project) -> None:
    project.write(
        "SConstruct",
        WHOLE
        + """
then = env.GpuModule("then", ["then.ll"])
other = env.GpuModule("else", ["else.ll"])
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[then, other]))
""",
    )
    project.write("then.ll", ll("relu", "first=1.5"))
    project.write("else.ll", ll("relu", "second=2.5"))
    project.build("-j2")
    assert project.compiled() == ["first", "relu", "second"]
    assert "assemble" not in project.done()
    assert (project.kernels("then"), project.kernels("else")) == (["first", "relu"], ["relu", "second"])
    counts = project.stats()
    assert [counts[name] for name in ("references", "unique", "shared", "compiled", "reused", "linked")] == [4, 3, 1, 3, 0, 2]
    made = project.manifest()["modules"]["then"]
    assert made["options"]["link"] == "whole"
    assert set(project.manifest()["tools"]) == {"fatbinary", "libdevice", "llvm", "ptxas"}
    for kernel in made["kernels"].values():
        build = kernel["archs"]["sm_90"]
        assert (build["object"], build["spill_bytes"], build["shared_bytes"], build["stack_bytes"]) == (None, 0, 0, 0)
        assert build["registers"] > 0
    project.idle()


def test_m10_an_edit_is_one_lowering_and_one_assembly(project: Project, toolkit: Toolkit) -> None:
    head = f'env["GPU_CUDA_PATH"] = "{toolkit.root}"\n'
    net(project, ll("one=1.0", "two=2.0", "three=3.0"), head).build("-j2")
    assert toolkit.counts() == {"ptxas": 1, "fatbinary": 1}
    project.write("net.ll", ll("one=1.0", "two=7.0", "three=3.0"))
    project.build("-j2")
    assert project.compiled() == ["two"]
    assert toolkit.counts() == {"ptxas": 1, "fatbinary": 1}
    counts = project.stats()
    assert [counts[name] for name in ("needed", "compiled", "reused", "linked")] == [3, 1, 2, 1]
    project.write("net.ll", "; a comment\n" + ll("one=1.0", "two=7.0", "three=3.0"))
    project.build("-j2")
    assert toolkit.counts() == {}
    project.idle()


SAME = ("identical", "constant placement")
"""What `compare` may say: equal instructions, and equal ones whose variables lie elsewhere."""
MIXED = """\
#define GLOBAL extern "C" __global__ void
extern "C" __device__ int vprintf(const char*, void*);
extern __shared__ int dynamic[];
__constant__ float coefficients[4];
__device__ int counter;
static __device__ int seen[8];
static __device__ const int squares[512] = {0, 1, 4, 9, 16, 25, 36};
typedef int (*Function)(int);
__device__ __noinline__ int plus(int v) { return v + atomicAdd(&counter, 1); }
__device__ __noinline__ int minus(int v) { return v - 7; }
__device__ Function functions[2] = {plus, minus};
static __device__ __noinline__ int helper(int n) { return n < 2 ? n : helper(n - 1) + helper(n - 2); }
GLOBAL states(float* data) { data[0] = coefficients[seen[atomicAdd(&counter, 1) & 7]++ & 3]; }
GLOBAL also(float* data) { data[0] = coefficients[2] + seen[atomicAdd(&counter, 2) & 7]++; }
GLOBAL table(int* data) { data[1] = squares[data[0] & 511] + minus(data[2]); }
GLOBAL calls(int* data, int which) { data[0] = functions[which](data[1]); }
GLOBAL recurses(int* data) { data[0] = helper(data[1]); }
GLOBAL prints(int* data) { int value = data[0]; vprintf("%d\\n", &value); }
GLOBAL shares(int* data) { dynamic[threadIdx.x] = data[0]; __syncthreads(); data[1] = dynamic[data[2]] + plus(data[3]); }
GLOBAL __launch_bounds__(128, 4) bound(float* data) { data[threadIdx.x] = sqrtf(data[0]) * coefficients[1]; }
"""


def test_the_code_is_that_of_the_undivided_build(project: Project) -> None:
    """State, tables, dynamic shared memory, calls of the device runtime, calls through memory, recursion, launch bounds."""
    project.write("SConstruct", CUDA + WHOLE + 'env.GpuProgram("build/net", env.GpuModule("net", ["net.cu"], GPU_ARCHS="sm_80 sm_90"))\n')
    project.write("net.cu", MIXED)
    project.build("-j2")
    found = compared(project, "--arch", "sm_90")
    assert len(found) == 8
    kinds = {kind: sorted(each["kernel"] for each in found.values() if each["kind"] == kind) for kind in SAME}
    assert sum(map(len, kinds.values())) == 8, found
    assert {"bound", "prints", "recurses"} <= set(kinds["identical"])
    variables = project.variables("net")
    assert [name for name in variables if "$" not in name and name != "squares"] == ["coefficients", "counter", "functions"]
    assert len([name for name in variables if name.startswith("_ZL4seen$")]) == 1
    assert project.manifest()["modules"]["net"]["kernels"]["shares"]["archs"]["sm_90"]["spill_bytes"] == 0
    project.idle()


def test_r7_equal_bytes_at_any_j_and_in_any_folder(project: Project, tmp_path: Path) -> None:
    kernels = [f"kernel_{number}={number}.0" for number in range(9)]
    net(project, ll(*kernels, head=STATE)).build("-j1")
    other = net(Project(tmp_path / "a longer name" / "elsewhere"), ll(*kernels, head=STATE))
    other.build("-j8")
    names = ("build/net/net/sm_90.cubin", "build/net/net.fatbin", "build/net.json")
    assert [project.bytes(name) for name in names] == [other.bytes(name) for name in names]
    other.build("-c")
    assert other.files("build/**/*") == {}
    assert other.exists(".gpu-store")
    other.build("-j3")
    assert other.compiled() == []
    assert [project.bytes(name) for name in names] == [other.bytes(name) for name in names]


def test_another_link_mode_is_another_link_and_lowers_nothing(project: Project) -> None:
    project.write("SConstruct", IMAGE + 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n')
    project.write("net.ll", ll("one=1.0", "two=2.0", head=STATE))
    project.build()
    image = project.bytes("build/net/net/sm_90.cubin")
    project.build("GPU_LINK=whole")
    assert project.done() == {"plan": 1, "link": 1, "pack": 1, "manifest": 1}
    assert project.bytes("build/net/net/sm_90.cubin") != image
    project.idle("GPU_LINK=whole")
    project.build()
    assert project.done() == {"plan": 1, "link": 1, "pack": 1, "manifest": 1}
    assert project.bytes("build/net/net/sm_90.cubin") == image
    project.idle()


def test_g2_g6_what_the_host_may_set_is_there_and_private_state_is_one_variable(project: Project) -> None:
    head = "@unused = addrspace(1) externally_initialized global [3 x i32] zeroinitializer\n@memo = internal addrspace(1) global i32 0\n"
    counts = "".join(
        f"define ptx_kernel void @{name}(ptr addrspace(1) %x) {{\n  %old = atomicrmw add ptr addrspace(1) @memo, i32 {by} monotonic\n"
        "  store i32 %old, ptr addrspace(1) %x\n  ret void\n}\n"
        for name, by in (("counts", 1), ("counts_too", 2))
    )
    net(project, ll("one=1.0", head=head) + counts).build()
    memo, unused = project.variables("net")
    assert (memo.partition("$")[0], unused) == ("memo", "unused")
    assert [state["symbol"] for state in project.manifest()["modules"]["net"]["state"]] == [memo, unused]
    assert {each["kind"] for each in compared(project).values()} <= set(SAME)


def table(name: str, number: int) -> str:
    return f"@{name} = internal addrspace(4) constant [9000 x i32] [{', '.join(f'i32 {i * number % 977}' for i in range(9000))}]\n"


def reader(kernel: str, name: str) -> str:
    return f"""
define ptx_kernel void @{kernel}(ptr addrspace(1) %data) {{
  %index = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %place = getelementptr [9000 x i32], ptr addrspace(4) @{name}, i32 0, i32 %index
  %found = load i32, ptr addrspace(4) %place
  store i32 %found, ptr addrspace(1) %data
  ret void
}}
"""


def test_g3_a_table_is_in_the_image_once(project: Project) -> None:
    net(project, LL_HEAD + table("squares", 7) + reader("one", "squares") + reader("two", "squares").replace("%found,", "%index,")).build()
    assert [symbol.space for symbol in elf.read(project.image("net").read_bytes()).variables] == ["constant"]
    assert {each["kind"] for each in compared(project).values()} == {"identical"}


def test_g7_constants_that_do_not_fit_are_listed_with_their_source(project: Project) -> None:
    net(project, LL_HEAD + table("one", 7) + table("two", 11) + reader("reads", "one") + reader("looks", "two"))
    (error,) = errors(project)
    first, *rest = error.splitlines()
    assert first == "error: module net (sm_90): its 72000 bytes of constants do not fit into the 65536 of a program"
    assert len([line for line in rest if re.fullmatch(r" +36000 bytes  __table\$\w+ of net\.ll", line)]) == 2


ASM = """
define ptx_kernel void @fine(ptr addrspace(1) %x) {
  store i32 1, ptr addrspace(1) %x
  ret void
}
define internal void @inner(ptr addrspace(1) %x) noinline {
  call void asm sideeffect "INNER", ""()
  store i32 2, ptr addrspace(1) %x
  ret void
}
define ptx_kernel void @wrong(ptr addrspace(1) %x) {
  call void asm sideeffect "OUTER", ""()
  call void @inner(ptr addrspace(1) %x)
  ret void
}
"""


@pytest.mark.parametrize(("outer", "inner"), [("bogus.s32;", "exit;"), ("membar.gl;", "bogus.s32;")])
def test_l5_bad_ptx_is_told_with_kernel_module_and_source(project: Project, outer: str, inner: str) -> None:
    net(project, ll("one=1.0", head=STATE) + ASM.replace("OUTER", outer).replace("INNER", inner))
    (error,) = errors(project)
    assert error.startswith("error: kernel wrong of net/net.ll (sm_90): ptxas does not accept the PTX\n"), error
    assert re.search(r"^    ptxas PTX line \d+ \(kernel wrong of net\.ll\); error ", error, re.MULTILINE), error


def spilling(*names: str) -> str:
    """Kernels that keep sixty values at once."""
    text = ""
    for name in names:
        loads = "".join(
            f"  %p{n} = getelementptr i32, ptr addrspace(1) %x, i32 {n}\n  %v{n} = load volatile i32, ptr addrspace(1) %p{n}\n"
            for n in range(60)
        )
        stores = "".join(f"  store volatile i32 %v{n * 37 % 60}, ptr addrspace(1) %p{n}\n" for n in range(60))
        text += f"define ptx_kernel void @{name}(ptr addrspace(1) %x) {{\n{loads}{stores}  ret void\n}}\n"
    return text


@pytest.mark.parametrize("link", ["image", "bundle", "whole"])
def test_l10_spills_fail_with_their_bytes_and_leave_no_object(project: Project, link: str) -> None:
    net(project, ll("one=1.0") + spilling("heavy"), 'env["GPU_MAXRREGCOUNT"] = 24\n')
    project.edit("SConstruct", '"GPU_LINK"] = "whole"', f'"GPU_LINK"] = "{link}"')
    project.build()
    assert (project.manifest()["modules"]["net"]["kernels"]["heavy"]["archs"]["sm_90"]["spill_bytes"] or 0) > 0
    shutil.rmtree(project.path("build"))
    shutil.rmtree(project.path(".gpu-store/object"), ignore_errors=True)
    (error,) = errors(project, "GPU_FAIL_ON_SPILL=1", "-k")
    assert re.match(r"error: kernel heavy of net/net\.ll \(sm_90\): registers spill to local memory \(\d+ bytes stored, \d+ bytes l", error)
    assert not project.files("build/**/*.cubin")
    assert not project.files("build/**/*.gpubundle")
    assert not [name for name in project.files(".gpu-store/object/**/*.cubin") if b"heavy" in project.bytes(name)]
    project.fail("GPU_FAIL_ON_SPILL=1")  # what was refused is not taken for made
    project.build()


@pytest.mark.parametrize("link", ["image", "bundle", "whole"])
def test_t3_spills_are_told_once_a_kernel_and_again_when_reused(project: Project, link: str) -> None:
    net(project, ll("one=1.0") + spilling("heavy"), 'env["GPU_MAXRREGCOUNT"] = 24\n')
    project.edit("SConstruct", '"GPU_LINK"] = "whole"', f'"GPU_LINK"] = "{link}"')
    assert "spill" not in project.build().output
    warning = re.compile(
        r"registers of kernel heavy( of net\.ll)? spill to local memory: [1-9]\d* bytes stored, [1-9]\d* bytes loaded$", re.MULTILINE
    )
    assert len(warning.findall(project.build("GPU_WARN_ON_SPILL=1").stderr)) == 1
    project.idle("GPU_WARN_ON_SPILL=1")
    project.write("net.ll", ll("one=5.0") + spilling("heavy"))
    assert len(warning.findall(project.build("GPU_WARN_ON_SPILL=1").stderr)) == 1
    assert project.compiled() == ["one"]


def test_l8_an_assembler_that_drops_a_kernel_in_silence_is_found(project: Project, toolkit: Toolkit) -> None:
    net(project, ll("one=1.0", "two=2.0", head=STATE), f'env["GPU_CUDA_PATH"] = "{toolkit.root}"\n')
    toolkit.wrap("ptxas", toolkit.binaries / "ptxas", before="sed -i '/entry two(/,/^}/d' unit.ptx")
    (error,) = errors(project)
    assert error.startswith("error: net/net.ll (sm_90): the assembled image lacks kernel two\n"), error
    assert "the assembler dropped or doubled it" in error


def test_no_linker_is_needed(project: Project, toolkit: Toolkit) -> None:
    (toolkit.root / "bin/nvlink").unlink()
    net(project, ll("one=1.0", head=STATE), f'env["GPU_CUDA_PATH"] = "{toolkit.root}"\n').build()
    assert project.kernels("net") == ["one"]
    assert "there is no nvlink" in project.fail("GPU_LINK=image").output or "no nvlink beside it" in project.fail("GPU_LINK=image").output


def test_debug_information_that_does_not_merge_is_told(project: Project) -> None:
    project.write("SConstruct", CUDA + WHOLE + 'env.GpuProgram("build/net", env.GpuModule("net", ["net.cu"]))\n')
    project.write("net.cu", "__global__ void one(int* x) { x[0] += 1; }\n__global__ void two(int* x) { x[0] += 2; }\n")
    said = project.build("GPU_DEBUG=1").stderr
    told = "debug information does not merge into one PTX module, line tables do; left out: that of one(int*) of net.cu and 1 more"
    assert f"    {told}; GPU_LINK=image keeps it\n" in said
    assert len(project.kernels("net")) == 2
    project.idle("GPU_DEBUG=1")
    assert "debug information" not in project.build("GPU_LINEINFO=1").output


def test_what_the_store_holds_is_verified(project: Project) -> None:
    net(project, ll("one=1.0", "two=2.0", head=STATE)).build()
    project.build("GPU_VERIFY_REUSE=1")
    assert project.stats()["verified"] == 2
    assert project.done() == {}


def test_the_step_by_hand_makes_the_same_image(project: Project) -> None:
    net(project, ll("one=1.0", "two=2.0", head=STATE))
    printed = project.build("GPU_LINKCOMSTR=", "GPU_OPT=1").stdout
    line = next(line for line in printed.splitlines() if line.startswith("scons-gpu") and " link " in line)
    assert line.endswith("build/net/net/sm_90.cubin")
    words = line.split()[1:]
    for more in ([], ["--whole"]):
        words[-1] = "again.cubin"
        assert project.command(*words, *more).returncode == 0
        assert project.bytes("again.cubin") == project.bytes("build/net/net/sm_90.cubin")


def test_a_cubin_alone_may_be_whole(project: Project) -> None:
    project.write(
        "SConstruct", 'env.Cubin("one.cubin", ["net.ll"], GPU_LINK="whole")\nenv.Cubin("two.cubin", ["net.ll"], GPU_LINK="image")\n'
    )
    project.write("net.ll", ll("one=1.0", "two=2.0", head=STATE))
    project.build("-j2")
    assert project.done()["assemble"] == 3  # two kernels and the state, of the linked one
    kernels = [[kernel.symbol for kernel in elf.read(project.bytes(name)).kernels] for name in ("one.cubin", "two.cubin")]
    assert kernels == [["one", "two"], ["one", "two"]]
    project.idle()


TUNED = """
fills = env.GpuModule("fills", ["fill.ll"], FILLS)
tuned = env.GpuModule("net", ["net.ll"], candidates={"heavy": VALUES}, helpers=[fills])
env.GpuProgram("build/net", tuned)
"""


def tuned(project: Project, values: Sequence[object], fills: str = "") -> Project:
    project.write("SConstruct", WHOLE + TUNED.replace("VALUES", repr(list(values))).replace(", FILLS", fills and f", {fills}"))
    project.write("net.ll", ll("one=1.0", head=STATE) + spilling("heavy"))
    project.write("fill.ll", ll("fill=3.0"))
    return project


def test_m11_candidates_are_measured_as_programs_of_their_own(project: Project) -> None:
    tuned(project, [{}, {"GPU_FTZ": 1, "needs": ["fill"]}]).build("gpu-dump", "build")
    assert project.done()["assemble"] == 2
    build = project.manifest()["modules"]["net"]["kernels"]["heavy"]["archs"]["sm_90"]
    assert build["chosen"]["by"] == "resources"
    assert {path.name.partition(".")[2] for path in project.root.glob(".gpu-store/object/*/*.cubin")} == {"whole.cubin"}
    assert project.kernels("net") == ["heavy", "one"]
    assert {each["kind"] for each in compared(project).values()} == {"identical"}
    project.idle("gpu-dump", "build")
    # The figures that were chosen by are those of the image.
    choice = json.loads(project.read("build/net/net/sm_90.choice.json").splitlines()[0])
    assert {result["registers"] for result in choice["problems"]["heavy"]} == {build["registers"]}


@pytest.mark.parametrize(
    ("values", "fills", "who"),
    [
        ([{}, {"GPU_MAXRREGCOUNT": 24}], "", "candidates of heavy: GPU_MAXRREGCOUNT"),
        ([{}], "GPU_PTXASFLAGS='-dlcm=ca'", "helper fills: GPU_PTXASFLAGS"),
    ],
)
def test_m11_options_of_an_assembler_are_the_modules(project: Project, values: list[object], fills: str, who: str) -> None:
    result = tuned(project, values, fills).fail()
    said = f"error: module net: {who} cannot be another one than the module's with GPU_LINK=whole\n  what is assembled in one piece"
    assert said in result.output, result.output
    project.build("GPU_LINK=image")
