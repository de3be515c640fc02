"""`.cu` in ordinary builders: programs and libraries that launch kernels."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from host_parts import HEAD, built_twice, make_runtime, said, write_program
from project import Project

from scons_gpu.host import registered as reader

if TYPE_CHECKING:
    from pathlib import Path

    from scons_gpu.toolchain.tools import Toolchain

SCONSTRUCT = (
    HEAD
    + """
env["GPU_ARCHS"] = ["sm_90", "compute_80"]
env.Append(CPPPATH=["src"], CCFLAGS=[ARGUMENTS.get("OPTIMISED", "-O1")], LIBS=["cudart"])
env.VariantDir("build", "src", duplicate=0)
part = env.StaticLibrary("build/part", ["build/c/k.cu"])
extra = env.SharedLibrary("build/extra", ["build/d.cu"])
app = env.Program("app", ["build/main.cpp", "build/util.cpp", "build/a.cu", "build/b/k.cu", "build/set.cu"], LIBS=[part, extra, "cudart"])
Default(app)
env.SharedObject("build/a.cu")
"""
)

SOURCES = {
    "src/main.cpp": "#include <cstdio>\nvoid a();\nvoid b();\nvoid c();\nvoid d();\nint used();\nint set();\nint main() { std::setbuf(stdout, nullptr); a(); b(); c(); d(); return used() + set(); }\n",
    "src/util.cpp": "int used() { return 0; }\n",
    # As CUB's and Thrust's kernels are named after all architectures that the file is compiled for.
    "src/shared.h": "#define NAMED(list) NAMED_(list)\n#define NAMED_(list, ...) for_##list\n"
    "inline namespace NAMED(__CUDA_ARCH_LIST__) { template <int N> __global__ void add(float* p) { p[threadIdx.x] += N; } }\ninline int block() { return 32; }\n",
    "src/a.cu": """\
__constant__ float scale[4];
__device__ int unused;
static __device__ int hits;
static __global__ void own(float* p) { *p = 1; }
namespace { __global__ void hidden(float* p) { *p = 2; } }
__global__ void mix(char c, int i, double d, float* p, short s) { p[i] = c + d + s + scale[0]; atomicAdd(&hits, 1); }
void a() {
  mix<<<dim3(2, 3), dim3(4, 5, 6), 64>>>('c', -5, 2.5, (float*)16, 12);
  own<<<1, 1>>>(nullptr);
  hidden<<<1, 1>>>((float*)&hits);
}
""",
    "src/b/k.cu": '#include "shared.h"\n__global__ void k(float* p) { *p = 3; }\nvoid b() { k<<<1, 2>>>(nullptr); add<1><<<1, block()>>>(nullptr); }\n',
    "src/c/k.cu": '#include "shared.h"\n__global__ void l(float* p) { *p = 4; }\nvoid c() { l<<<1, 3>>>(nullptr); add<2><<<1, block()>>>(nullptr); }\n',
    # What the host alone sets: no kernel is there to read it.
    "src/set.cu": """\
template <class T, int Dimensions, int Mode> struct __attribute__((device_builtin_texture_type)) texture {};
texture<float, 2, 0> image;
__constant__ double limits[2];
static __device__ long seed;
int set() { return &seed == nullptr; }
""",
    "src/d.cu": "__global__ void m(float* p) { *p = 5; }\nvoid d() { m<<<1, 4>>>(nullptr); }\n",
}

LAUNCHES = [
    "launch _Z3mixcidPfs 2,3,1 4,5,6 64 c -5 2.5 0x10 12",
    "launch _ZL3ownPf 1,1,1 1,1,1 0",
    "launch _ZN12_GLOBAL__N_16hiddenEPf 1,1,1 1,1,1 0",
    "launch _Z1kPf 1,1,1 2,1,1 0",
    "launch _ZN7for_8003addILi1EEEvPf 1,1,1 32,1,1 0",
    "launch _Z1lPf 1,1,1 3,1,1 0",
    "launch _ZN7for_8003addILi2EEEvPf 1,1,1 32,1,1 0",
    "launch _Z1mPf 1,1,1 4,1,1 0",
]
KERNELS = sorted(line.split()[1] for line in LAUNCHES)


def set_up(folder: Path) -> Project:
    return write_program(folder, SOURCES, SCONSTRUCT)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The program, built."""
    return built_twice(set_up(tmp_path_factory.mktemp("program") / "project"))


def registered(lines: list[str], what: str) -> list[str]:
    return sorted(line.split(maxsplit=1)[1] for line in lines if line.startswith(what))


def test_all_is_registered_once_and_parameters_arrive_in_order(program: Project) -> None:
    lines = said(program.path("app"))
    assert [line for line in lines if line.startswith("launch")] == LAUNCHES
    assert registered(lines, "kernel") == KERNELS
    assert registered(lines, "variable") == [
        "_ZL4hits 4 global",
        "_ZL4seed 8 global",
        "limits 16 constant",
        "scale 16 constant",
        "unused 4 global",
    ]
    assert registered(lines, "fatbin") == ["1"] * 5


def test_each_object_holds_the_fatbin_of_its_own_kernels(program: Project) -> None:
    for name, stem, kernels in (("a", "build/a.o", 3), ("k", "build/b/k.o", 2), ("k", "build/c/k.o", 2), ("d", "build/d.os", 1)):
        image = program.bytes(f"{stem}.gpu/{name}.cu.fatbin")
        assert image in program.bytes(stem), stem
        assert len(program.kernels(f"{name}.cu", stem=f"{stem}.gpu")) == kernels
        assert program.read(f"{stem}.gpu/{name}.cu/compute_80.ptx").count(".entry") == kernels
    assert (
        ".text"
        in subprocess.run(["objdump", "-h", str(program.path("build/libextra.so"))], capture_output=True, text=True, check=True).stdout
    )


def test_variables_without_a_kernel_are_in_an_image_of_their_own(program: Project) -> None:
    image = program.bytes("build/set.o.gpu/set.cu.fatbin")
    assert image in program.bytes("build/set.o")
    assert {"_ZL4seed", "limits"} <= {*program.variables("set.cu", stem="build/set.o.gpu")}
    assert ".global .align 8 .u64 _ZL4seed" in program.read("build/set.o.gpu/set.cu/compute_80.ptx")
    assert ".global .texref image" in program.read("build/set.o.gpu/set.cu/compute_80.ptx")  # as headers before CUDA 12 declare textures
    assert registered(said(program.path("app")), "texture") == ["image 2"]
    [state, kernels] = [program.manifest("build/set.o.gpu")["modules"]["set.cu"][name] for name in ("state", "kernels")]
    assert [(each["symbol"], each["bytes"]) for each in state] == [("_ZL4seed", 8), ("image", 8), ("limits", 16)]
    assert kernels == {}


def test_each_object_has_a_manifest_that_commands_read(program: Project) -> None:
    """With the kernels of its device's half; a build that edits nothing writes none."""
    listed = json.loads(program.command("kernels", "--json", "build/b/k.o.gpu.json").stdout)
    assert listed["program"] == "k.o.gpu"
    assert [(one["symbol"], one["arch"]) for one in listed["kernels"]] == [
        (name, arch) for name in ("_Z1kPf", "_ZN7for_8003addILi1EEEvPf") for arch in ("compute_80", "sm_90")
    ]
    assert {one["registers"] for one in listed["kernels"] if one["arch"] == "sm_90"} <= {*range(1, 64)}
    compared = program.command("compare", "--json", "build/b/k.o.gpu.json")
    assert (compared.returncode, len(json.loads(compared.stdout)["kernels"])) == (0, 2)
    assert program.manifest("build/d.os.gpu")["modules"]["d.cu"]["fatbin"] == "d.os.gpu/d.cu.fatbin"


def test_nvcc_registers_the_same_names(program: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    """Of the same source, but for what is private to it, which nvcc calls after the file's path."""
    assert toolchain.ptxas is not None
    nvcc = shutil.which("nvcc", path=str(toolchain.ptxas.path).rpartition("/")[0])
    source = tmp_path / "a.cu"
    source.write_text(SOURCES["src/a.cu"])
    subprocess.run([str(nvcc), "-arch=sm_90", "-c", "-o", str(tmp_path / "a.o"), str(source)], check=True, capture_output=True)
    theirs = reader.read((tmp_path / "a.o").read_bytes(), path="a.o")
    ours = reader.read(program.bytes("build/a.o"), path="build/a.o")
    private = re.compile(r"GLOBAL__N|own")
    assert [name for name in ours.kernels if not private.search(name)] == [name for name in theirs.kernels if not private.search(name)]
    assert sorted(ours.variables)[-2:] == sorted(theirs.variables)[-2:] == ["scale", "unused"]
    assert len(ours.kernels) == len(theirs.kernels) == 3


def test_a_source_costs_few_nodes(program: Project) -> None:
    """Per architecture IR, index, plan and image; the fatbin, the manifest and the object."""
    tree = program.build("--tree=all", "-n", "build/d.os", "build/d.os.gpu.json").stdout
    nodes = set(re.findall(r"[+-]-(build/d\.os\S*)", tree))
    assert len(nodes) == 2 * 4 + 3


def test_a_shared_object_of_the_same_source_shares_all_device_work(program: Project) -> None:
    program.build("build/a.os")
    assert program.done() == {"host": 1}
    assert program.bytes("build/a.o.gpu/a.cu.fatbin") in program.bytes("build/a.os")
    assert not program.exists("build/a.os.gpu")


def test_r3_each_edit_compiles_what_it_concerns(program: Project) -> None:
    program.edit("src/a.cu", "own<<<1, 1>>>", "own<<<1, 7>>>")
    assert " · 1 host object · " in program.build().stdout
    assert (program.compiled(), program.done()["link"], program.done()["host"]) == ([], 0, 1)
    assert "launch _ZL3ownPf 1,1,1 7,1,1 0" in said(program.path("app"))

    program.edit("src/a.cu", "void a() {", "// a comment\nvoid a() {")
    program.build()
    assert (program.done()["lower"], program.done()["link"], program.done()["host"]) == (0, 0, 1)

    program.edit("src/b/k.cu", "*p = 3", "*p = 6")
    program.build()
    assert program.compiled() == ["k(float*)"] * 2
    assert program.done()["host"] == 1
    assert program.bytes("build/b/k.o.gpu/k.cu.fatbin") in program.bytes("app")

    program.edit("src/shared.h", "return 32", "return 64")
    program.build()
    assert (program.compiled(), program.done()["host"]) == ([], 2)
    assert "launch _ZN7for_8003addILi2EEEvPf 1,1,1 64,1,1 0" in said(program.path("app"))

    program.build("OPTIMISED=-O2")
    assert program.done() == {"host": 5}
    program.build("OPTIMISED=-O2", "GPU_HOSTFLAGS=-DUNKNOWN_TO_ALL")
    assert program.done() == {"host": 5}
    program.idle("OPTIMISED=-O2", "GPU_HOSTFLAGS=-DUNKNOWN_TO_ALL")


def test_r7_clean_takes_all_away_and_dry_runs_make_nothing(program: Project) -> None:
    made = {str(path.relative_to(program.root)) for path in program.root.rglob("build/**/*") if path.is_file()}
    program.build("-c")
    left = {name for name in made if program.exists(name)}
    assert left <= {name for name in left if name.startswith("build/a.os")}  # which nobody asked for here
    listed = program.build("-n").lines
    assert not program.exists("app")
    assert "host      build/a.cu" in [line.replace("src/a.cu", "build/a.cu") for line in listed]
    assert program.run("-q").returncode == 1


def test_equal_inputs_give_equal_objects_in_any_folder(tmp_path: Path) -> None:
    objects = []
    for folder in ("here", "another/and/longer"):
        project = set_up(tmp_path / folder)
        project.write("SConstruct", HEAD + 'env.Object("a.o", "src/a.cu", CCFLAGS=["-g", "-O2"], GPU_ARCHS="sm_90")\n')
        project.build()
        objects.append(project.bytes("a.o"))
    assert objects[0] == objects[1]


def test_flags_of_the_project_reach_the_halves_that_they_concern(project: Project) -> None:
    make_runtime(project)
    project.write("given/size.h", "#define SIZE 3\n")
    project.write(
        "k.cu",
        "#include <size.h>\n#if __cplusplus < 202002L || !defined(FROM_CXX) || !defined(FROM_CPP) || VALUE != 4\n#error a flag is missing\n#endif\n"
        "#if !defined(__CUDA_ARCH__) && (!defined(HOST) || !__OPTIMIZE__)\n#error a flag of the host is missing\n#endif\n"
        "#if defined(__CUDA_ARCH__) && defined(HOST)\n#error a flag of the host's is too much\n#endif\n"
        "__global__ void k(int* p) { *p = SIZE; }\nvoid run() { k<<<1, SIZE>>>(nullptr); }\n",
    )
    project.write(
        "SConstruct",
        HEAD + 'env.Object("k.cu", CXXFLAGS=["-std=c++20", "-DFROM_CXX"], CCFLAGS="-O2 -Wall -Werror -Wno-maybe-uninitialized", '
        'CPPFLAGS=["-DFROM_CPP"], CPPDEFINES={"VALUE": 4}, CPPPATH=["given"], GPU_HOSTFLAGS="-DHOST", GPU_ARCHS="sm_90")\n',
    )
    project.build()


def test_a_source_without_device_code_is_compiled_by_clang_alone(project: Project) -> None:
    make_runtime(project)
    project.write("none.cu", "int main() { return 0; }\n")
    project.write("SConstruct", HEAD + 'env.Program("none", ["none.cu"], LIBS=["cudart"])\n')
    project.build()
    assert said(project.path("none")) == []
    assert not project.exists("none.o.gpu/none.cu.fatbin")
    assert project.manifest("none.o.gpu")["modules"]["none.cu"]["images"] == {}
    project.idle()


WRONG = {
    "needs": "__device__ float other(float);\n__global__ void k(float* p) { *p = other(*p); }\n",
    "hostonly": "template <int N> __global__ void k(int* p) { *p = N; }\nvoid run() {\n#ifndef __CUDA_ARCH__\n  k<3><<<1, 1>>>(nullptr);\n#endif\n}\n",
    "between": "#ifndef __CUDA_ARCH__\n__global__ void k(int* p) { *p = 1; }\n#endif\n__global__ void l(int* p) { *p = 2; }\n",
    "newer": "#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900\n__global__ void k(int* p) { *p = 1; }\n#endif\n__global__ void l(int* p) { *p = 2; }\n",
    "flag": "int none() { return 3; }\n",
    "std": "#include <vector>\nint none() { return 3; }\n",
}


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, str]:
    """One build of all that is wrong, with what it said."""
    project = Project(tmp_path_factory.mktemp("wrong") / "project")
    make_runtime(project)
    for name, text in WRONG.items():
        project.write(f"{name}.cu", text)
    project.write(
        "SConstruct",
        HEAD + 'env["GPU_ARCHS"] = ["sm_80", "sm_90"]\n'
        f'for name in {[*WRONG]}:\n    env.Object(name + ".cu", CCFLAGS={{"flag": ["-fgcc-only"], "std": ["-nostdinc++"]}}.get(name, []))\n',
    )
    return project, project.fail("-k").output


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("kernel k(float*) of needs.cu (sm_90): k(float*) uses other(float), which nobody defines", "GPU_RDC"),
        ("hostonly.cu: kernel k<3>(int*) is in the host's half of the source, and not in the device's", "__CUDA_ARCH__"),
        ("between.cu: kernel k(int*) is in the host's half of the source, and not in the device's", "__CUDA_ARCH__"),
        ("flag.cu: clang cannot compile it", "env.Object(..., CCFLAGS=[])"),
        ("std.cu (sm_90): clang finds no C++ standard library: <vector> is missing", "install a C++ compiler"),
    ],
)
def test_what_is_wrong_is_told_in_one_message(wrong: tuple[Project, str], words: str, hint: str) -> None:
    _, output = wrong
    [said_first, rest] = output.split(f"error: {words}\n", 1)
    assert said_first is not None
    assert hint in rest.partition("scons: ***")[0]


def test_a_kernel_that_one_architecture_lacks_is_told(wrong: tuple[Project, str]) -> None:
    project, output = wrong
    assert "newer.cu:\n    kernel k(int*) is not there for sm_80: to launch it there will fail\n" in output
    assert project.exists("newer.o")
    assert not any(project.exists(f"{name}.o") for name in ("hostonly", "between", "needs", "flag", "std"))


def test_no_clang_is_one_message(project: Project) -> None:
    project.write("k.cu", "int main() { return 0; }\n")
    project.write("SConstruct", HEAD + 'env.Program("app", ["k.cu"], GPU_CLANG="no-such-clang")\n')
    result = project.fail()
    assert result.returncode == 2
    assert result.stderr.startswith("error: GPU_CLANG=no-such-clang: there is no such program\n")


def test_one_object_in_two_ways_is_an_error(project: Project) -> None:
    make_runtime(project)
    project.write("k.cu", "int k() { return 0; }\n")
    project.write("SConstruct", HEAD + 'env.Object("k.cu")\nenv.Object("k.cu")\nenv.Clone().Object("k.cu", CPPDEFINES=["OTHER"])\n')
    result = project.fail("-n")
    assert result.returncode == 2
    assert "error: k.o is declared twice, with different options\n" in result.stderr


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_tool_of_the_users_for_cu_stays(project: Project, when: str) -> None:
    project.write("k.cu", "nothing that any compiler reads\n")
    project.write(
        "site_scons/site_tools/mine.py",
        "import SCons.Tool\n"
        "def generate(env):\n"
        "    for builder in SCons.Tool.createObjBuilders(env):\n"
        "        builder.add_action('.cu', 'cp $SOURCE $TARGET')\n"
        "def exists(env):\n"
        "    return True\n",
    )
    tools = ["default", "mine", "gpu"] if when == "before" else ["default", "gpu", "mine"]
    project.write("SConstruct", f"import scons_gpu\nenv = Environment(tools={tools}, toolpath=[scons_gpu.TOOLPATH])\nenv.Object('k.cu')\n")
    project.build()
    assert project.read("k.o") == project.read("k.cu")
    project.idle()


REAL = """\
#include <cstdio>
__global__ void fill(int* p, int value) { p[threadIdx.x] = value + threadIdx.x; }
extern "C" int run() {
  int *there, here[32] = {};
  cudaError_t error = cudaMalloc(&there, sizeof here);
  if (!error) {
    fill<<<1, 32>>>(there, 5);
    error = cudaMemcpy(here, there, sizeof here, cudaMemcpyDeviceToHost);
  }
  std::printf("%s %d\\n", cudaGetErrorName(error), here[31]);
  return 0;
}
"""


def test_a_program_with_cudas_own_runtime_starts_and_tells_the_drivers_answer(project: Project) -> None:
    """Its own source is C, and the `.cu` is in a library that is given by name."""
    project.write("k.cu", REAL)
    project.write("plain.c", "int main(void) { return 0; }\n")
    project.write("main.c", "int run(void);\nint main(void) { return run(); }\n")
    project.write(
        "SConstruct",
        'import scons_gpu\nenv = Environment(tools=["gpu", "default"], toolpath=[scons_gpu.TOOLPATH], GPU_ARCHS=["sm_90"])\n'
        'env.Program("app", ["main.c"], LIBS=["part"], LIBPATH=["."])\nenv.Program("plain", ["plain.c"])\nenv.StaticLibrary("part", ["k.cu"])\n',
    )
    built = project.build()
    link = next(line for line in built.lines if "-o app" in line)
    assert "gcc -o plain plain.o" in built.lines
    assert link.startswith("g++ ")
    assert link.endswith("libcudart_static.a -ldl -lrt -lpthread")
    assert said(project.path("app"))[0] in {"cudaSuccess 36", "cudaErrorNoDevice 0", "cudaErrorInsufficientDriver 0"}
    project.idle()


def test_editors_are_told_how_to_read_each_source(project: Project) -> None:
    """As clangd does, the command is taken from the database, and the file is read once."""
    make_runtime(project)
    project.write("inc/size.h", "#define SIZE 3\n")
    kernel = "#include <size.h>\n__global__ void k(int* p) { *p = SIZE + MORE; }\n"
    project.write("m/module.cu", kernel)
    project.write("program.cu", kernel + "int main() { k<<<1, SIZE>>>(nullptr); }\n")
    head = HEAD.replace('"default", "gpu"', '"default", "compilation_db", "gpu"')
    project.write(
        "SConstruct",
        head + 'env.Append(CPPPATH=["inc"], CPPDEFINES={"MORE": 2})\n'
        'env.GpuProgram("net", env.GpuModule("net", ["m/module.cu"]))\n'
        'env.Program("app", ["program.cu"])\nenv.SharedObject("program.cu")\nDefault(env.CompilationDatabase())\n',
    )
    project.build()
    entries = json.loads(project.read("compile_commands.json"))
    assert [(entry["file"], entry["output"]) for entry in entries] == [
        ("m/module.cu", "net/net/module.cu.sm_90.ll"),
        ("program.cu", "program.o"),
        ("program.cu", "program.os"),
    ]
    for entry in entries:
        words = shlex.split(entry["command"])
        assert words[-3:] == ["-o", entry["output"], entry["file"]]
        assert [word for word in words if word.startswith(("--offload-arch", "--cuda-path"))][1:] == ["--offload-arch=sm_90"]
        read = subprocess.run([*words, "-fsyntax-only"], cwd=entry["directory"], capture_output=True, text=True, check=False)
        assert (read.returncode, read.stderr) == (0, "")
