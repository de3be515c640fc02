"""A program's code inside a C++ program, against a driver that keeps what it is given. tests/gpu has a real one."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from elftools.elf.elffile import ELFFile
from loading_page import HEADERS, Page
from project import LL_HEAD, Project, device, ll

import scons_gpu
from scons_gpu.loading import code

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).parent
TOP = HERE.parents[1]
SITE = next(Path(sys.prefix).glob("lib/python3*/site-packages"))
SCALE = """
define ptx_kernel void @_Z5scalePfPKdilb(ptr addrspace(1) %out, ptr addrspace(1) %in, i32 %n, i64 %by, i8 %on) {
  ret void
}
"""
COUNTS = """
@counter = addrspace(1) externally_initialized global i32 7, align 4
define ptx_kernel void @counts(ptr addrspace(1) %data) {
  %old = load i32, ptr addrspace(1) @counter, align 4
  store i32 %old, ptr addrspace(1) %data, align 4
  ret void
}
"""
SCONSTRUCT = """
env = Environment(tools=["default", "gpu"], toolpath=[scons_gpu.TOOLPATH], GPU_ARCHS=["sm_80", "sm_90", "compute_80"],
                  CXXFLAGS=["-std=c++17", "-g", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-pedantic", "-Werror"])
modules = [
    env.GpuModule("else", ["scale.ll", "counts.ll"]),
    env.GpuModule("apart", ["add.ll", "counts.ll"], GPU_LINK="bundle"),
    env.GpuModule("fresh", ["add.ll"], GPU_ARCHS="sm_90"),
    env.GpuModule("nothing", ["empty.ll"]),
]
net = env.GpuProgram("build/the net", env.GpuModule("root", [], submodules=modules))
code = env.GpuEmbed("build/net code.o", net)
env.GpuHeader("build/net.hpp", "build/the net.json")
env.Append(CPPPATH=["build", scons_gpu.INCLUDE], LINKFLAGS=["-pthread"])
env.Append(CCFLAGS=["-isystem", INCLUDES])
env.Program("app", ["app.cpp", code])
env.SharedLibrary("lib", ["lib.cpp", code])
"""
APP = r"""
#include "net.hpp"

#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

static float* const x = reinterpret_cast<float*>(0x1122334455667788);
static const double* const y = reinterpret_cast<const double*>(0x99);

static void run(const char* what) {
  const auto net = the_net::program();
  if (!std::strcmp(what, "list")) {
    for (const auto& entry : net) std::printf("%s: %s\n", entry.module->name, entry.readable);
  } else if (!std::strcmp(what, "typed")) {
    the_net::else_::scale({{3, 2, 1}, 128, 16}, x, y, -2, 5, true);
    the_net::apart::add({1, 32}, x);
  } else if (!std::strcmp(what, "threads")) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([i, net] {
        if (i % 2) the_net::else_::scale({1, 1}, x, y, i, 0, false);
        else net.kernel("else", "counts").launch({1, 1}, x);
      });
    }
    for (auto& thread : threads) thread.join();
  } else if (!std::strcmp(what, "devices")) {
    for (const int device : {0, 1, 0}) {
      scons_gpu::use_device(device);
      the_net::apart::add({1, 1}, x);
      the_net::else_::scale({1, 1, 49153}, x, y, 0, 0, false);
    }
  } else if (!std::strcmp(what, "shared")) {
    for (const unsigned bytes : {100u, 40000u, 200u, 50000u, 40000u}) {
      the_net::else_::scale({1, 1, bytes}, x, y, 0, 0, false);
      net.kernel("else", "counts").launch({1, 1, bytes}, x);
    }
  } else if (!std::strcmp(what, "variables")) {
    const auto image = net.variable("else", "counter"), own = net.kernel("apart", "counts").variable("counter");
    std::printf("%llx %zu %llx\n", image.address, image.bytes, own.address);
    std::printf("%d\n", net.kernel("else", "_Z5scalePfPKdilb").function() == net.kernel("else", "scale").function());
    net.variable("apart", "counter");
  } else if (!std::strcmp(what, "fresh")) {
    the_net::fresh::add({1, 1}, x);
  } else if (!std::strcmp(what, "short")) {
    net.kernel("else", "scale").launch({1, 1}, x, y, 1L);
  } else if (!std::strcmp(what, "absent")) {
    net.kernel("else", "scala");
  } else if (!std::strcmp(what, "nowhere")) {
    net.kernel("nothing", "scale");
  } else if (!std::strcmp(what, "gone")) {
    net.kernel("else", "counts").variable("gone");
  } else if (!std::strcmp(what, "third")) {
    scons_gpu::use_device(2);
  }
}

int main(int, char** words) {
  try {
    run(words[1]);
  } catch (const scons_gpu::Error& error) {
    std::printf("error: %s\n", error.what());
    return 1;
  }
}
"""
LIB = """
#include <scons_gpu.hpp>
SCONS_GPU_EMBEDDED(the_net);
extern "C" int kernels_of_lib() { return static_cast<int>(scons_gpu::Program(scons_gpu_the_net).end() - scons_gpu::Program(scons_gpu_the_net).begin()); }
"""


def written(root: Path) -> Project:
    project = Project(root)
    project.write("scale.ll", LL_HEAD + SCALE)
    project.write("counts.ll", LL_HEAD + COUNTS)
    project.write("add.ll", ll("_Z3addPf=1.0", "plain=2.0"))
    project.write("empty.ll", LL_HEAD)
    project.write("SConstruct", f"import scons_gpu\nINCLUDES = {str(HEADERS)!r}\n{SCONSTRUCT}")
    project.write("app.cpp", APP)
    project.write("lib.cpp", LIB)
    return project


def stub(folder: Path, *options: str) -> Path:
    folder.mkdir()
    source = str(HERE / "libcuda_stub.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-pthread", "-isystem", HEADERS, *options, source, "-o", folder / "libcuda.so.1"], check=True)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = written(tmp_path_factory.mktemp("embed") / "project")
    project.build("-j2")
    stub(project.path("driver"))
    return project


def app(project: Project, what: str, driver: str = "driver", **stubbed: object) -> tuple[list[str], list[str]]:
    """What the program printed, and what the driver was asked."""
    log = project.path("log")
    log.unlink(missing_ok=True)
    environ: Mapping[str, str] = {f"STUB_{name.upper()}": str(value) for name, value in stubbed.items()}
    done = subprocess.run(
        [project.path("app"), what],
        env={**os.environ, "LD_LIBRARY_PATH": str(project.path(driver)), "STUB_LOG": str(log), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == ("error: " in done.stdout), done.stdout
    return done.stdout.splitlines(), log.read_text().splitlines() if log.exists() else []


def said(project: Project, what: str, driver: str = "driver", **stubbed: object) -> str:
    return "\n".join(app(project, what, driver, **stubbed)[0])


def given(project: Project, number: int = 0) -> bytes:
    return project.bytes(f"log.{number}")


def member(project: Project, name: str, arch: str) -> bytes:
    """A kernel's own code, out of the bundle."""
    net = scons_gpu.load(project.path("build/the net.json"))
    _, found = code.kernel_code(net["apart"].manifest, net["apart"].symbol(name))[arch]
    with zipfile.ZipFile(project.path("build/the net/apart.gpubundle")) as archive:
        return archive.read(found.member)


# What is launched.


def test_all_kernels_are_listed_without_a_driver(built: Project) -> None:
    printed, asked = app(built, "list")
    assert printed == [
        "apart: add(float*)",
        "apart: counts",
        "apart: plain",
        "else: scale(float*, double const*, int, long, bool)",
        "else: counts",
        "fresh: add(float*)",
        "fresh: plain",
    ]
    assert asked == []


@pytest.mark.parametrize(("capability", "arch"), [(90, "sm_90"), (86, "sm_80"), (120, "compute_80")])
def test_parameters_arrive_in_their_order_at_the_right_kernel(built: Project, capability: int, arch: str) -> None:
    _, asked = app(built, "typed", capability=capability)
    pointer, other = struct.pack("<Q", 0x1122334455667788).hex(), struct.pack("<Q", 0x99).hex()
    assert asked == [
        "load 0",
        "kernel 0 _Z5scalePfPKdilb",
        f"launch 0 _Z5scalePfPKdilb 3,2,1 128,1,1 16 1 {pointer} {other} feffffff 0500000000000000 01",
        "load 1",
        "kernel 1 _Z3addPf",
        f"launch 1 _Z3addPf 1,1,1 32,1,1 0 1 {pointer}",
    ]
    assert given(built) == built.bytes("build/the net/else.fatbin")  # of which the driver takes the image
    assert given(built, 1) == member(built, "add", arch)


def test_eight_threads_load_a_module_once(built: Project) -> None:
    _, asked = app(built, "threads")
    assert sorted(line for line in asked if not line.startswith("launch")) == ["kernel 0 _Z5scalePfPKdilb", "kernel 0 counts", "load 0"]
    assert sum(line.startswith("launch 0 counts ") for line in asked) == 4
    numbers = [line.split()[-3] for line in asked if line.startswith("launch 0 _Z5scale")]
    assert sorted(numbers) == ["01000000", "03000000", "05000000", "07000000"]


def test_each_device_gets_the_code_that_runs_on_it(built: Project) -> None:
    _, asked = app(built, "devices")
    assert [line for line in asked if line.startswith("load")] == ["load 0", "load 1", "load 2"]
    assert [line.split()[1] for line in asked if line.startswith("launch")] == ["0", "1", "2", "1", "0", "1"]
    assert [given(built, 0), given(built, 2)] == [member(built, "add", "sm_90"), member(built, "add", "sm_80")]
    assert [line for line in asked if line.startswith("allow")] == [f"allow _Z5scalePfPKdilb 1 49153 {device}" for device in (0, 1)]


def test_shared_memory_beyond_48_kib_is_asked_for_and_never_taken_back(built: Project) -> None:
    """Static memory counts: one of the kernels has 16 KiB of it."""
    _, asked = app(built, "shared")
    assert [line for line in asked if line.startswith("allow")] == [
        "allow _Z5scalePfPKdilb 1 40000 0",
        "allow _Z5scalePfPKdilb 1 50000 0",
        "allow counts 1 50000 0",
    ]


def test_g1_a_variable_is_that_of_the_kernels(built: Project) -> None:
    printed, _ = app(built, "variables")
    assert printed[:2] == ["7000 4 7001", "1"]
    assert printed[2] == "error: module apart is a bundle, in which each kernel has variables of its own: ask the kernel"


def test_l8_python_reads_all_of_it_too(built: Project) -> None:
    """By the SHA-256 that the manifest names."""
    net = scons_gpu.load(built.path("build/the net.json"))
    for module in (net["else"], net["apart"]):
        found = [each for symbol in module.kernels for _, each in code.kernel_code(module.manifest, symbol).values()]
        assert all(each.sha256 and code.read(each, folder=net.path.parent) for each in found)
        assert len({(each.file, each.member) for each in found}) == (3 if module.name == "else" else 9)


# What is said.


@pytest.mark.parametrize(
    ("what", "stubbed", "message"),
    [
        (
            "typed",
            {"capability": 75},
            "kernel scale(float*, double const*, int, long, bool) of module else: nothing that was built runs on this device, which is 7.5; there is code for sm_90, sm_80, compute_80",
        ),
        (
            "fresh",
            {"capability": 100},
            "kernel add(float*) of module fresh: nothing that was built runs on this device, which is 10.0; there is code for sm_90",
        ),
        ("absent", {}, "module else has no kernel scala"),
        ("nowhere", {}, "program the net has no module nothing with code"),
        ("gone", {}, "variable gone of kernel counts of module else: the driver says CUDA_ERROR_NOT_FOUND"),
        (
            "short",
            {},
            "kernel scale(float*, double const*, int, long, bool) of module else has parameters of these bytes: 8 8 4 8 1; it was given: 8 8 8",
        ),
        ("fresh", {"load": 209}, "kernel add(float*) of module fresh does not load: the driver says CUDA_ERROR_NO_BINARY_FOR_GPU"),
        ("fresh", {"init": 100}, "there is a CUDA driver on this machine, and no device"),
        ("fresh", {"init": 803}, "the CUDA driver does not start: the driver says 803"),
        ("fresh", {"context": 0}, "no device is current on this thread: call scons_gpu::use_device, or the runtime's cudaSetDevice"),
        ("third", {}, "device 2 cannot be used: the driver says 101"),
    ],
)
def test_what_cannot_be_done_is_said(built: Project, what: str, stubbed: Mapping[str, int], message: str) -> None:
    printed, asked = app(built, what, **stubbed)
    assert printed == [f"error: {message}"]
    assert [line for line in asked if line.startswith("launch")] == []


def test_a_program_starts_without_a_driver_and_says_so(built: Project) -> None:
    if not built.exists("no driver"):
        built.path("no driver").mkdir()
        built.write("no driver/libcuda.so.1", "")  # also where there is one
    assert app(built, "list", "no driver")[0] != []
    for what in ("typed", "variables", "third"):
        assert said(built, what, "no driver").startswith("error: there is no CUDA driver on this machine: ")


def test_a_driver_of_before_12_is_too_old(built: Project) -> None:
    stub(built.path("old"), "-DOLD")
    message = "error: the CUDA driver of this machine is too old: it has no cuLibraryLoadData"
    assert said(built, "fresh", "old") == message


# What is built.


def test_a_shared_library_keeps_its_kernels_to_itself(built: Project) -> None:
    with built.path("liblib.so").open("rb") as file:
        names = {symbol.name for symbol in ELFFile(file).get_section_by_name(".dynsym").iter_symbols()}
    assert "kernels_of_lib" in names
    assert [name for name in names if "scons_gpu_the_net" in name or (name.startswith("_ZN9scons_gpu") and "Error" not in name)] == []
    call = f"import ctypes; print(ctypes.CDLL({str(built.path('liblib.so'))!r}).kernels_of_lib())"
    assert subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True).stdout == "7\n"


def test_m8_t10_object_and_header_are_the_same_in_any_folder(built: Project, tmp_path: Path) -> None:
    other = written(tmp_path / "a longer name for another checkout")
    shutil.copytree(built.path(".gpu-store"), other.path(".gpu-store"))
    other.build("build/net code.o", "build/net.hpp")
    for name in ("build/net code.o", "build/net.hpp"):
        assert other.bytes(name) == built.bytes(name)
    assert str(built.root).encode() not in built.bytes("build/net code.o")


def test_r4_r7_an_edit_makes_what_it_must(built: Project) -> None:
    built.idle()
    header = built.bytes("build/net.hpp")
    edits = {"add.ll": ("1.0", "3.0"), "scale.ll": ("ret void", 'fence syncscope("device") seq_cst\n  ret void')}
    for source, (old, new) in edits.items():
        built.edit(source, old, new)
        result = built.build()
        compiled = [line for line in result.lines if " -c " in line]
        assert len(compiled) == 1  # the object, and no C++ of the user's
        assert "net code.o.cpp" in compiled[0]
        assert built.bytes("build/net.hpp") == header
        app(built, "typed")
        assert (given(built), given(built, 1)) == (built.bytes("build/the net/else.fatbin"), member(built, "add", "sm_90"))
    built.idle()
    built.edit("add.ll", "@plain(", "@_Z5plainPf(")  # another name: another function in the header
    built.build("build/net.hpp")
    assert "inline void plain(const ::scons_gpu::Launch& how, float* a0)" in built.read("build/net.hpp")
    assert built.run("-n").returncode == 0
    assert built.run("-c").returncode == 0
    assert [name for name in ("build/net code.o", "build/net code.o.cpp", "build/net.hpp", "app") if built.exists(name)] == []


def test_mistakes_in_a_sconstruct_are_said(project: Project) -> None:
    project.write("k.ll", ll("k"))
    head = 'net = env.GpuProgram("build/net", env.GpuModule("net", ["k.ll"]))\n'
    for line, message in {
        'env.GpuEmbed("k.o", net)': "GpuEmbed(k.o): the environment has no C++ compiler\n  name SCons' own tools too",
        'env.GpuEmbed("k.o", "k.ll")': "GpuEmbed(k.o): k.ll is no program\n  give it what env.GpuProgram gives",
        'env.GpuHeader("k.hpp", [])': "GpuHeader(k.hpp): nothing is no program",
    }.items():
        project.write("SConstruct", head + line)
        assert f"error: {message}" in project.fail("-n").stderr


def test_the_header_compiles_with_the_oldest_cuda_that_has_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("#include <scons_gpu.hpp>\nint main() { return 0; }\n")
    words = ["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{scons_gpu.INCLUDE}"]
    subprocess.run(["c++", *words, "-isystem", SITE / "nvidia/cuda_runtime/include", "a.cpp"], cwd=tmp_path, check=True)


# docs/loading.md.


@pytest.fixture(scope="module")
def page(built: Project, tmp_path_factory: pytest.TempPathFactory) -> Page:
    made = Page(tmp_path_factory.mktemp("page") / "project")
    shutil.copytree(built.path("driver"), made.project.path("driver"))
    return made


def test_the_documented_program_runs(page: Page) -> None:
    project = page.project
    printed, asked = app(project, "")
    assert printed == ["relu(-1) is 0"]  # the stub's memory is zero
    assert [line.split()[:3] for line in asked] == [["load", "0"], ["kernel", "0", "_Z4reluPKfPfl"], ["launch", "0", "_Z4reluPKfPfl"]]
    assert asked[-1].endswith(" 0001000000000000")
    assert project.exists("libuntyped.so")
    project.idle()


def test_the_documented_python_runs(page: Page) -> None:
    project = page.project
    done = subprocess.run(
        [sys.executable, "-c", page.listing], cwd=project.root, env=project.environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[0] == "['then']"
    assert done.stdout.splitlines()[1].startswith("_Z4reluPKfPfl relu(float const*, float*, long) relu.cu {'compute_90': None, 'sm_90': ")
    assert done.stdout.splitlines()[2] == "('sm_90', 'compute_90') {}"
    done = subprocess.run(
        [sys.executable, "-c", page.launching], cwd=project.root, env=project.environ, capture_output=True, text=True, check=False
    )
    if missing := device():
        assert "scons_gpu.errors.ToolMissingError: there is " in done.stderr, missing
    else:
        assert (done.returncode, done.stderr) == (0, "")


def test_the_example_says_what_is_missing(built: Project) -> None:
    project = built
    done = subprocess.run(
        [sys.executable, str(TOP / "examples/relu.py"), "absent.json"],
        cwd=project.root,
        env=project.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: absent.json: cannot be read: no such file or directory\n")
