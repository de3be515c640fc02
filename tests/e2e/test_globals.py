"""G: globals. One variable where there is one, in the image, in the text that the driver assembles, and in a bundle."""

from __future__ import annotations

import io
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from elftools.elf.elffile import ELFFile
from project import CUDA, LL_HEAD, Project

from scons_gpu.link import bundle, elf

if TYPE_CHECKING:
    from pathlib import Path

    from scons_gpu.toolchain.tools import Toolchain

FORMS = """
image = env.GpuModule("image", {0}, GPU_LINK="image")
merged = env.GpuModule("merged", {0}, GPU_LINK="auto")
apart = env.GpuModule("bundle", {0}, GPU_LINK="bundle")
whole = env.GpuModule("whole", {0}, GPU_LINK="whole")
text = env.GpuModule("text", {0}, GPU_ARCHS="compute_90")
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[image, merged, apart, whole, text]))
"""
"""The same sources in every form that a module can take."""


def forms(project: Project, *, ordered: bool = True, **sources: str) -> None:
    """Builds them. `ordered`: whether merging has the kernels in the order of one assembly: where one calls through memory it has not."""
    names = [name.replace("_", ".") for name in sources]
    project.write("SConstruct", CUDA + 'env["CPPPATH"] = ["."]\n' + FORMS.format(repr([name for name in names if not name.endswith(".h")])))
    for name, text in zip(names, sources.values(), strict=True):
        project.write(name, text)
    project.build("-j2")
    if ordered:
        assert project.bytes("build/net/merged/sm_90.cubin") == project.bytes("build/net/whole/sm_90.cubin")
    assert sorted(code(project, "merged")) == sorted(code(project, "whole"))
    modules = project.manifest()["modules"]
    assert modules["whole"]["state"] == modules["image"]["state"]
    # What several kernels have a copy of stands once in what is merged, under a name of its own.
    whole = [re.sub(r"__[0-9a-f]{16}$", "", name) for name in project.variables("whole")]
    assert sorted(set(whole)) == sorted(set(project.variables("image")))
    assert len(whole) == len(set(whole))
    assert project.kernels("whole") == project.kernels("image")


def code(project: Project, module: str) -> list[tuple[str, bytes]]:
    """Each section of machine code."""
    read = ELFFile(io.BytesIO(project.bytes(f"build/net/{module}/sm_90.cubin")))
    return [(section.name, section.data()) for section in read.iter_sections() if section.name.startswith(".text.")]


def bundled(project: Project) -> dict[str, list[str]]:
    """Unit's kernels → the variables of its object in global and constant memory, sorted."""
    objects = bundle.read_bundle(project.bytes("build/net/bundle.gpubundle")).objects
    found = {}
    for data in objects.values():
        read = elf.read(data)
        found[" ".join(sorted(kernel.symbol for kernel in read.kernels))] = sorted(symbol.name for symbol in read.variables)
    return found


def assembled(project: Project, toolchain: Toolchain, tmp_path: Path) -> list[str]:
    """The variables of what the driver would make of the module's text."""
    assert toolchain.ptxas is not None
    output = tmp_path / "driver.cubin"
    text = project.path("build/net/text/compute_90.ptx")
    subprocess.run([toolchain.ptxas.path, "-arch=sm_90", str(text), "-o", str(output)], check=True, capture_output=True)
    return sorted(symbol.name for symbol in elf.read(output.read_bytes()).variables)


STATE = """\
#include "state.h"
__constant__ float coefficients[4];
__device__ int counter;
static __device__ int seen[8];
extern "C" __global__ void first(float* data) { data[0] = coefficients[seen[atomicAdd(&counter, 1) & 7]++ & 3]; data[1] = by_name++; }
extern "C" __global__ void second(float* data) {
  static __device__ int calls;
  data[0] = coefficients[2] + seen[atomicAdd(&counter, 2) & 7]++ + calls++ + by_template<int>++;
}
extern "C" __global__ void third(float* data) { data[0] = by_template<int>++ + by_name++; }
extern "C" __global__ void alone(float* data) { data[0] = 1.0f; }
"""


def test_g1_g6_state_is_one_variable_in_every_form(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    forms(
        project,
        state_h="inline __device__ int by_name;\ntemplate <class T> __device__ T by_template;\n",
        one_cu=STATE,
        two_cu='#include "state.h"\nextern "C" __global__ void fourth(int* data) { data[0] = by_name++ + by_template<int>++; }\n',
    )

    image = project.variables("image")
    assert [name for name in image if "$" not in name] == sorted(["by_name", "_Z11by_templateIiE", "coefficients", "counter"])
    private = [re.sub(r"\$[0-9a-f]{16}$", "", name) for name in image if "$" in name]
    assert private == ["_ZL4seen", "_ZZ6secondE5calls"]
    assert assembled(project, toolchain, tmp_path) == image
    assert [state["symbol"] for state in project.manifest()["modules"]["image"]["state"]] == image
    # In a bundle, each program has what it uses; kernels of one source that share some are one program.
    found = bundled(project)
    assert sorted(found) == ["alone", "first second third", "fourth"]
    assert found["alone"] == []
    assert found["fourth"] == sorted(["by_name", "_Z11by_templateIiE"])
    assert found["first second third"] == sorted(
        ["by_name", "_Z11by_templateIiE", "coefficients", "counter", "_ZL4seen", "_ZZ6secondE5calls"]
    )
    project.idle()


def test_g2_what_only_the_host_uses_is_in_the_image(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    forms(
        project,
        kernels_cu='__device__ int beside;\nextern "C" __global__ void k(int* data) { data[0] = 1; }\n',
        only_cu="__constant__ float unused[3];\n__device__ int* pointer;\n",
    )
    expected = ["beside", "pointer", "unused"]
    assert project.variables("image") == assembled(project, toolchain, tmp_path) == expected
    assert [state["symbol"] for state in project.manifest()["modules"]["image"]["state"]] == expected


@pytest.mark.parametrize("how", ["", "GPU_LINK=whole", "GPU_PROVIDER=none", "GPU_PROVIDER=nvjitlink"])
def test_g2_a_module_of_variables_alone_has_an_image_of_them(project: Project, how: str) -> None:
    project.write("net.ll", LL_HEAD + "@limits = addrspace(4) externally_initialized global [4 x float] zeroinitializer\n")
    project.write("SConstruct", 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n')
    project.build(*how.split())
    module = project.manifest()["modules"]["net"]
    assert (module["kernels"], module["state"]) == ({}, [{"symbol": "limits", "bytes": 16, "space": "constant"}])
    if how == "GPU_PROVIDER=none":
        assert "limits[16]" in project.read("build/net/net/sm_90.ptx")
    else:
        assert project.variables("net") == ["limits"]
    project.idle(*how.split())
    project.write("net.ll", LL_HEAD)
    project.build(*how.split())
    assert (project.manifest()["modules"]["net"]["images"], project.exists("build/net/net.fatbin")) == ({}, False)


TABLE = ", ".join(f"i32 {(number * 2654435761) % 65521}" for number in range(10_000))
ZEROS = ", ".join("i32 9" for _ in range(10_000))


def reader(name: str, table: str, index: str = "%index", space: int = 1) -> str:
    return f"""
define ptx_kernel void @{name}(ptr addrspace(1) %data) {{
  %index = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %place = getelementptr [10000 x i32], ptr addrspace({space}) @{table}, i32 0, i32 {index}
  %found = load i32, ptr addrspace({space}) %place
  %more = add i32 %found, {len(name) * 1000 + sum(map(ord, name))}
  store i32 %more, ptr addrspace(1) %data
  ret void
}}
"""


def test_g3_a_table_of_50_kernels_is_in_the_image_once(project: Project) -> None:
    kernels = [f"reads_{number}" for number in range(50)]
    project.write("SConstruct", 'env.GpuProgram("build/net", env.GpuModule("image", ["net.ll"]))\n')
    project.write(
        "net.ll",
        LL_HEAD
        + f"@table = internal unnamed_addr addrspace(1) constant [10000 x i32] [{TABLE}]\n"
        + f"@same = internal unnamed_addr addrspace(1) constant [10000 x i32] [{TABLE}]\n"
        + "".join(reader(name, "table" if number % 2 else "same") for number, name in enumerate(kernels)),
    )
    project.build("-j2")
    (table,) = project.variables("image")
    assert table.startswith("__table$")
    assert project.image("image").stat().st_size < 40_000 + 50 * 4_000
    assert project.kernels("image") == sorted(kernels)


def test_g3_tables_that_fold_away_take_no_constant_memory(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    forms(
        project,
        net_ll=LL_HEAD
        + f"@ones = internal addrspace(4) constant [10000 x i32] [{TABLE}]\n"
        + f"@nines = internal addrspace(4) constant [10000 x i32] [{ZEROS}]\n"
        + reader("folds_one", "ones", "7", 4)
        + reader("folds_nine", "nines", "9", 4),
    )
    assert project.variables("image") == assembled(project, toolchain, tmp_path) == []
    assert bundled(project) == {"folds_one": [], "folds_nine": []}


def test_g3_tables_whose_addresses_are_compared_stay_two(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    forms(
        project,
        net_ll=LL_HEAD
        + f"@one = internal addrspace(1) constant [10000 x i32] [{TABLE}]\n"
        + f"@two = internal addrspace(1) constant [10000 x i32] [{TABLE}]\n"
        + """
define internal i32 @first_of(ptr addrspace(1) %table) noinline {
  %value = load i32, ptr addrspace(1) %table
  ret i32 %value
}
define ptx_kernel void @compares(ptr addrspace(1) %data, i1 %which) {
  %table = select i1 %which, ptr addrspace(1) @one, ptr addrspace(1) @two
  %other = load volatile ptr addrspace(1), ptr addrspace(1) %data
  %same = icmp eq ptr addrspace(1) %table, %other
  %wide = zext i1 %same to i32
  %first = call i32 @first_of(ptr addrspace(1) %table)
  %sum = add i32 %wide, %first
  store i32 %sum, ptr addrspace(1) %data
  ret void
}
"""
        + reader("reads_one", "one")
        + reader("reads_two", "two"),
    )
    names = [name.partition("$")[0] for name in project.variables("image")]
    assert names == ["__table", "one", "two"]
    assert assembled(project, toolchain, tmp_path) == project.variables("image")
    assert {kernel: len(found) for kernel, found in bundled(project).items()} == {"compares": 2, "reads_one": 1, "reads_two": 1}


def test_g4_what_an_initialiser_names_goes_along(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    forms(
        project,
        ordered=False,
        net_cu="""\
__device__ int deep = 7;
__device__ int* middle[2] = {&deep, 0};
__device__ int*** const unused_here = 0;
__device__ int** top = middle;
typedef int (*Function)(int);
__device__ int counted;
__device__ __noinline__ int plus(int v) { return v + atomicAdd(&counted, 1); }
__device__ __noinline__ int minus(int v) { return v - 1; }
__device__ Function functions[2] = {plus, minus};
static __device__ const Function fixed[2] = {minus, plus};
extern "C" __global__ void follows(int* data) { data[0] = **top; }
extern "C" __global__ void calls(int* data, int which) { data[0] = functions[which](data[1]) + fixed[which](data[2]); }
extern "C" __global__ void neither(int* data) { data[0] = 3; }
""",
    )
    expected = ["counted", "deep", "functions", "middle", "top"]
    assert [name for name in project.variables("image") if name in expected] == expected
    assert [name for name in assembled(project, toolchain, tmp_path) if name in expected] == expected
    found = bundled(project)
    assert found["neither"] == []
    assert set(found["follows"]) == {"deep", "middle", "top"}
    assert {"counted", "functions"} <= set(found["calls"])
    functions = {
        symbol.name for symbol in elf.read(project.image("image").read_bytes()).symbols if symbol.kind == "function" and symbol.defined
    }
    assert {name for name in ("plus", "minus") if any(name in function for function in functions)} == {"plus", "minus"}


def test_g5_what_each_kernel_has_for_itself_does_not_clash(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    text = """\
__shared__ int tile[64];
template <class T> __device__ T* buffer() { __shared__ T memory[32]; return memory; }
static __device__ int read_only[4] = {1, 2, 3, 4};
extern "C" __global__ void NAME_a(int* data) { tile[threadIdx.x] = data[0]; __syncthreads(); data[1] = tile[63 - threadIdx.x] + read_only[data[2] & 3]; }
extern "C" __global__ void NAME_b(int* data) { tile[threadIdx.x] = data[0]; buffer<int>()[threadIdx.x] = 1; __syncthreads();
  data[1] = tile[data[3]] + buffer<int>()[data[4]]; }
extern "C" __global__ void NAME_c(int* data) { buffer<int>()[threadIdx.x] = 1; __syncthreads(); data[1] = buffer<int>()[data[5]] + read_only[data[0] & 3]; }
"""
    forms(project, one_cu=text.replace("NAME", "one"), two_cu=text.replace("NAME", "two"))
    kernels = project.manifest()["modules"]
    for module, arch in (("image", "sm_90"), ("bundle", "sm_90")):
        sizes = {name: made["archs"][arch]["shared_bytes"] for name, made in kernels[module]["kernels"].items()}
        assert sizes == {f"{source}_{name}": size for source in ("one", "two") for name, size in (("a", 256), ("b", 384), ("c", 128))}
    assert all(not part["joined"] for part in project.plan("bundle")["parts"])
    assert not project.manifest()["modules"]["image"]["state"]
    assert assembled(project, toolchain, tmp_path) is not None


def test_g7_too_many_constants_are_listed_before_the_link(project: Project) -> None:
    project.write(
        "SConstruct",
        CUDA
        + """
state = env.GpuModule("state", ["a.cu", "b.cu"])
tables = env.GpuModule("tables", ["t.ll"])
program = env.GpuModule("program", ["p.cu"], GPU_LINK="bundle")
fits = env.GpuModule("fits", ["a.cu", "b.cu"], GPU_LINK="bundle")
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[state, tables, program, fits]))
""",
    )
    project.write("a.cu", "__constant__ int large[10000];\n__global__ void a(int* data) { data[0] = large[data[1]]; }\n")
    project.write(
        "b.cu",
        "__constant__ int larger[8000];\n__constant__ char small[4];\n__global__ void b(int* data) { data[0] = larger[data[1]] + small[data[2] & 3]; }\n",
    )
    project.write(
        "p.cu",
        "__constant__ int one[9000];\n__constant__ int two[9000];\n__global__ void p(int* data) { data[0] = one[data[1]] + two[data[2]]; }\n",
    )
    project.write(
        "t.ll",
        LL_HEAD
        + f"@ones = internal addrspace(4) constant [10000 x i32] [{TABLE}]\n"
        + f"@nines = internal addrspace(4) constant [10000 x i32] [{ZEROS}]\n"
        + reader("reads_one", "ones", space=4)
        + reader("reads_nine", "nines", space=4),
    )
    result = project.fail("-k", "-j2")
    errors = re.findall(r"^error: (.*)\n((?: {4}.*\n)*)", result.stderr, re.MULTILINE)
    said = {re.search(r"(state|tables|program|fits)", head)[0]: (head, tail) for head, tail in errors}  # type: ignore[index]
    assert set(said) == {"state", "tables", "program"}, result.output
    assert said["state"][0] == "module state (sm_90): 72004 bytes of __constant__ variables do not fit into the 65536 bytes of an image"
    assert said["state"][1].splitlines()[:2] == ["       40000 bytes  large of a.cu", "       32000 bytes  larger of b.cu"]
    assert re.search(r"40000 bytes  __table\$\w+ of t\.ll", said["tables"][1]), result.output
    assert "36000 bytes  one" in said["program"][1], result.output
    assert "kernel p(int*)" in said["program"][0]
    assert not list(project.root.glob("build/net/state/*plan*"))


EXTERN = """\
extern __device__ int elsewhere;
extern __constant__ float settings[4];
extern "C" __global__ void uses(int* data) { data[0] = elsewhere++ + (int)settings[data[1]]; }
extern "C" __global__ void fine(int* data) { data[0] = 1; }
"""


def test_g1_a_variable_of_another_source_is_found_by_the_link(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    project.write(
        "SConstruct",
        CUDA
        + """
image = env.GpuModule("image", ["uses.cu", "has.cu"], GPU_LINK="image")
text = env.GpuModule("text", ["uses.cu", "has.cu"], GPU_ARCHS="compute_90")
apart = env.GpuModule("apart", ["uses.cu", "has.cu"], GPU_LINK="bundle")
nobody = env.GpuModule("nobody", ["uses.cu"])
points = env.GpuModule("points", ["points.cu"])
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[image, text, apart, nobody, points]))
""",
    )
    project.write("uses.cu", EXTERN)
    project.write(
        "has.cu",
        '__device__ int elsewhere;\n__constant__ float settings[4];\nextern "C" __global__ void has(int* data) { data[0] = elsewhere; }\n',
    )
    project.write(
        "points.cu",
        'extern __device__ int lost;\n__device__ int* pointer = &lost;\nextern "C" __global__ void alone(int* data) { data[0] = 2; }\n',
    )
    result = project.fail("-k", "-j2")
    assert project.variables("image") == ["elsewhere", "settings"]
    assert assembled(project, toolchain, tmp_path) == ["elsewhere", "settings"]
    errors = sorted(line for line in result.output.splitlines() if line.startswith("error: "))
    assert errors == [
        "error: kernel uses of apart/uses.cu (sm_90): uses uses elsewhere, which has.cu defines",
        "error: kernel uses of nobody/uses.cu (sm_90): uses uses elsewhere, which nobody defines",
        "error: points/points.cu (sm_90): pointer uses lost, which nobody defines",
    ], result.output
    assert {"alone", "fine"} <= set(project.compiled())


@pytest.mark.parametrize("private", ["internal ", ""])
def test_textures_and_surfaces_by_name(project: Project, private: str) -> None:
    forms(
        project,
        net_ll=LL_HEAD
        + f"""
@picture = {private}addrspace(1) global i64 undef, align 8
@board = {private}addrspace(1) global i64 undef, align 8
declare i64 @llvm.nvvm.texsurf.handle.internal.p1(ptr addrspace(1))
declare {{ float, float, float, float }} @llvm.nvvm.tex.unified.1d.v4f32.s32(i64, i32)
declare void @llvm.nvvm.sust.b.1d.i32.trap(i64, i32, i32)
define ptx_kernel void @looks(ptr addrspace(1) %data) {{
  %handle = call i64 @llvm.nvvm.texsurf.handle.internal.p1(ptr addrspace(1) @picture)
  %found = call {{ float, float, float, float }} @llvm.nvvm.tex.unified.1d.v4f32.s32(i64 %handle, i32 1)
  %value = extractvalue {{ float, float, float, float }} %found, 0
  store float %value, ptr addrspace(1) %data
  ret void
}}
define ptx_kernel void @draws(ptr addrspace(1) %data) {{
  %handle = call i64 @llvm.nvvm.texsurf.handle.internal.p1(ptr addrspace(1) @board)
  call void @llvm.nvvm.sust.b.1d.i32.trap(i64 %handle, i32 4, i32 5)
  ret void
}}
define ptx_kernel void @both(ptr addrspace(1) %data) {{
  %handle = call i64 @llvm.nvvm.texsurf.handle.internal.p1(ptr addrspace(1) @board)
  call void @llvm.nvvm.sust.b.1d.i32.trap(i64 %handle, i32 8, i32 5)
  %texture = call i64 @llvm.nvvm.texsurf.handle.internal.p1(ptr addrspace(1) @picture)
  %found = call {{ float, float, float, float }} @llvm.nvvm.tex.unified.1d.v4f32.s32(i64 %texture, i32 2)
  %value = extractvalue {{ float, float, float, float }} %found, 0
  store float %value, ptr addrspace(1) %data
  ret void
}}
!nvvm.annotations = !{{!0, !1}}
!0 = !{{ptr addrspace(1) @picture, !"texture", i32 1}}
!1 = !{{ptr addrspace(1) @board, !"surface", i32 1}}
""",
    )
    assert project.kernels("image") == ["both", "draws", "looks"]
    text = project.read("build/net/text/compute_90.ptx")
    assert (len(re.findall(r"\.texref picture", text)), len(re.findall(r"\.surfref board", text))) == (1, 1)
    state = [state["symbol"].partition("$")[0] for state in project.manifest()["modules"]["image"]["state"]]
    assert state == ["board", "picture"]
