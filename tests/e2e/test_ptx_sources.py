"""PTX as a source of modules: images, bundles and merged PTX of it, what an edit costs, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from elftools.elf.elffile import ELFFile
from project import Project, ll

if TYPE_CHECKING:
    from scons_gpu.toolchain.tools import Toolchain

NET = 'env.GpuProgram("build/net", env.GpuModule("net", ["k.ptx"]))\n'
BUNDLE = NET.replace('["k.ptx"]', '["k.ptx"], GPU_LINK="bundle"')
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
SHARED = ".global .align 4 .u32 memo;\n.visible .const .align 4 .f32 scale = 0f3F800000;\n"
HELPER = """.func (.param .f32 out) helper(.param .f32 in)
{
	.reg .f32 %f<3>;
	ld.param.f32 %f1, [in];
	sqrt.rn.f32 %f2, %f1;
	st.param.f32 [out], %f2;
	ret;
}
"""


def entry(name: str, number: str = "1", *, more: str = "") -> str:
    return f"""
.visible .entry {name}(
	.param .u64 {name}_param_0
)
.maxntid 128, 1, 1
{{
	.reg .f32 %f<9>;
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	ld.param.u64 	%rd1, [{name}_param_0];
	cvta.to.global.u64 	%rd2, %rd1;
	mov.u32 	%r1, %tid.x;
	mul.wide.u32 	%rd3, %r1, 4;
	add.s64 	%rd4, %rd2, %rd3;
	ld.global.f32 	%f1, [%rd4];
	{{ // callseq 0, 0
	.param .f32 param0;
	st.param.f32 	[param0+0], %f1;
	.param .f32 retval0;
	call.uni (retval0), helper, (param0);
	ld.param.f32 	%f2, [retval0+0];
	}} // callseq 0
	add.u32 	%r2, %r1, {number};
	cvt.rn.f32.u32 	%f3, %r2;
	fma.rn.f32 	%f4, %f2, %f3, %f1;
	st.global.f32 	[%rd4], %f4;
	{more}
	ret;
}}
"""


COUNTS = "atom.global.add.u32 %r3, [memo], 1; ld.const.f32 %f5, [scale]; st.global.f32 [%rd2], %f5;"
SOURCE = HEAD + SHARED + HELPER + entry("a", "1", more=COUNTS) + entry("b", "2", more=COUNTS) + entry("c", "3")


def sections(path: Path) -> dict[str, bytes]:
    with path.open("rb") as file:
        return {each.name: each.data() for each in ELFFile(file).iter_sections() if each.name.startswith(".text.")}


def test_an_image_of_ptx_is_built_unit_by_unit(project: Project) -> None:
    project.write("k.ptx", SOURCE)
    project.write("SConstruct", NET)
    result = project.build()
    assert "source    k.ptx  sm_90" in result.lines
    assert project.kernels("net") == ["a", "b", "c"]
    assert project.variables("net") == ["memo", "scale"], "one of each (G6), under the names that the host knows"
    kernels = project.manifest()["modules"]["net"]["kernels"]
    assert {one["archs"]["sm_90"]["lowered_by"] for one in kernels.values()} == {None}
    assert kernels["a"]["archs"]["sm_90"]["max_threads"] == 128
    project.idle()
    for part in project.plan("net")["parts"]:
        assert {field for field, _ in part["key"]} == {"arch", "format", "renames", "slice"}


def test_editing_one_entry_compiles_one_unit(project: Project) -> None:
    project.write("k.ptx", SOURCE)
    project.write("SConstruct", NET)
    project.build()
    project.edit("k.ptx", "%r1, 3;", "%r1, 30;")
    project.build()
    assert project.compiled() == ["c"]
    assert project.done()["assemble"] == 1
    project.edit("k.ptx", "sqrt.rn.f32", "sqrt.approx.f32")
    project.build()
    assert project.compiled() == ["a", "b", "c"]
    project.idle()


def test_d4_comments_and_order_compile_nothing(project: Project) -> None:
    project.write("k.ptx", SOURCE)
    project.write("SConstruct", NET)
    project.build()
    project.write(
        "k.ptx",
        HEAD + "// said\n" + SHARED + HELPER + entry("c", "3") + "/* more */" + entry("b", "2", more=COUNTS) + entry("a", more=COUNTS),
    )
    project.build()
    assert project.compiled() == []
    assert project.done()["link"] == 0, "the index is what it was"


def test_g6_a_bundle_of_ptx_has_the_undivided_files_code(project: Project, toolchain: Toolchain) -> None:
    assert toolchain.ptxas
    project.write("k.ptx", SOURCE)
    project.write("SConstruct", BUNDLE)
    project.build()
    assert [(len(part["kernels"]), part["joined"]) for part in project.plan("net")["parts"]] == [(2, "state"), (1, "")]
    subprocess.run([toolchain.ptxas.path, "-arch=sm_90", "k.ptx", "-o", "whole.cubin"], cwd=project.root, check=True)
    whole = sections(project.path("whole.cubin"))
    with zipfile.ZipFile(project.path("build/net/net.gpubundle")) as bundle:
        bundle.extractall(project.path("units"))
    units = [sections(path) for path in project.path("units").glob("**/*.cubin")]
    assert {name: data for unit in units for name, data in unit.items()} == whole
    assert project.command("compare", "build/net.json").returncode == 0


def test_compare_holds_an_image_against_the_file(project: Project) -> None:
    project.write("k.ptx", SOURCE)
    project.write("SConstruct", NET)
    project.build()
    compared = project.command("compare", "build/net.json")
    assert compared.returncode == 0, compared.output
    assert [line.split()[2] for line in compared.stdout.splitlines() if " sm_90 " in line] == ["a", "b", "c"]


def test_ptx_beside_ir_in_one_module(project: Project) -> None:
    """Both forms of merged PTX and of an image; private variables of one name stay two; what one lacks the other has."""
    private = "@memo = internal addrspace(1) global i32 0\n"
    use = "define ptx_kernel void @uses() {\n  %1 = atomicrmw add ptr addrspace(1) @memo, i32 1 seq_cst\n  ret void\n}\n"
    project.write("k.ptx", SOURCE + ".extern .global .align 4 .u32 from_ir;\n" + entry("d", more="st.global.u32 [from_ir], %r1;"))
    project.write(
        "l.ptx",
        HEAD.replace("8.0", "7.1")
        + ".global .align 4 .u32 memo;\n.visible .entry e() { .reg .b32 %r<3>; atom.global.add.u32 %r1, [memo], 1; ret; }\n",
    )
    project.write("m.ll", ll("one", head=private + use + "@from_ir = addrspace(1) externally_initialized global i32 0\n"))
    project.write("SConstruct", 'env["GPU_ARCHS"] = ["sm_90", "compute_90"]\n' + NET.replace('["k.ptx"]', '["k.ptx", "l.ptx", "m.ll"]'))
    project.build()
    assert project.kernels("net") == ["a", "b", "c", "d", "e", "one", "uses"]
    variables = project.variables("net")
    assert len(variables) == 5
    assert {"memo", "memo$2", "scale", "from_ir"} < set(variables)
    merged = project.read("build/net/net/compute_90.ptx")
    assert merged.startswith(".version 8.0\n.target sm_90\n") or merged.split()[1] > "8.0"
    assert merged.count(".entry") == 7
    project.idle()
    lowered = {name: one["archs"]["sm_90"]["lowered_by"] for name, one in project.manifest()["modules"]["net"]["kernels"].items()}
    assert (lowered["a"], lowered["one"]) == (None, "llvm")


def test_compare_knows_each_kernels_own_undivided_build(project: Project) -> None:
    project.write("k.ptx", SOURCE)
    project.write("l.ptx", HEAD + HELPER + entry("d"))
    project.write("m.ll", ll("one"))
    project.write("SConstruct", BUNDLE.replace('["k.ptx"]', '["k.ptx", "l.ptx", "m.ll"]'))
    project.build()
    compared = project.command("compare", "build/net.json", "--json")
    assert compared.returncode == 0, compared.output
    assert json.loads(compared.stdout)["counts"]["identical"] == 5


def test_s2_kernels_of_one_name_in_two_files(project: Project) -> None:
    project.write("k.ptx", HEAD + HELPER + entry("a"))
    project.write("l.ptx", "// the same\n" + HEAD + HELPER + entry("b") + entry("a"))
    project.write("SConstruct", NET.replace('["k.ptx"]', '["k.ptx", "l.ptx"]'))
    project.build()
    assert project.kernels("net") == ["a", "b"]
    project.edit("l.ptx", "// the same\n", "")
    project.write("l.ptx", HEAD + HELPER + entry("a", "7"))
    assert "kernel a is defined differently in k.ptx and in l.ptx" in project.fail().output


def test_d1_twins_share_an_object(project: Project) -> None:
    project.write("k.ptx", HEAD + HELPER + entry("a") + entry("b"))
    project.write("SConstruct", BUNDLE.replace('GPU_LINK="bundle"', 'GPU_LINK="bundle", GPU_SHARE_TWINS=1'))
    project.build()
    with zipfile.ZipFile(project.path("build/net/net.gpubundle")) as bundle:
        assert len([name for name in bundle.namelist() if name.endswith(".cubin")]) == 1
    assert project.stats()["twins"] == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + "\n.visible .entry k() {\n", "k.ptx:5 (sm_90): this opens a brace that nothing closes"),
        (HEAD.replace(".version 8.0\n", "") + entry("a"), "k.ptx (sm_90): not PTX: no .version"),
        (SOURCE.replace("sm_80", "sm_100a"), "its .target is sm_100a, which cannot be built for sm_90"),
        ("\x7fELF\x02", "this is machine code (ELF), not PTX"),
        (HEAD + ".extern .func lost();\n.visible .entry k() { call lost; ret; }\n", "k uses lost, which nobody defines"),
    ],
)
def test_s13_what_is_no_fit_ptx_is_refused_before_anything_is_written(project: Project, text: str, said: str) -> None:
    project.write("k.ptx", text)
    project.write("SConstruct", NET)
    result = project.fail()
    assert said in result.output
    assert "net/k.ptx" in result.output or "k.ptx" in result.output
    assert not project.exists("build/net/net/sm_90.cubin")
    assert project.done()["assemble"] == 0


def test_l5_what_the_assembler_refuses_is_named(project: Project) -> None:
    project.write("k.ptx", SOURCE.replace("add.u32 	%r2, %r1, 3;", "add.bogus 	%r2, %r1, 3;"))
    project.write("SConstruct", NET)
    result = project.fail()
    assert "kernel c of net/k.ptx" in result.output
    assert "add.bogus" in result.output or "bogus" in result.output


def test_l12_an_assembler_too_old_for_the_file_is_told_before_anything_is_assembled(project: Project, toolchain: Toolchain) -> None:
    assert toolchain.ptxas
    for tool in ("ptxas", "nvlink", "fatbinary"):
        real = Path(toolchain.ptxas.path).with_name(tool)
        path = project.path(f"old/bin/{tool}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'#!/bin/sh\ncase "$*" in *--version*|*-V*) echo "Cuda compilation tools, release 12.2, V12.2.140"; exit ;; esac\nexec {real} "$@"\n'
        )
        path.chmod(0o755)
    project.write("k.ptx", SOURCE.replace("8.0", "8.7"))
    project.write("SConstruct", 'env["GPU_CUDA_PATH"] = "#old"\n' + NET)
    assert "it is written in PTX 8.7, and ptxas 12.2.140 reads PTX up to 8.2" in project.fail().output
    assert project.done()["assemble"] == 0


def test_lines_are_kept_where_they_are_asked_for(project: Project) -> None:
    project.write("k.ptx", HEAD + '.file 4 "far.cu"\n' + HELPER.replace("\tret;", "\t.loc 4 7 1\n\tret;") + entry("a"))
    project.write("SConstruct", NET)
    project.build()
    assert ".loc" not in next(iter(project.files(".gpu-store/slice/**/*").values())).decode()
    project.build("GPU_LINEINFO=1")
    assert project.compiled() == ["a"]
    assert any(b'.file 1 "far.cu"' in text and b".loc 1 7 1" in text for text in project.files(".gpu-store/slice/**/*").values())
    project.build("GPU_DEBUG=1", "GPU_OPT=0")
    assert project.compiled() == []
    assert project.done()["assemble"] == 1


def test_by_hand(project: Project) -> None:
    project.write("k.ptx", SOURCE)
    assert project.command("split", "k.ptx", "--arch", "sm_90", "-o", "k.index.json").returncode == 0
    made = project.command("plan", "k.index.json", "--arch", "sm_90", "--module", "net", "-o", "net.plan.json")
    assert made.returncode == 0, made.output
    assert '"language": "ptx"' in project.read("net.plan.json")
    refused = project.command("split", "k.ptx", "--arch", "sm_75", "-o", "k.index.json")
    assert (refused.returncode, "cannot be built for sm_75" in refused.output) == (1, True)


CUDA_SOURCE = """
static __device__ int calls;
static __device__ __noinline__ float twice(float x) { return x + x; }
template <int N> __global__ void __launch_bounds__(N) scale(float* p) {
  __shared__ float tile[N];
  tile[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = twice(tile[N - 1 - threadIdx.x]) + sinf(p[0]);
}
template __global__ void scale<32>(float*);
template __global__ void scale<64>(float*);
extern "C" __global__ void count(int* p) { *p = atomicAdd(&calls, 1); }
extern "C" __global__ void other(float* p) { *p = twice(*p); }
"""


def nvrtc(source: str) -> str:
    binding = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        _, program = binding.nvrtcCreateProgram(source.encode(), b"k.cu", 0, [], [])
    except RuntimeError as missing:
        pytest.skip(f"no NVRTC: {missing}")
    (error,) = binding.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_90"])
    assert error == binding.nvrtcResult.NVRTC_SUCCESS
    _, size = binding.nvrtcGetPTXSize(program)
    data = b" " * size
    binding.nvrtcGetPTX(program, data)
    return data.rstrip(b"\0").decode()


def nvcc(source: str, folder: Path) -> str:
    path = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/bin/nvcc"), None)
    if path is None or shutil.which("g++") is None:
        pytest.skip("no nvcc, or no g++ for it")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "in.cu").write_text(source)
    environ = {**os.environ, "PATH": f"{path.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [path, "-ptx", "-arch=compute_90", "in.cu", "-o", "in.ptx"], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"nvcc does not work here: {done.stderr[-300:]}")
    return (folder / "in.ptx").read_text()


@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
def test_what_nvidias_compilers_print(project: Project, compiler: str) -> None:
    project.write("k.ptx", nvrtc(CUDA_SOURCE) if compiler == "nvrtc" else nvcc(CUDA_SOURCE, project.path("made")))
    project.write("SConstruct", NET + BUNDLE.replace('"build/net"', '"build/apart"').replace('"net"', '"net2"'))
    project.build()
    readable = {one["readable"]: one["archs"]["sm_90"] for one in project.manifest()["modules"]["net"]["kernels"].values()}
    assert set(readable) == {"scale<32>(float*)", "scale<64>(float*)", "count", "other"}
    assert readable["scale<64>(float*)"]["shared_bytes"] == 256
    assert readable["scale<32>(float*)"]["max_threads"] == 32
    assert [len(part["kernels"]) for part in project.plan("net2", stem="build/apart")["parts"]] == [1, 1, 1, 1]
    compared = project.command("compare", "build/apart.json")
    assert compared.returncode == 0, compared.output
