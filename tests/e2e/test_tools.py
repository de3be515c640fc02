"""T4 to T9: tools found and overridden, what loading costs, lines, what tools say, counts from outside, short hashes."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from elftools.elf.elffile import ELFFile
from project import HEAD, IMAGE, LL_HEAD, Project, ll

import scons_gpu

if TYPE_CHECKING:
    from collections.abc import Mapping

    from toolkits import Toolkit


NET = 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n'


@pytest.fixture
def net(project: Project) -> Project:
    project.write("SConstruct", NET)
    project.write("net.ll", ll("one=1.0", "two=2.0"))
    return project


# T4


def test_t4_a_toolkit_that_is_named_is_taken(net: Project, toolkit: Toolkit) -> None:
    net.build(f"GPU_CUDA_PATH={toolkit.root}", "GPU_LINK=image")
    assert toolkit.counts() == {"ptxas": 2, "nvlink": 1, "fatbinary": 1}


def test_t4_the_wheels_come_before_cuda_home_and_the_path(net: Project, toolkit: Toolkit) -> None:
    net.environ.update(CUDA_HOME=str(toolkit.root), CUDA_PATH=str(toolkit.root), PATH=f"{toolkit.root / 'bin'}:{net.environ['PATH']}")
    net.build()
    assert toolkit.counts() == {}


def test_t4_a_clang_that_is_named_is_taken(project: Project, toolkit: Toolkit) -> None:
    project.write("SConstruct", NET.replace(".ll", ".cu"))
    project.write("net.cu", "__global__ void one(float* data) { *data = 1.0f; }\n")
    project.build(f"GPU_CLANG={toolkit.clang}")
    assert toolkit.counts() == {"clang": 1}
    assert project.kernels("net") == ["_Z3onePf"]


def test_t4_doctor_tells_what_was_looked_at_and_taken(project: Project, toolkit: Toolkit) -> None:
    project.environ["GPU_CUDA_PATH"] = str(toolkit.root)
    result = project.command("doctor", "--json")
    assert result.returncode == 0, result.output
    said = json.loads(result.stdout)
    text = json.dumps(said)
    assert str(toolkit.root / "bin/ptxas") in text
    assert "GPU_CUDA_PATH" in text
    assert said["tools"]["ptxas"]["version"].startswith("13.")


# T5

LOOKS = """\
import os, sys
events = []
sys.addaudithook(lambda event, args: events.append((event, args)) if event in PROCESSES else None)
PROCESSES = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn")
before = set(sys.modules)
"""
TELLS = """\
print("TOLD", len(events), sorted(name for name in set(sys.modules) - before if name.partition(".")[0] in ("llvmlite", "cuda", "xxhash", "numpy")))
"""


def told(project: Project, text: str) -> tuple[list[str], str]:
    """What a SConstruct prints, without SCons' own lines, and the line of `TELLS`."""
    project.forked = False  # what loading does is looked at
    project.write("SConstruct", LOOKS + text + TELLS)
    result = project.build("-s")
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    return [line for line in lines if not line.startswith("TOLD")], next(line for line in lines if line.startswith("TOLD"))


def test_t5_loading_starts_no_process_imports_neither_llvm_nor_cuda_and_prints_nothing(project: Project) -> None:
    environment = f'Environment(tools=["gpu"], toolpath=[{scons_gpu.TOOLPATH!r}], GPU_ARCHS=["sm_90"])\n'
    assert told(project, f"env = {environment}env.Tool('gpu')\n") == ([], "TOLD 0 []")
    assert told(project, f"for _ in range(10):\n    env = {environment}") == ([], "TOLD 0 []")


def test_t5_ten_environments_build_as_one_does(project: Project) -> None:
    environment = f'Environment(tools=["gpu", "gpu"], toolpath=[{scons_gpu.TOOLPATH!r}], GPU_ARCHS=["sm_90"])'
    project.write("SConstruct", f"envs = [{environment} for _ in range(10)]\nenv = envs[-1].Clone()\nenv.Tool('gpu')\n" + NET)
    project.write("net.ll", ll("one=1.0"))
    project.build()
    assert project.compiled() == ["one"]
    assert project.run("-q").returncode == 0


def test_t5_what_the_user_set_before_stays(project: Project) -> None:
    project.write(
        "SConstruct",
        f'env = Environment(GPU_ARCHS=["sm_80"], GPU_OPT=1, tools=["gpu"], toolpath=[{scons_gpu.TOOLPATH!r}])\nenv.Tool("gpu")\n'
        'print(env["GPU_ARCHS"], env["GPU_OPT"], env["GPU_LINK"])\n',
    )
    assert project.build("-s").stdout == "['sm_80'] 1 auto\n"


def test_t5_a_build_with_nothing_to_do_starts_no_process(project: Project) -> None:
    # SCons asks compilers for their version whenever its default environment is made with default tools.
    project.write(
        "SConstruct",
        LOOKS
        + "DefaultEnvironment(tools=[])\n"
        + HEAD
        + NET
        + "import atexit\natexit.register(lambda: print('TOLD', len(events), [args[0] for _, args in events]))\n",
    )
    project.write("net.ll", ll("one=1.0"))
    assert "TOLD 0 []" not in project.build().lines
    assert "TOLD 0 []" in project.build().lines


# T6


def test_t6_lines_are_short_and_stable(project: Project) -> None:
    project.write("SConstruct", NET.replace("net.ll", "net.cu"))
    project.write(
        "net.cu", "template <int N> __global__ void scale(float* data) { *data *= N; }\ntemplate __global__ void scale<4>(float*);\n"
    )
    first = project.build("-Q")
    summary = "units 1: 1 compiled · 1 image · "
    assert first.lines[:-1] == [
        "source    net.cu  sm_90",
        "split     net.cu  sm_90",
        "plan      net  sm_90",
        "lower     scale<4>(float*)  sm_90",
        "assemble  scale<4>(float*)  sm_90",
        "link      net  sm_90",
        "pack      net",
        "manifest  build/net.json",
    ]
    assert first.lines[-1].startswith(summary)
    assert first.stderr == ""


def test_t6_silent_is_silent(net: Project) -> None:
    for args in (["-Q", "-s"], ["-s"], ["-s", "-c"]):
        result = net.build(*args)
        assert (result.stdout, result.stderr) == ("", "")
    assert [record["result"] for record in net.records() if record.get("stage") == "manifest"] == ["built"]


def test_t6_a_line_can_be_the_users_own(net: Project) -> None:
    net.edit("SConstruct", "env.GpuProgram", 'env["GPU_LOWERCOMSTR"] = "LLVM $GPU_NAME"\nenv.GpuProgram')
    lines = net.build("-Q", "GPU_LINKCOMSTR=NVLINK $GPU_NAME").lines
    assert {"LLVM one  sm_90", "LLVM two  sm_90", "NVLINK net  sm_90"} <= set(lines)


FULL = [f"GPU_{step}COMSTR=" for step in ("SOURCE", "SPLIT", "PLAN", "LOWER", "ASSEMBLE", "LINK", "PACK", "MANIFEST")]


def by_hand(project: Project, line: str) -> None:
    """Runs a printed command as a person would, and finds that it makes what is there already."""
    output = Path(shlex.split(line)[shlex.split(line).index("-o") + 1])
    made = output.read_bytes()
    output.unlink()
    functions = f'scons-gpu() {{ {sys.executable} -c "import sys; from scons_gpu.cli import main; sys.exit(main())" "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-c", functions + line], cwd=project.root, env=project.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert output.read_bytes() == made, line


COMMANDS = {
    "image": 'env["CPPDEFINES"] = {"TEXT": "a b"}\nenv["GPU_OPT"] = 2\nenv["GPU_MAXRREGCOUNT"] = 64\n',
    "bundle": 'env["GPU_LINK"] = "bundle"\nenv["GPU_ARCHS"] = ["sm_90", "compute_90"]\nenv["GPU_FTZ"] = 1\nenv["GPU_SHARE_TWINS"] = 1\nenv["GPU_PTXASFLAGS"] = ["--warn-on-spills"]\n',
    "ptx": 'env["GPU_ARCHS"] = "compute_90"\nenv["GPU_LINEINFO"] = 1\nenv["GPU_FAST_MATH"] = 1\n',
}


@pytest.mark.parametrize("mode", COMMANDS)
def test_t6_the_full_command_run_by_hand_makes_the_same_bytes(project: Project, toolkit: Toolkit, mode: str) -> None:
    sources = '["sub/net.ll"]' if mode == "bundle" else '["a b.cu", "sub/net.ll"]'
    project.write("SConstruct", COMMANDS[mode] + 'env["CPPPATH"] = ["in clude"]\n' + NET.replace('["net.ll"]', sources))
    project.write("in clude/one.h", "#define ONE 1.0f\n")
    memo = "static __device__ float memo;\n"
    project.write("a b.cu", memo + '#include "one.h"\n__global__ void one(float* data) { *data = sinf(memo += ONE); }\n')
    project.write("sub/net.ll", ll("two=2.0", *(["twin=2.0"] if mode == "bundle" else [])))
    lines = project.build("-Q", f"GPU_CUDA_PATH={toolkit.root}", *FULL).lines[:-1]
    steps = [line for line in lines if "scons-gpu " in line]
    assert len(steps) == len(lines) - 1, "all but the manifest's, which is a build's own"
    assert lines[-1] == f"scons {project.path('build/net.json')}"
    for step in steps:
        by_hand(project, step)
    assert "Traceback" not in "".join(lines)


# T7


def test_t7_what_llvm_says_is_told_apart_by_kernel_shown_once_and_logged(project: Project) -> None:
    loop = """
define ptx_kernel void @NAME(ptr addrspace(1) %data, i32 %count) {
  br label %loop
loop:
  %i = phi i32 [ 0, %0 ], [ %next, %loop ]
  %old = load volatile float, ptr addrspace(1) %data, align 4
  %new = fadd float %old, 1.0
  store volatile float %new, ptr addrspace(1) %data, align 4
  %next = add i32 %i, 1
  %more = icmp slt i32 %next, %count
  br i1 %more, label %loop, label %done, !llvm.loop !0
done:
  ret void
}
"""
    project.write("SConstruct", NET)
    names = ("stubborn", "obstinate")
    hint = '!0 = distinct !{!0, !1}\n!1 = !{!"llvm.loop.vectorize.enable", i1 true}\n'
    project.write("net.ll", ll("calm=1.0") + "".join(loop.replace("NAME", name) for name in names) + hint)
    result = project.build("-j2")
    for name in names:
        assert result.stderr.count(f"{name}  sm_90:\n") == 1, result.stderr
    assert result.stderr.count("loop not vectorized") == 2
    assert "calm" not in result.stderr
    said = {record["name"]: record["output"] for record in project.last() if record["stage"] == "lower"}
    assert said["calm"] == ""
    assert all("loop not vectorized" in said[name] for name in names)


def test_t7_a_flood_is_cut(project: Project) -> None:
    project.write("SConstruct", NET.replace(".ll", ".cu"))
    body = "\n".join(f"#pragma unroll\n  for (int i = 0; i < n + {number}; ++i) data[i] += data[i + {number}] * n;" for number in range(40))
    project.write("net.cu", f"__global__ void flood(volatile float* data, int n) {{\n{body}\n}}\n")
    result = project.build()
    assert len(result.stderr.splitlines()) < 30, result.stderr


# T8


def test_t8_wrappers_around_the_real_tools_agree_with_log_and_stats(project: Project, toolkit: Toolkit) -> None:
    project.write(
        "SConstruct",
        IMAGE
        + """
then = env.GpuModule("then", ["then.cu"])
other = env.GpuModule("else", ["else.ll"])
env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"], submodules=[then, other]))
""",
    )
    kernel = "__global__ void {0}(float* data) {{ *data += {1}; }}\n"
    project.write("then.cu", kernel.format("one", "1.0f") + kernel.format("two", "2.0f"))
    project.write("else.ll", ll("relu=0.5", "scale=3.0"))
    project.write("net.ll", ll("relu=0.5"))
    options = ("-j2", f"GPU_CUDA_PATH={toolkit.root}", f"GPU_CLANG={toolkit.clang}")

    def check(wanted: Mapping[str, int], compiled: int) -> None:
        project.build(*options)
        counted, logged, stats = toolkit.counts(), project.done(), project.stats()
        assert counted == wanted
        clang = [r for r in project.last() if r["stage"] == "source" and r["name"].endswith(".cu")]
        assert (counted.get("ptxas", 0), counted.get("nvlink", 0)) == (logged["assemble"], logged["link"])
        assert (counted.get("fatbinary", 0), counted.get("clang", 0)) == (logged["pack"], len(clang))
        assert (stats["compiled"], stats["linked"], stats["failed"]) == (compiled, counted.get("nvlink", 0), 0)

    check({"ptxas": 4, "nvlink": 3, "fatbinary": 3, "clang": 1}, 4)
    check({}, 0)
    project.edit("then.cu", "2.0f", "2.5f")
    check({"ptxas": 1, "nvlink": 1, "fatbinary": 1, "clang": 1}, 1)
    project.edit("then.cu", "2.5f", "2.0f")
    check({"nvlink": 1, "fatbinary": 1, "clang": 1}, 0)


# T9

PRIVATE = "@memo = internal addrspace(1) global float {0}\n@table = internal addrspace(4) constant [600 x float] [{1}]\n"


def collection(seed: int, count: int) -> str:
    """Kernels that share private state and a large table with a name that other sources use too, and one type each."""
    table = ", ".join(f"float {seed * 1000 + number}.0" for number in range(600))
    head = LL_HEAD + "".join(f"%shape{number} = type {{ [{number + 1} x float], float }}\n" for number in range(count))
    head += PRIVATE.format(f"{seed}.0", table)
    return head + "".join(
        f"""
define ptx_kernel void @k{seed}_{number}(ptr addrspace(1) %data) {{
  %index = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %wide = zext i32 %index to i64
  %place = getelementptr inbounds %shape{number}, ptr addrspace(1) %data, i64 %wide, i32 1
  %entry = getelementptr inbounds float, ptr addrspace(4) @table, i64 %wide
  %read = load float, ptr addrspace(4) %entry, align 4
  %old = load float, ptr addrspace(1) @memo, align 4
  %sum = fadd float %read, {number}.0
  %new = fadd float %sum, %old
  store float %new, ptr addrspace(1) {"@memo" if number % 10 == 0 else "%place"}, align 4
  ret void
}}
"""
        for number in range(count)
    )


def code(project: Project) -> dict[tuple[str, str], bytes]:
    """(module, kernel) → its machine code."""
    found = {}
    for name, module in project.manifest()["modules"].items():
        for symbol, kernel in module["kernels"].items():
            built = kernel["archs"]["sm_90"]
            found[name, symbol] = section(objects(project, module)[built["object"] if module["bundle"] else ""], f".text.{built['entry']}")
    return found


def objects(project: Project, module: Mapping[str, Any]) -> dict[str, bytes]:
    folder = project.path("build")
    if not module["bundle"]:
        return {"": (folder / module["images"]["sm_90"]["file"]).read_bytes()}
    with zipfile.ZipFile(folder / module["bundle"]) as archive:
        return {Path(name).name.removesuffix(".cubin"): archive.read(name) for name in archive.namelist()}


def section(data: bytes, name: str) -> bytes:
    found = ELFFile(io.BytesIO(data)).get_section_by_name(name)
    assert found is not None, name
    return bytes(found.data())


def nameless(value: Any) -> Any:
    """A manifest without the fields that are names made from digests, or hashes of files that hold such names."""
    if isinstance(value, dict):
        return {key: nameless(inner) for key, inner in value.items() if key not in ("unit", "object")}
    return [nameless(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_t9_a_hash_of_4_bits_builds_the_same_kernels(tmp_path: Path) -> None:
    made = []
    for bits in ("128", "4"):
        project = Project(tmp_path / bits, environ={**os.environ, "SCONS_GPU_TEST_HASH_BITS": bits})
        project.write(
            "SConstruct",
            """
left = env.GpuModule("left", ["a.ll", "b.ll"])
right = env.GpuModule("right", ["c.ll"], GPU_LINK="bundle", GPU_SHARE_TWINS=1)
env.GpuProgram("build/net", env.GpuModule("net", ["d.ll"], submodules=[left, right]))
""",
        )
        for seed, (name, count) in enumerate((("a", 30), ("b", 20), ("d", 10))):
            project.write(f"{name}.ll", collection(seed, count))
        project.write("c.ll", ll(*(f"k{number}={number}.5" for number in range(35)), *(f"twin{number}={number}.5" for number in range(5))))
        project.build("-j2")
        made.append(
            (
                code(project),
                nameless(project.manifest()),
                {name: project.bytes(name) for name in ("build/net/left.fatbin", "build/net/net.fatbin")},
            )
        )
        names = {path.name.partition(".")[0] for path in project.root.glob(".gpu-store/object/*/*.cubin")}
        assert len(names) > 16 or bits == "4"
    (full, manifest, images), (cut, short, others) = made
    assert len(full) == 100
    assert cut == full
    assert short == manifest
    assert others == images
