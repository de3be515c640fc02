"""R: rebuilding. After every change exactly what it concerns is made again, and a build after that does nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import pytest
from project import CUDA, LL_HEAD, Project, ll

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scons_gpu.toolchain.tools import Toolchain

NET = 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n'

KERNELS = """\
#include "outer.h"
__global__ void uses_outer(float* data) { data[threadIdx.x] += OUTER; }
__global__ void uses_inner(float* data) { data[threadIdx.x] *= inner(); }
__global__ void uses_forced(float* data) { data[threadIdx.x] -= FORCED; }
__global__ void uses_nothing(float* data) { data[threadIdx.x] = 0.0f; }
#ifndef __CUDA_ARCH__
// host only: 1
#endif
"""


@pytest.fixture
def cuda(project: Project) -> Project:
    """One .cu, a header that it names, one behind that with a space in its path, and one that a flag names."""
    project.write(
        "SConstruct",
        CUDA
        + """
env.Append(CPPPATH=["include"], GPU_CLANGFLAGS=["-include", "forced.h"])
env.GpuProgram("build/net", env.GpuModule("net", ["net.cu"]))
""",
    )
    project.write("net.cu", KERNELS)
    project.write("include/outer.h", '#include "with space/inner.h"\n#define OUTER 1.0f\n')
    project.write("include/with space/inner.h", "__device__ inline float inner() { return 2.0f; }\n")
    project.write("forced.h", "#define FORCED 3.0f\n")
    return project


@pytest.fixture
def net(project: Project) -> Project:
    project.write("SConstruct", NET)
    project.write("net.ll", ll("one=1.0", "two=2.0", "three=3.0"))
    return project


def test_r1_header_edits_rebuild_the_kernels_that_see_them(cuda: Project) -> None:
    cuda.build("-j2")
    assert len(cuda.compiled()) == 4
    for header, old, new, concerned in (
        ("include/outer.h", "1.0f", "1.5f", "uses_outer"),
        ("include/with space/inner.h", "2.0f", "2.5f", "uses_inner"),
        ("forced.h", "3.0f", "3.5f", "uses_forced"),
    ):
        cuda.idle()
        cuda.edit(header, old, new)
        cuda.build()
        assert [name.partition("(")[0] for name in cuda.compiled()] == [concerned]
    cuda.idle()


def test_r1_a_comment_in_a_header_compiles_nothing(cuda: Project) -> None:
    cuda.build()
    cuda.edit("include/outer.h", "#define", "// why\n#define")
    cuda.build()
    assert cuda.compiled() == []
    assert cuda.done()["link"] == 0
    cuda.idle()


def test_r1_a_header_that_shadows_another_is_seen(project: Project) -> None:
    project.write("SConstruct", CUDA + 'env["CPPPATH"] = ["first", "second"]\n' + NET.replace(".ll", ".cu"))
    project.write("net.cu", '#include "value.h"\n__global__ void k(float* data) { *data = VALUE; }\n')
    project.write("second/value.h", "#define VALUE 1.0f\n")
    project.path("first").mkdir()
    project.build()
    project.write("first/value.h", "#define VALUE 2.0f\n")
    project.build()
    assert len(project.compiled()) == 1


def test_r1_files_that_clang_looked_for_in_vain_are_seen_when_they_come(project: Project) -> None:
    flags = 'env["CPPPATH"] = ["inc"]\nenv.Append(GPU_CLANGFLAGS=["-ivfsoverlay", "virtual.yaml"])\n'
    project.write("SConstruct", CUDA + flags + NET.replace(".ll", ".cu"))
    overlay = "{{'version': 0, 'roots': [{{'name': '{root}/virtual.h', 'type': 'file', 'external-contents': '{root}/{name}'}}]}}"
    project.write("virtual.yaml", overlay.format(root=project.root, name="real.h"))
    project.write("real.h", "#define VIRTUAL 1\n")
    project.write("unreal.h", "#define VIRTUAL 8\n")
    project.write("inc/value.h", "#define VALUE 1\n")
    asks = '#if __has_include("asked.h")\n#define ASKED 4\n#else\n#define ASKED 1\n#endif\n'
    project.write(
        "net.cu", f'#include "value.h"\n#include "virtual.h"\n{asks}__global__ void k(int* d) {{ *d = VALUE * ASKED * VIRTUAL; }}\n'
    )
    project.build()
    for name, text, value in (
        ("value.h", "#define VALUE 2\n", 2),
        ("inc/asked.h", "", 8),
        ("virtual.yaml", overlay.format(root=project.root, name="unreal.h"), 64),
    ):
        project.idle()
        project.write(name, text)
        project.build()
        assert f"store i32 {value}, ptr" in project.read("build/net/net/net.cu.sm_90.ll")


def test_r1_a_generated_header_is_made_first_and_followed(project: Project) -> None:
    project.write(
        "SConstruct",
        CUDA
        + """
env.Append(CPPPATH=["build/gen"])
env.Command("build/gen/value.h", "value.txt", Copy("$TARGET", "$SOURCE"))
env.GpuProgram("build/net", env.GpuModule("net", ["net.cu"]))
""",
    )
    project.write(
        "net.cu", '#include "value.h"\n__global__ void k(float* data) { *data = VALUE; }\n__global__ void other(int* data) { *data = 1; }\n'
    )
    project.write("value.txt", "#define VALUE 1.0f\n")
    project.build()
    project.idle()
    project.write("value.txt", "#define VALUE 2.0f\n")
    project.build()
    assert project.compiled() == ["k(float*)"]
    project.idle()


def test_r1_a_generated_source_is_made_first_and_followed(project: Project) -> None:
    project.write(
        "SConstruct",
        'env.Command("build/gen.ll", "text.txt", Copy("$TARGET", "$SOURCE"))\n'
        'env.GpuProgram("build/net", env.GpuModule("net", ["build/gen.ll"]))\n',
    )
    project.write("text.txt", ll("one=1.0", "two=2.0"))
    project.build()
    project.write("text.txt", ll("one=1.0", "two=4.0"))
    project.build()
    assert project.compiled() == ["two"]
    project.idle()


@pytest.mark.parametrize(
    ("argument", "ran"),
    [
        ("GPU_OPT=1", {"lower", "assemble"}),
        ("GPU_MAXRREGCOUNT=32", {"assemble"}),
        ("GPU_PTXASFLAGS=--warn-on-spills", {"assemble"}),
        ("GPU_LINEINFO=1", {"assemble"}),
        ("GPU_DEBUG=1", {"lower", "assemble"}),
        ("GPU_LINK=image", {"assemble"}),
    ],
)
def test_r2_a_variable_rebuilds_the_stages_that_see_it(net: Project, argument: str, ran: set[str]) -> None:
    net.build()
    assert {"lower", "assemble"} <= set(net.done())
    net.build(argument)
    done = net.done()
    assert {stage for stage in ("lower", "assemble") if done[stage]} >= ran
    assert done["source"] == 0
    if argument.startswith(("GPU_MAXRREGCOUNT", "GPU_PTXASFLAGS", "GPU_OPT")):
        assert done["split"] == 0
    if argument.startswith(("GPU_MAXRREGCOUNT", "GPU_PTXASFLAGS")):
        assert done["lower"] == 0
    net.idle(argument)
    net.build()
    assert net.done()["lower"] == net.done()["assemble"] == 0, "going back finds everything in the store"


def test_r2_a_define_rebuilds_the_kernels_that_see_it(project: Project) -> None:
    project.write("SConstruct", CUDA + 'env["CPPDEFINES"] = {"TILE": 4}\n' + NET.replace(".ll", ".cu"))
    project.write("net.cu", "__global__ void tiled(int* data) { *data = TILE; }\n__global__ void plain(int* data) { *data = 1; }\n")
    project.build()
    project.edit("SConstruct", "4", "8")
    project.build()
    assert project.compiled() == ["tiled(int*)"]
    project.idle()


def test_r2_an_options_file_is_followed(project: Project) -> None:
    project.write("SConstruct", CUDA + 'env.Append(GPU_CLANGFLAGS=["@flags.rsp"])\n' + NET.replace(".ll", ".cu"))
    project.write("net.cu", "__global__ void tiled(int* data) { *data = TILE; }\n")
    project.write("flags.rsp", "-DTILE=4\n")
    project.build()
    project.write("flags.rsp", "-DTILE=8\n")
    project.build()
    assert project.compiled() == ["tiled(int*)"]
    project.idle()


def copied_toolkit(toolchain: Toolchain, root: Path) -> Path:
    """A toolkit of our own, to be tampered with."""
    assert toolchain.ptxas is not None
    assert toolchain.libdevice is not None
    binaries = Path(toolchain.ptxas.path).parent
    for name in ("ptxas", "nvlink", "fatbinary", "cuobjdump", "nvdisasm"):
        (root / "bin").mkdir(parents=True, exist_ok=True)
        shutil.copy2(binaries / name, root / "bin" / name)
    (root / "nvvm/libdevice").mkdir(parents=True)
    shutil.copy2(toolchain.libdevice.path, root / "nvvm/libdevice/libdevice.10.bc")
    return root


def test_r2_an_upgraded_assembler_behind_one_path_assembles_again(net: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    toolkit = copied_toolkit(toolchain, tmp_path / "cuda")
    net.build(f"GPU_CUDA_PATH={toolkit}")
    net.idle(f"GPU_CUDA_PATH={toolkit}")
    with (toolkit / "bin/ptxas").open("ab") as file:
        file.write(b"another build of it")
    net.build(f"GPU_CUDA_PATH={toolkit}")
    done = net.done()
    assert (done["lower"], done["assemble"]) == (0, 3)
    net.idle(f"GPU_CUDA_PATH={toolkit}")


def test_r2_another_libdevice_lowers_what_calls_it(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    toolkit = copied_toolkit(toolchain, tmp_path / "cuda")
    wave = ll("wave").replace("fadd float %old, 1.0", "call float @__nv_sinf(float %old)").removeprefix(LL_HEAD)
    project.write("SConstruct", NET)
    project.write("net.ll", ll("flat=1.0") + wave + "declare float @__nv_sinf(float)\n")
    project.build(f"GPU_CUDA_PATH={toolkit}")
    file = toolkit / "nvvm/libdevice/libdevice.10.bc"
    module = llvm.parse_bitcode(file.read_bytes(), llvm.create_context())
    file.write_bytes(module.as_bitcode())  # the same library, as another LLVM writes it
    project.build(f"GPU_CUDA_PATH={toolkit}")
    assert project.compiled() == ["wave"]
    project.idle(f"GPU_CUDA_PATH={toolkit}")


def test_r3_an_edit_of_host_code_compiles_no_unit(cuda: Project) -> None:
    cuda.edit("SConstruct", CUDA, "")  # the toolkit's headers, once in this file: they look different to the host, too
    cuda.build()
    cuda.edit("net.cu", "// host only: 1", "int host_only() { return 2; }")
    cuda.build()
    done = cuda.done()
    assert (done["source"], done["lower"], done["assemble"], done["link"]) == (1, 0, 0, 0)
    cuda.idle()


def test_r4_a_build_with_nothing_to_do_says_so(net: Project) -> None:
    net.build()
    result = net.build()
    assert "scons: `build/net.json' is up to date." in result.stdout or "is up to date" in result.stdout
    assert net.done() == {}
    assert net.stats()["needed"] == 0
    net.edit("net.ll", "2.0", "2.5")
    assert net.run("-q").returncode == 1
    net.build()
    net.idle()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_r5_a_build_that_was_stopped_is_finished_rightly_by_the_next(tmp_path: Path, sent: signal.Signals) -> None:
    kernels = [f"k{number}={number}.0" for number in range(12)]
    calm = Project(tmp_path / "calm", forked=False)  # takes the time that the others take
    calm.write("SConstruct", NET)
    calm.write("net.ll", ll(*kernels))
    begun = time.monotonic()
    calm.build("-j2")
    whole = time.monotonic() - begun
    wanted = calm.files("build/**/*")
    for number in range(4):
        project = Project(tmp_path / f"stopped{number}")
        project.write("SConstruct", NET)
        project.write("net.ll", ll(*kernels))
        process = project.start("-j2")
        time.sleep(whole * (number + 1) / 5)
        os.killpg(process.pid, sent)
        process.communicate(timeout=60)
        project.build("-j2")
        assert project.files("build/**/*") == wanted
        project.idle()


def test_r5_a_killed_tool_is_an_error_and_the_next_build_is_right(net: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    toolkit = copied_toolkit(toolchain, tmp_path / "cuda")
    real = toolkit / "bin/real-ptxas"
    (toolkit / "bin/ptxas").rename(real)
    flag = tmp_path / "kill"
    wrapper = toolkit / "bin/ptxas"
    wrapper.write_text(f'#!/bin/sh\ncase "$*" in *version*|*help*) ;; *) [ -e {flag} ] && kill -9 $$ ;; esac\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    flag.touch()
    result = net.fail(f"GPU_CUDA_PATH={toolkit}")
    assert re.search(r"^error: module net \(sm_90\): ptxas was killed by SIGKILL while GPU_LINK=auto found out", result.stderr)
    result = net.fail(f"GPU_CUDA_PATH={toolkit}", "GPU_LINK=image")
    assert re.search(r"error: kernel (one|two|three) of net/net\.ll \(sm_90\): ptxas was killed", result.stderr)
    assert not net.exists("build/net/net.fatbin")
    flag.unlink()
    net.build(f"GPU_CUDA_PATH={toolkit}")
    assert net.kernels("net") == ["one", "three", "two"]
    net.idle(f"GPU_CUDA_PATH={toolkit}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, where the kernel lets us mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_r5_a_full_disk_is_an_error(net: Project, small_disk: Path) -> None:
    net.write("net.ll", ll(*(f"k{number}={number}.0" for number in range(40))))
    result = net.fail(f"GPU_STORE={small_disk}/store")
    assert "error: " in result.stderr
    assert "no space left on device" in result.stderr.lower()
    assert not net.exists("build/net/net.fatbin")
    net.build()
    assert len(net.kernels("net")) == 40


def test_r6_going_back_to_an_earlier_version_compiles_nothing(net: Project) -> None:
    net.build()
    image = net.image("net").read_bytes()
    net.edit("net.ll", "2.0", "2.5")
    net.build()
    assert net.compiled() == ["two"]
    assert net.image("net").read_bytes() != image
    net.edit("net.ll", "2.5", "2.0")
    net.build()
    done = net.done()
    assert (done["source"], done["split"], done["lower"], done["assemble"], done["link"]) == (1, 1, 0, 0, 1)
    assert net.image("net").read_bytes() == image
    assert net.stats()["reused"] == 3
    net.idle()


def test_r7_clean_removes_what_the_program_made_and_leaves_the_store(net: Project) -> None:
    net.write("mine.txt", "the user's own")
    net.build()
    made = net.files("build/**/*")
    entries = net.files(".gpu-store/object/**/*")
    assert entries
    net.build("-c")
    assert net.files("build/**/*") == {}
    assert net.files(".gpu-store/object/**/*") == entries
    assert net.exists("mine.txt")
    net.build()
    assert net.compiled() == []
    assert net.files("build/**/*") == made


def test_r7_gc_between_builds_makes_nothing_stale(net: Project) -> None:
    net.build()
    result = net.command("gc")
    assert result.returncode == 0, result.output
    net.idle()
    shutil.rmtree(net.path(".gpu-store"))
    net.idle()
    net.edit("net.ll", "2.0", "2.5")
    net.build()
    assert net.kernels("net") == ["one", "three", "two"]
    net.idle()


def test_r7_dry_run_says_that_units_are_decided_later(net: Project) -> None:
    result = net.build("-n")
    assert "decided during the build" in result.output
    assert not net.exists("build")
    assert not net.exists(".gpu-store/object")


def test_r7_keep_going_finishes_all_that_does_not_depend_on_the_failure(project: Project) -> None:
    project.write(
        "SConstruct",
        """
bad = env.GpuModule("bad", ["bad.ll"])
good = env.GpuModule("good", ["good.ll"])
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[bad, good]))
""",
    )
    undefined = ll("calls=1.0").replace("ret void", "call void @missing()\n  ret void").removeprefix(LL_HEAD)
    project.write("bad.ll", ll("fine=2.0") + undefined + "declare void @missing()\n")
    project.write("good.ll", ll("other=3.0"))
    result = project.fail("-k", "-j2")
    assert "missing" in result.stderr
    assert "calls" in result.stderr
    assert project.compiled() == ["fine", "other"]
    assert project.kernels("good") == ["other"]
    assert project.exists("build/net/good.fatbin")
    assert not project.exists("build/net/bad.fatbin")
    assert not project.exists("build/net.json")

    project.edit("bad.ll", "call void @missing()", "")
    project.build("-j2")
    assert project.compiled() == ["calls"]
    project.idle()


def test_r7_the_number_of_jobs_changes_no_byte(tmp_path: Path) -> None:
    made = []
    for jobs in ("-j1", "-j8"):
        project = Project(tmp_path / f"a_{jobs}")
        project.write("SConstruct", NET)
        project.write("net.ll", ll(*(f"k{number}={number}.0" for number in range(12))))
        project.build(jobs)
        made.append(project.files("build/**/*"))
    assert made[0] == made[1]


@pytest.mark.parametrize("duplicate", [0, 1])
def test_r8_variant_dir(project: Project, duplicate: int) -> None:
    project.write("SConstruct", f'SConscript("src/SConscript", exports="env", variant_dir="out", duplicate={duplicate})\n')
    project.write(
        "src/SConscript",
        'Import("env")\nnet = env.GpuModule("net", ["net.ll", "more.cu"], CPPPATH=["include"])\nenv.GpuProgram("net", net)\n',
    )
    project.write("src/net.ll", ll("one=1.0", "two=2.0"))
    project.write("src/more.cu", '#include "value.h"\n__global__ void more(float* data) { *data = VALUE; }\n')
    project.write("src/include/value.h", "#define VALUE 1.0f\n")
    project.build("-j2")
    assert project.kernels("net", stem="out/net") == ["_Z4morePf", "one", "two"]
    assert project.manifest("out/net")["modules"]["net"]["kernels"]["one"]["source"] == "src/net.ll"
    project.idle()
    project.edit("src/net.ll", "2.0", "2.5")
    project.build()
    assert project.compiled() == ["two"]
    project.edit("src/include/value.h", "1.0f", "1.5f")
    project.build()
    assert project.compiled() == ["more(float*)"]
    project.idle()


def test_r8_an_absolute_source_is_the_relative_one(tmp_path: Path) -> None:
    made = []
    for name, source in (("relative", '"net.ll"'), ("absolute", 'File("net.ll").get_abspath()')):
        project = Project(tmp_path / name)
        project.write("SConstruct", NET.replace('"net.ll"', source))
        project.write("net.ll", ll("one=1.0"))
        project.build()
        made.append(project.files("build/**/*"))
    assert made[0] == made[1]


def test_r8_two_trees_share_one_store_at_once(tmp_path: Path) -> None:
    projects = [Project(tmp_path / name) for name in ("left", "right")]
    for project in projects:
        project.write("SConstruct", f'env["GPU_STORE"] = {str(tmp_path / "store")!r}\n' + NET)
        project.write("net.ll", ll(*(f"k{number}={number}.0" for number in range(12))))
    running = [project.start("-j2") for project in projects]
    for process in running:
        output = process.communicate(timeout=300)
        assert process.returncode == 0, output
    left, right = (project.files("build/**/*") for project in projects)
    assert left == right
    for project in projects:
        assert project.run("-q").returncode == 0


def test_r8_a_source_may_come_from_a_sconscript_in_a_folder(project: Project) -> None:
    project.write(
        "SConstruct",
        'ops = SConscript("ops/SConscript", exports="env")\nenv.GpuProgram("build/net", env.GpuModule("net", [], submodules=[ops]))\n',
    )
    project.write("ops/SConscript", 'Import("env")\nops = env.GpuModule("ops", ["ops.ll"])\nReturn("ops")\n')
    project.write("ops/ops.ll", ll("scan=1.0"))
    project.build()
    assert project.manifest()["modules"]["ops"]["kernels"]["scan"]["source"] == "ops/ops.ll"
    project.idle()


def test_r2_what_another_link_mode_made_is_taken_away(net: Project) -> None:
    """A loader that finds the fatbin of a build with another GPU_LINK would load stale code from then on."""
    net.build()
    net.build("GPU_LINK=bundle")
    assert (net.exists("build/net/net.fatbin"), net.exists("build/net/net.gpubundle")) == (False, True)
    net.idle("GPU_LINK=bundle")
    net.build()
    assert (net.exists("build/net/net.fatbin"), net.exists("build/net/net.gpubundle")) == (True, False)
    net.idle()


def test_r5_resources_that_are_not_the_images_are_made_again(net: Project) -> None:
    """A build that was killed between the two files, and an edit that was taken back; or a file that was changed, its time kept."""
    net.build()
    before, side = net.manifest(), net.path("build/net/net/sm_90.link.json")
    times = side.stat()
    text = side.read_text(encoding="utf-8")
    side.write_text(text.replace('"spill_loads": 0', '"spill_loads": 8'), encoding="utf-8")
    net.build()
    assert side.read_text(encoding="utf-8") == text
    side.write_text(text.replace('"spill_loads": 0', '"spill_loads": 8'), encoding="utf-8")
    os.utime(side, ns=(times.st_atime_ns, times.st_mtime_ns))
    net.path("build/net.json").unlink()
    assert "sm_90.link.json is not what was written beside sm_90.cubin" in net.fail().output
    net.build()
    assert net.manifest() == before
    net.idle()
