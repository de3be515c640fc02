"""`GPU_RDC=1`: device functions and variables across the `.cu` of a program, its static libraries and a shared one."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from host_parts import HEAD, built_twice, make_runtime, said, write_program

from scons_gpu.host import registered as reader

if TYPE_CHECKING:
    from pathlib import Path

    from project import Project

    from scons_gpu.toolchain.tools import Toolchain

SCONSTRUCT = (
    HEAD
    + """
env["GPU_ARCHS"] = ["sm_90", "compute_80"]
env["GPU_RDC"] = 1
env["GPU_STORE"] = ARGUMENTS.get("STORE", "#.gpu-store")
env.Append(CPPPATH=["src"], LIBS=["cudart"], CPPFLAGS=["-I" + Dir("src").abspath])
env.VariantDir("build", "src", duplicate=0)
where = {"LIBPATH": ["build", "runtime"], "RPATH": [Dir("runtime").abspath, Dir("build").abspath]}
app = env.Program("app", ["build/main.cpp", "build/util.cpp", "build/a.cu", "build/b.cu"], LIBS=["part", "extra", "cudart"], **where)
part = env.StaticLibrary("build/part", ["build/c.cu"])
env.SharedLibrary("build/extra", ["build/d.cu"])
Default(app)
env.Program("second", ["build/main.cpp", "build/util.cpp", "build/a.cu", "build/b.cu", "build/c.cu", part], LIBS=["extra", "cudart"], **where)
env.Program("plain", ["build/util.cpp", "build/none.cpp"], LIBS=[])
env.Object("alone.o", "build/d.cu", GPU_RDC=0)
"""
)

SOURCES = {
    "src/main.cpp": "#include <cstdio>\nvoid a();\nvoid b();\nvoid c();\nvoid d();\nint used();\n"
    "int main() { std::setbuf(stdout, nullptr); a(); b(); c(); d(); return used(); }\n",
    "src/util.cpp": "int used() { return 0; }\n",
    "src/none.cpp": "int main() {}\n",
    "src/shared.h": "extern __device__ int total;\nextern __constant__ float scale[4];\n__device__ float twice(float);\n__device__ float thrice(float);\n"
    "template <int N> __global__ void add(float* p) { *p += N; }\n",
    # The host names `hits` behind the kernel that uses it, and both sources have a kernel `own`.
    "src/a.cu": '#include "shared.h"\nstatic __device__ int hits;\nstatic __global__ void own(float* p) { *p = twice(*p); hits++; }\n'
    "__global__ void ka(float* p) { *p = thrice(*p) + total; }\n__global__ void by_itself(float* p) { *p = 4; }\n"
    "void a() { own<<<1, 1>>>(nullptr); ka<<<1, 2>>>((float*)&hits); add<1><<<1, 3>>>(nullptr); by_itself<<<1, 4>>>(nullptr); }\n",
    "src/b.cu": '#include "shared.h"\n__device__ int total = 1;\n__constant__ float scale[4];\n__device__ float twice(float x) { return 2 * x * scale[0]; }\n'
    "static __global__ void own(float* p) { *p = 7; total++; }\nvoid b() { own<<<1, 5>>>(nullptr); add<1><<<1, 6>>>(nullptr); }\n",
    "src/c.cu": '#include "shared.h"\n__device__ float thrice(float x) { return 3 * x; }\n__global__ void kc(float* p) { *p = twice(*p); }\n'
    "void c() { kc<<<1, 7>>>(nullptr); }\n",
    "src/d.cu": "__global__ void kd(float* p) { *p = 5; }\nvoid d() { kd<<<1, 8>>>(nullptr); }\n",
}
LAUNCHES = ["own 1", "_Z2kaPf 2", "_Z3addILi1EEvPf 3", "_Z9by_itselfPf 4", "own 5", "_Z3addILi1EEvPf 6", "_Z2kcPf 7", "_Z2kdPf 8"]


def set_up(folder: Path) -> Project:
    return write_program(folder, SOURCES, SCONSTRUCT)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The program, built."""
    return built_twice(set_up(tmp_path_factory.mktemp("program") / "project"))


def own(line: str) -> str:
    """A line with the private kernel called as in its source."""
    return re.sub(r"_ZL3ownPf__intern__[0-9a-f]{16}", "own", line)


def launches(lines: list[str]) -> list[str]:
    return [f"{name} {block.split(',')[0]}" for line in lines if line.startswith("launch") for _, name, _, block, *_ in [own(line).split()]]


def test_every_kernel_and_variable_is_registered_once_and_launched(program: Project) -> None:
    lines = said(program.path("app"))
    assert launches(lines) == LAUNCHES
    kernels = [line for line in lines if line.startswith("kernel")]
    assert sorted(map(own, kernels)) == sorted(f"kernel {name}" for name in [*{line.split()[0] for line in LAUNCHES}, "own"])
    assert len(set(kernels)) == len(kernels) == 7
    variables = [re.sub(r"__[0-9a-f]{16}", "", line) for line in lines if line.startswith("variable")]
    assert sorted(variables) == ["variable _ZL4hits__static 4 global", "variable scale 16 constant", "variable total 4 global"]
    assert [line for line in lines if line.startswith("fatbin")] == ["fatbin 1"] * 2


def test_the_program_and_the_shared_library_have_one_image_each(program: Project) -> None:
    assert [own(name) for name in program.kernels("app", stem="app.gpu")] == sorted(
        ["_Z2kaPf", "_Z2kcPf", "_Z3addILi1EEvPf", "_Z9by_itselfPf", "own", "own"]
    )
    assert program.kernels("libextra.so", stem="build/libextra.so.gpu") == ["_Z2kdPf"]
    assert program.variables("app", stem="app.gpu").count("total") == 1
    assert not [name for name, kind, entry in program.symbols("app", stem="app.gpu") if kind == "STT_FUNC" and not entry], (
        "calls are inlined"
    )
    assert program.bytes("app.gpu/app.fatbin") in program.bytes("app.gpu/app.o")
    assert program.bytes("app.gpu/app.fatbin") in program.bytes("app")
    assert b"llvm_offload_entries" in program.bytes("build/a.o")


def test_each_link_has_a_manifest_that_commands_read(program: Project) -> None:
    """Of the program and of the shared library; an object alone has no image, and no manifest."""
    listed = json.loads(program.command("kernels", "app.gpu.json", "--json").stdout)["kernels"]
    modules, names, sources = ({row[key] for row in listed} for key in ("module", "readable", "source"))
    assert modules == {"app"}
    assert names == {"own(float*)", "ka(float*)", "add<1>(float*)", "by_itself(float*)", "kc(float*)"}
    assert sources == {"src/a.cu", "src/b.cu", "src/c.cu"}
    assert {row["arch"] for row in listed} == {"sm_90", "compute_80"}
    assert list(program.manifest("build/libextra.so.gpu")["modules"]) == ["libextra.so"]
    assert not program.exists("build/a.o.gpu.json")
    compared = program.command("compare", "app.gpu.json", "--json")
    assert compared.returncode == 0, compared.output
    assert {row["readable"] for row in json.loads(compared.stdout)["kernels"]} >= {"kc(float*)", "ka(float*)"}
    program.path("app.gpu.json").unlink()
    assert "manifest  app.gpu.json" in program.build("app").lines
    program.idle()


def test_nvcc_registers_the_same_names(program: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    assert toolchain.ptxas is not None
    nvcc = shutil.which("nvcc", path=str(toolchain.ptxas.path).rpartition("/")[0])
    subprocess.run([str(nvcc), "-arch=sm_90", "-dc", "-o", tmp_path / "b.o", program.path("src/b.cu")], check=True, capture_output=True)
    theirs = reader.read((tmp_path / "b.o").read_bytes(), path="b.o")
    ours = [line.split()[1] for line in said(program.path("app")) if line.startswith(("kernel", "variable"))]
    assert {name for name in (*theirs.kernels, *theirs.variables) if "own" not in name} == {"_Z3addILi1EEvPf", "total", "scale"}
    assert {"_Z3addILi1EEvPf", "total", "scale"} <= set(ours)


def test_r3_each_edit_compiles_what_it_concerns(program: Project) -> None:
    def counts() -> tuple[list[str], int, int, int, int]:
        done = program.done()
        return program.compiled(), done["source"], done["link"], done["host"], done["register"]

    program.edit("src/c.cu", "3 * x", "4 * x")  # a function that another source's kernel calls
    program.build()
    assert counts() == (["ka(float*)"] * 2, 2, 2, 1, 1)

    program.edit("src/a.cu", "*p = 4", "*p = 5")
    program.build()
    assert counts() == (["by_itself(float*)"] * 2, 2, 2, 1, 1)
    assert "build/libextra.so" not in program.read("app.gpu/app/sm_90.plan.json")

    program.edit("src/b.cu", "total = 1", "total = 2")  # whatever uses it sees a declaration
    program.build()
    assert counts() == ([], 2, 2, 1, 1)

    program.edit("src/b.cu", "own<<<1, 5>>>", "own<<<1, 9>>>")  # the host's object, which the link's own is checked against
    program.build()
    assert counts() == ([], 2, 0, 1, 1)
    assert "own 9" in launches(said(program.path("app")))

    program.edit("src/shared.h", "*p += N", "*p -= N")
    program.build()
    assert counts() == (["add<1>(float*)"] * 2, 6, 2, 3, 1)

    program.write("src/util.cpp", "int used() { return 0 * 1; }\n")
    program.build()
    assert program.done() == {}
    program.idle()


def test_what_needs_nothing_of_others_is_there_from_programs_without(program: Project) -> None:
    """And the other way: a digest does not tell whether device code is linked across sources."""
    program.build("alone.o")
    assert program.compiled() == []
    assert program.done()["host"] == 1


def test_another_program_of_the_same_objects(program: Project) -> None:
    """Front end and split are each object's; an object that is also in a library is one."""
    program.build("second")
    assert program.compiled() == []
    assert (program.done()["source"], program.done()["host"], program.done()["link"], program.done()["register"]) == (0, 0, 2, 1)
    assert sorted(map(own, launches(said(program.path("second"))))) == sorted(launches(said(program.path("app"))))
    program.idle("second")


def test_a_link_without_device_code_has_none(program: Project) -> None:
    built = program.build("plain")
    assert "register" not in built.stdout
    assert not program.exists("plain.gpu/plain.o")
    program.idle("plain")


def test_r7_clean_dry_runs_and_the_object_by_name(program: Project) -> None:
    program.build("-c")
    assert not [name for name in ("app", "app.gpu/app.o", "app.gpu/app.fatbin", "app.gpu/app/sm_90.cubin") if program.exists(name)]
    assert program.exists("second.gpu/second.o")
    listed = program.build("-n").lines
    assert "register  app" in listed
    assert not program.exists("app.gpu") or not list(program.path("app.gpu").rglob("*.o"))
    assert program.run("-q").returncode == 1
    program.build("app.gpu/app.o")
    assert not program.exists("app")
    assert program.exists("app.gpu/app.o")
    program.build("--implicit-cache")
    program.idle("--implicit-cache")


def test_t10_equal_inputs_give_equal_objects_in_any_folder(program: Project, tmp_path: Path) -> None:
    project = set_up(tmp_path / "another/and/longer")
    for name in SOURCES:
        project.write(name, program.read(name))
    project.build("-j2", f"STORE={program.path('.gpu-store')}", "app.gpu/app.o")
    assert project.compiled(store=str(program.path(".gpu-store"))) == []
    for name in ("app.gpu/app.o", "build/a.o", "build/b.o"):
        assert project.bytes(name) == program.bytes(name), name


WRONG = {
    "one.cu": "__device__ float f(float x) { return x; }\n__global__ void k(float* p) { *p = f(*p); }\nvoid one() { k<<<1, 1>>>(nullptr); }\n",
    "two.cu": "__device__ float f(float x) { return 2 * x; }\nvoid two() {}\n",
    "same.cu": "__global__ void k(float* p) { *p = 1; }\nvoid same() { k<<<1, 1>>>(nullptr); }\n",
    "lacks.cu": "__device__ float g(float);\n__global__ void l(float* p) { *p = g(*p); }\nint main() { l<<<1, 1>>>(nullptr); }\n",
    "hostonly.cu": "#ifndef __CUDA_ARCH__\n__global__ void h(float* p) { *p = 1; }\n#endif\n__global__ void i(float* p) { *p = 1; }\n",
}
WRONG_SCONSTRUCT = (
    HEAD
    + """
env["GPU_ARCHS"], env["GPU_RDC"] = "sm_90", True
env.Append(LIBS=["cudart"])
objects = {name: env.Object(name + ".cu") for name in ("one", "two", "same", "lacks", "hostonly")}
env.Program("twice", ["main.cpp", objects["one"], objects["two"]])
env.Program("kernels", ["main.cpp", objects["one"], env.Object("same.cu")])
env.Program("nobody", [objects["lacks"]])
env.Program("halves", ["main.cpp", objects["hostonly"]])
env.Program("mixed", ["main.cpp", objects["one"], env.Object("other.o", "two.cu", GPU_MAXRREGCOUNT=32)])
env.Program("kinds", ["main.cpp", objects["one"], env.Object("nvccs.o", "two.cu", GPU_HOST="nvcc")])
env.StaticLibrary("lib", [objects["one"]])
env.Program("without", ["main.cpp"], LIBS=["lib", "cudart"], LIBPATH=[".", "runtime"], GPU_RDC=0)
env.Program("apart", ["lacks.cu"], OBJPREFIX="apart-", GPU_RDC=0)
"""
)


def test_what_is_wrong_is_told_in_one_message_each(project: Project) -> None:
    make_runtime(project)
    project.write("main.cpp", "int main() {}\n")
    for name, text in WRONG.items():
        project.write(name, text)
    project.write("SConstruct", WRONG_SCONSTRUCT)
    result = project.fail("-k", "-j2")
    for words, hint in [
        ("module kinds: nvccs.o is nvcc's (GPU_HOST=nvcc), and one.o is clang's", "set GPU_HOST"),
        ("module twice (sm_90): function f(float) is defined in one.cu and in two.cu", "define it in one source"),
        ("module kernels (sm_90): kernel k(float*) is defined differently in one.cu and in same.cu", "rename one"),
        ("kernel l(float*) of nobody/lacks.cu (sm_90): l(float*) uses g(float), which nobody defines", "define it in"),
        ("kernel l(float*) of lacks.cu (sm_90): l(float*) uses g(float), which nobody defines", "GPU_RDC=1"),
        ("halves/hostonly.cu: kernel h(float*) is in the host's half of the source, and not in the device's", "__CUDA_ARCH__"),
        ("module mixed: one.o has no GPU_MAXRREGCOUNT, and other.o has GPU_MAXRREGCOUNT=32", "set it for the environment of both"),
        (
            "without takes one.o, whose device code is linked with that of others (GPU_RDC=1), and is linked without GPU_RDC",
            "links without",
        ),
    ]:
        assert result.output.count(f"error: {words}\n") in {1, 2}, words  # and once more at the end
        assert hint in result.output.split(f"error: {words}\n", 1)[1].split("\n", 1)[0], words
    assert not [name for name in ("twice", "kernels", "nobody", "halves", "mixed", "without", "apart") if project.exists(name)]


def test_the_front_end_is_clang(project: Project) -> None:
    project.write("k.cu", "int k;\n")
    project.write("SConstruct", HEAD + 'env.Program("app", ["k.cu"], GPU_NVCCFLAGS="-rdc=true", GPU_FRONTEND="nvcc")\n')
    told = project.fail().stderr
    assert told.startswith("error: k.cu: device code is linked across sources through clang's IR, and nvcc makes PTX\n")
    assert "GPU_HOST=nvcc" in told


LIBRARY = """\
__device__ int calls;
__device__ const volatile float* values;
__device__ __noinline__ float from_library(float x) {
  float held[48];
  calls++;
#pragma unroll
  for (int i = 0; i < 48; i++) held[i] = values[i];
#pragma unroll
  for (int i = 0; i < 48; i++) x = x * held[47 - i] + held[i];
  return x;
}
__global__ void theirs(float* p) { *p = from_library(*p); }
void library() { theirs<<<1, 1>>>(nullptr); }
"""
LAUNCHING = """\
#include <cstdio>
extern "C" __device__ void* __cudaCDP2GetParameterBuffer(size_t, size_t);
extern "C" __device__ cudaError_t __cudaCDP2LaunchDevice(void*, void*, dim3, dim3, unsigned, cudaStream_t);
static inline __device__ void* cudaGetParameterBuffer(size_t a, size_t n) { return __cudaCDP2GetParameterBuffer(a, n); }
static inline __device__ cudaError_t cudaLaunchDevice(void* f, void* p, dim3 g, dim3 b, unsigned n, cudaStream_t s) { return __cudaCDP2LaunchDevice(f, p, g, b, n, s); }
__device__ float from_library(float);
__device__ float twice(float);
__global__ void child(float* p) { *p = twice(*p); }
__global__ void parent(float* p) { child<<<1, 1>>>(p); *p = from_library(*p); }
void library();
int main() { parent<<<1, 2>>>(nullptr); library(); std::puts("through"); }
"""

ONLY = "__device__ float from_library(float);\n__global__ void one(float* p) { *p = from_library(*p); }\nint main() { one<<<1, 1>>>(nullptr); }\n"


def test_libraries_that_come_as_objects_and_kernels_that_launch_kernels(project: Project, toolchain: Toolchain) -> None:
    """CUDA's own runtime starts the program, so that all its functions are there that a library asks for."""
    make_runtime(project)
    assert toolchain.ptxas is not None
    nvcc = str(shutil.which("nvcc", path=str(toolchain.ptxas.path).rpartition("/")[0]))
    project.write("library/library.cu", LIBRARY)
    project.write("library/plain.c", "int plain;\n")
    folder = project.path("library")
    subprocess.run([nvcc, "-arch=sm_90", "-dc", "library.cu"], cwd=folder, check=True, capture_output=True)
    subprocess.run(["gcc", "-c", "plain.c"], cwd=folder, check=True)
    subprocess.run(["ar", "rc", "libtheirs.a", "plain.o", "library.o"], cwd=folder, check=True)
    project.write("a.cu", LAUNCHING)
    project.write("b.cu", "__device__ float twice(float x) { return 2 * x; }\n")
    project.write(
        "SConstruct",
        HEAD + 'env.Program("app", ["a.cu", "b.cu"], LIBS=["theirs", "cudadevrt"], LIBPATH=["library"], GPU_RDC=1, '
        'GPU_ARCHS=ARGUMENTS.get("ARCHS", "sm_90"))\n'
        # A library among the sources stands before what registers its code.
        'env.Program("only.bin", ["only.cu", File("library/libtheirs.a")], GPU_RDC=1, GPU_ARCHS="sm_90")\n',
    )
    project.write("only.cu", ONLY)
    project.build("-j2")
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    assert subprocess.run([project.path("app")], capture_output=True, text=True, check=True, env=environ).stdout == "through\n"
    image = {name: entry for name, kind, entry in project.symbols("app", stem="app.gpu") if kind == "STT_FUNC"}
    assert {"_Z12from_libraryf": False, "_Z6theirsPf": True, "_Z6parentPf": True, "__cudaCDP2LaunchDevice": False}.items() <= image.items()
    assert b"__cudaRegisterLinkedBinary" in project.bytes("only.bin")
    linked = subprocess.run(["nm", project.path("app")], capture_output=True, text=True, check=True).stdout
    assert len(re.findall(r" t __cudaRegisterLinkedBinary_\w+_(?:library_cu|cuda_device_runtime_cu)_", linked)) == 2
    project.idle()

    project.edit("b.cu", "2 * x", "3 * x")
    built = project.build("GPU_PLANCOMSTR=", "GPU_LINKCOMSTR=")
    assert project.compiled() == ["child(float*)"]
    assert project.done()["library"] == 0
    commands = [shlex.split(line) for line in built.lines if line.startswith("scons-gpu")]
    assert [words[3] for words in commands] == ["plan", "link"]
    for words in commands:
        made = project.command(*words[1:-1], "again")
        assert made.returncode == 0, made.output
        assert project.bytes("again") == project.bytes(words[-1])

    told = project.fail("ARCHS=sm_90,compute_90").stderr
    assert "parent(float*) uses from_library(float) of libtheirs.a, which is machine code\n  GPU_LINK=image links such a library" in told

    project.edit("a.cu", "__global__ void parent", "__global__ __attribute__((launch_bounds(1024, 2))) void parent")
    told = project.fail().stderr
    words = (
        "kernel parent(float*) of app/a.cu (sm_90): its launch bounds leave 32 registers, and it calls from_library(float), which takes "
    )
    assert f"error: {words}" in told

    # A tree that was built in place, then below a folder of its own: what lies beside the sources is not taken for what is below it.
    variant = 'env.VariantDir("v", ".", duplicate=0)\nenv.Program("v/only.bin", ["v/only.cu", File("library/libtheirs.a")], GPU_RDC=1, GPU_ARCHS="sm_90")\n'
    project.write("SConstruct", HEAD + variant)
    project.build("v/only.bin")
    assert project.exists("v/only.bin.gpu/only.bin.o")
    assert (project.done()["host"], project.done()["register"]) == (1, 1)
    project.idle("v/only.bin")


def test_nvcc_links_device_code_where_it_compiles_it(project: Project) -> None:
    """In a shared library too, whose objects have a suffix that nvcc does not know."""
    project.write(
        "a.cu", "__device__ float twice(float);\n__global__ void k(float* p) { *p = twice(*p); }\nvoid a() { k<<<1, 1>>>(nullptr); }\n"
    )
    project.write("b.cu", "__device__ float twice(float x) { return 2 * x; }\n")
    project.write("main.cpp", "void a();\nint main() { a(); }\n")
    project.write(
        "SConstruct",
        'import scons_gpu\nenv = Environment(tools=["default", "gpu"], toolpath=[scons_gpu.TOOLPATH], GPU_ARCHS=["sm_90"], GPU_HOST="nvcc")\n'
        'env["GPU_NVCCFLAGS"] = "-rdc=true"\nenv.Program("app", ["main.cpp"], LIBS=["part"], LIBPATH=["."], RPATH=[Dir(".").abspath], GPU_NVCCFLAGS="")\n'
        'env.SharedLibrary("part", ["main.cpp", "a.cu", "b.cu"])\n',
    )
    built = project.build("-j2")
    assert project.done() == {"host": 2, "register": 1}
    assert next(line for line in built.lines if "-o libpart.so" in line).count("libcudadevrt.a") == 1
    subprocess.run([project.path("app")], check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    project.idle()
    project.write("main.cpp", "void a();\nint main() { a(); return 0; }\n")
    project.build()
    assert project.done() == {}
    project.write("b.cu", "int none;\n")
    told = project.fail().stderr
    assert "error: module libpart.so: nvcc cannot link its device code\n" in told
    assert "Undefined reference to '_Z5twicef' in 'a.os'" in told
    project.write("b.cu", "__device__ float twice(float x) { return 4 * x; }\n")
    project.build("-k")
    assert project.done() == {"host": 1, "register": 1}
