"""One link domain: kernels of one source call functions, and use variables, that another source of their module defines."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
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

CALLS = """\
__device__ float activate(float);
__device__ int even(int);
__device__ int odd(int x) { return x == 0 ? 0 : even(x - 1); }
struct Shape { __device__ virtual int area(int) const; };
extern "C" __global__ void direct(float* data) { data[0] = activate(data[1]); }
extern "C" __global__ __launch_bounds__(1024, 2) void bounded(float* data) { data[0] = activate(data[1]) + activate(data[2]); }
extern "C" __global__ void recursive(int* data) { data[0] = odd(data[1]); }
extern "C" __global__ void virtually(int* data) { Shape shape; data[0] = shape.area(data[1]); }
extern "C" __global__ void fine(int* data) { data[0] = 1; }
"""
DEFINES = """\
__device__ float scaled(float);
__device__ int odd(int);
extern "C" __device__ float __nv_sinf(float);
__device__ __noinline__ float activate(float x) { return scaled(x) + __nv_sinf(x); }
__device__ int even(int x) { return x == 0 ? 1 : odd(x - 1); }
struct Shape { __device__ virtual int area(int) const; };
__device__ int Shape::area(int x) const { return x * 7; }
extern "C" __global__ void own(float* data) { data[0] = activate(data[1]) * 2.0f; }
"""
SCALED = "__device__ float scaled(float x) { return x * 3.0f; }\n"


def errors(output: str) -> list[str]:
    return sorted(line for line in output.splitlines() if line.startswith("error: "))


def classes(project: Project, *args: str) -> dict[tuple[str, str], str]:
    """(Module, kernel) → how its machine code relates to that of all sources in one module."""
    result = project.command("compare", "build/net.json", "--json", *args)
    return {(each["module"], each["kernel"]): each["kind"] for each in json.loads(result.stdout)["kernels"]}


def calls(project: Project, sources: str = '["calls.cu", "defines.cu", "scaled.cu"]') -> None:
    project.write("SConstruct", CUDA + FORMS.format(sources))
    project.write("calls.cu", CALLS)
    project.write("defines.cu", DEFINES)
    project.write("scaled.cu", SCALED)


def test_s12_functions_of_other_sources_are_compiled_into_their_callers(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    calls(project)
    project.build("-j2")
    kernels = ["bounded", "direct", "fine", "own", "recursive", "virtually"]
    assert project.kernels("image") == kernels
    # Nothing is left for the linker to find: what a kernel calls was optimised with it.
    functions = [name for name, kind, entry in project.symbols("image") if kind == "STT_FUNC" and not entry]
    assert not set(functions) & {"_Z6scaledf", "_ZNK5Shape4areaEi"}, functions
    for data in bundle.read_bundle(project.bytes("build/net/bundle.gpubundle")).objects.values():
        assert not elf.read(data).undefined
    assert toolchain.ptxas is not None
    text = project.path("build/net/text/compute_90.ptx")
    subprocess.run([toolchain.ptxas.path, "-arch=sm_90", str(text), "-o", str(tmp_path / "x.cubin")], check=True, capture_output=True)
    found = classes(project)
    assert {kind for (module, _), kind in found.items() if module in ("bundle", "whole")} == {"identical"}
    assert "different" not in found.values(), found
    project.idle()


def test_m7_the_order_of_sources_changes_no_byte(project: Project) -> None:
    calls(project)
    project.build("-j2")
    first = {name: data for name, data in project.files("build/net/**/*").items() if name.endswith((".cubin", ".ptx", ".gpubundle"))}
    shutil.rmtree(project.path("build"))
    shutil.rmtree(project.path(".gpu-store"))
    calls(project, '["scaled.cu", "calls.cu", "defines.cu"]')
    project.build("-j1")
    assert {name: project.bytes(name) for name in first} == first
    assert len(first) == 5


def test_r1_an_edit_of_a_called_function_concerns_those_who_call_it_alone(project: Project) -> None:
    calls(project)
    project.build("-j2")
    project.edit("scaled.cu", "3.0f", "5.0f")
    project.build("-j2")
    assert set(project.compiled()) == {"bounded", "direct", "own"}
    project.write("scaled.cu", SCALED.replace("3.0f", "5.0f") + "__device__ float nobody(float x) { return x; }\n")
    project.build("-j2")
    assert project.compiled() == []
    project.edit("calls.cu", "x == 0 ? 0", "x == 0 ? 2")  # called back by the other source
    project.build("-j2")
    assert set(project.compiled()) == {"recursive"}
    project.edit("calls.cu", "data[0] = 1", "data[0] = 2")
    project.build("-j2")
    assert set(project.compiled()) == {"fine"}
    project.edit("scaled.cu", "5.0f", "3.0f")
    project.build("-j2")
    assert project.compiled() == []  # made before


STATE_USER = """\
__device__ int count(int);
extern __device__ int total;
extern __constant__ int weights[4];
typedef int (*Function)(int);
extern __device__ Function table[2];
extern "C" __global__ void first(int* data) { data[0] = count(1) + weights[data[1] & 3]; }
extern "C" __global__ void second(int* data) { data[0] = count(2) + total++; }
extern "C" __global__ void indirect(int* data) { data[2] = table[data[1] & 1](3); }
"""
STATE_OWNER = """\
static __device__ int seen;
__device__ int total;
__constant__ int weights[4];
__device__ int far(int);
__device__ int near(int x) { return x + 1; }
typedef int (*Function)(int);
__device__ Function table[2] = {near, far};
extern __device__ int elsewhere;
__device__ int* pointer = &elsewhere;
__device__ int count(int x) { static __device__ int calls; calls += x; return seen++ + calls; }
extern "C" __global__ void third(int* data) { data[0] = count(3) + seen + *pointer; }
"""
STATE_THIRD = """\
static __device__ int seen;
__device__ int elsewhere = 5;
__device__ int far(int x) { return x * seen++; }
"""


def test_g1_g6_state_of_another_source_is_one_variable_in_every_form(project: Project, toolchain: Toolchain, tmp_path: Path) -> None:
    project.write(
        "SConstruct",
        CUDA
        + """
sources = ["user.cu", "owner.cu", "third.cu"]
image = env.GpuModule("image", sources, GPU_LINK="image")
whole = env.GpuModule("whole", sources, GPU_LINK="whole")
text = env.GpuModule("text", sources, GPU_ARCHS="compute_90")
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[image, whole, text]))
""",
    )
    project.write("user.cu", STATE_USER)
    project.write("owner.cu", STATE_OWNER)
    project.write("third.cu", STATE_THIRD)
    project.build("-j2")
    image = project.variables("image")
    private = [re.sub(r"\$[0-9a-f]{16}", "", name) for name in image if "$" in name]
    assert private == ["_ZL4seen", "_ZL4seen$2", "_ZZ5countiE5calls"]
    assert [name for name in image if "$" not in name] == ["elsewhere", "pointer", "table", "total", "weights"]
    assert [re.sub(r"__[0-9a-f]{16}$", "", name) for name in project.variables("whole")] == image
    assert toolchain.ptxas is not None
    output, text = tmp_path / "driver.cubin", project.path("build/net/text/compute_90.ptx")
    subprocess.run([toolchain.ptxas.path, "-arch=sm_90", str(text), "-o", str(output)], check=True, capture_output=True)
    assert sorted(symbol.name for symbol in elf.read(output.read_bytes()).variables) == image
    counted = {
        kernel: next(part for part in project.plan("image")["parts"] if part["role"] == "unit" and kernel in str(part["kernels"]))
        for kernel in ("first", "second")
    }
    assert {"_ZZ5countiE5calls", "weights"} == {name.partition("$")[0] for name in counted["first"]["uses"]} - {"_ZL4seen"}
    # The same that relocatable assembly makes of all sources in one. (`indirect` reaches a variable whose name both sources have.)
    report = json.loads(project.command("compare", "build/net.json", "--json").stdout)["kernels"]
    causes = {each["kernel"]: each["cause"] for each in report if each["module"] == "image" and each["kernel"] != "indirect"}
    assert sorted(causes) == ["first", "second", "third"]
    assert all("relocatable assembly alone makes the same code" in cause for cause in causes.values()), causes


def test_s12_what_cannot_be_is_refused_by_name(project: Project) -> None:
    project.write(
        "SConstruct",
        CUDA
        + """
types = env.GpuModule("types", ["uses.cu", "other.cu"])
memory = env.GpuModule("memory", ["uses.cu", "counts.cu"], GPU_LINK="bundle")
nobody = env.GpuModule("nobody", ["uses.cu", "fine.cu"])
twice = env.GpuModule("twice", ["one.cu", "two.cu"])
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[types, memory, nobody, twice]))
""",
    )
    project.write("uses.cu", '__device__ int made(int);\nextern "C" __global__ void uses(int* data) { data[0] = made(data[1]); }\n')
    project.write("other.cu", "__device__ float made(int x) { return x; }\n")
    project.write("counts.cu", "__device__ int counter;\n__device__ int made(int x) { return counter += x; }\n")
    project.write("fine.cu", 'extern "C" __global__ void fine(int* data) { data[0] = 1; }\n')
    project.write("one.cu", "__device__ int made(int x) { return 1; }\n")
    project.write("two.cu", '__device__ int made(int x) { return 1; }\nextern "C" __global__ void k(int* data) { data[0] = made(0); }\n')
    result = project.fail("-k", "-j2")
    assert errors(result.output) == [
        "error: kernel uses of memory/uses.cu (sm_90): uses uses made(int) of counts.cu, and that uses counter",
        "error: kernel uses of nobody/uses.cu (sm_90): uses uses made(int), which nobody defines",
        "error: kernel uses of types/uses.cu (sm_90): uses uses made(int), which uses.cu declares otherwise than other.cu defines it",
        "error: module twice (sm_90): function made(int) is defined in one.cu and in two.cu",
    ], result.output
    assert "    uses.cu: i32 (i32)\n    other.cu: float (i32)\n" in result.output
    assert project.compiled() == ["fine"]


@pytest.mark.parametrize("weak", ["weak.cu", "weak.ll"])
def test_s12_a_strong_function_replaces_a_weak_one_of_another_source(project: Project, weak: str) -> None:
    calls_policy = 'extern "C" __global__ void NAME(int* data) { data[0] = policy(); }\n'
    project.write(
        "SConstruct",
        CUDA + FORMS.format(f'["{weak}", "strong.cu"]') + f'env.GpuProgram("build/alone", env.GpuModule("alone", ["{weak}"]))\n',
    )
    project.write("weak.cu", "__device__ __attribute__((weak)) int policy() { return 111; }\n" + calls_policy.replace("NAME", "asks"))
    project.write(
        "weak.ll",
        LL_HEAD
        + "define weak i32 @_Z6policyv() {\n  ret i32 111\n}\n"
        + "define ptx_kernel void @asks(ptr %p) {\n  %v = call i32 @_Z6policyv()\n  store i32 %v, ptr %p\n  ret void\n}\n",
    )
    project.write("strong.cu", "__device__ int policy() { return 222; }\n" + calls_policy.replace("NAME", "knows"))
    project.build("-j2")
    text = project.read("build/net/text/compute_90.ptx")
    assert re.findall(r"(\d{3});", text) == ["222", "222"], text
    assert set(classes(project).values()) == {"identical"}, classes(project)
    alone = project.plan("alone", stem="build/alone")["parts"][0]
    assert not alone["joins"]
    project.edit("strong.cu", "222", "333")
    project.build("-j2")
    assert set(project.compiled()) == {"asks", "knows"}


def test_m11_a_candidate_calls_a_function_of_another_source(project: Project) -> None:
    candidates = '{"tuned": {"source": "tuned.cu", "values": [{"TIMES": 2}, {"TIMES": 4}, {"TIMES": 9}]}}'
    module = f'net = env.GpuModule("net", ["tuned.cu", "helps.cu"], candidates={candidates})'
    project.write("SConstruct", f'{CUDA}{module}\nenv.GpuProgram("build/net", net)\n')
    project.write(
        "tuned.cu",
        "__device__ int help(int);\n#if TIMES != 9\n__device__ int back(int x) { return x + TIMES; }\n#endif\n"
        'extern "C" __global__ void tuned(int* data) { for (int i = 0; i < TIMES; ++i) data[i] = help(data[i]); }\n'
        'extern "C" __global__ void fine(int* data) { data[0] = 1; }\n',
    )
    project.write("helps.cu", "__device__ int back(int);\n__device__ int help(int x) { return back(x) * 3; }\n")
    project.edit("tuned.cu", "__device__ int help(int);\n", "#ifndef TIMES\n#define TIMES 1\n#endif\n__device__ int help(int);\n")
    said = project.build("-j2")
    kernel: dict[str, Any] = project.manifest()["modules"]["net"]["kernels"]["tuned"]["archs"]["sm_90"]
    assert kernel["chosen"]["failed"] == 1, said.output  # with TIMES=9 there is nothing to call back
    assert "nobody defines" in said.output
    assert len(kernel["origin"]["ir"]) == 2
    result = project.command("compare", "build/net.json")
    assert result.returncode == 0, result.output


@pytest.mark.parametrize("option", ["GPU_LINEINFO=1", "GPU_DEBUG=1", "GPU_FTZ=1", "GPU_FAST_MATH=1", "GPU_OPT=1", "GPU_SHARE_TWINS=1"])
def test_d2_every_option_goes_for_what_joins_too(project: Project, option: str) -> None:
    calls(project)
    project.build("-j2", option)
    if option.startswith(("GPU_FTZ", "GPU_FAST", "GPU_OPT")):
        assert {kind for (module, _), kind in classes(project).items() if module == "bundle"} == {"identical"}
    if option == "GPU_LINEINFO=1":
        unit = next(part for part in project.plan("image")["parts"] if "direct" in str(part["kernels"]))
        text = project.read(f".gpu-store/ptx/{unit['digest'][:2]}/{unit['digest']}.ptx")
        assert all(f'/{name}"' in text or f'"{name}"' in text for name in ("calls.cu", "defines.cu")), text


def test_t1_a_slice_that_the_store_lost_is_made_again_whichever_source_it_is_of(project: Project) -> None:
    calls(project)
    project.build("-j2")
    before = project.bytes("build/net/image/sm_90.cubin")
    for kind in ("slice", "ptx", "object"):
        shutil.rmtree(project.path(f".gpu-store/{kind}"))
    project.path("build/net/image/sm_90.cubin").unlink()
    project.build("-j2")
    assert project.bytes("build/net/image/sm_90.cubin") == before
    # gc knows them.
    assert project.command("gc", "--older-than", "0").returncode == 0
    slices = {name for part in project.plan("image")["parts"] for joined in part["joins"] for name in joined["slices"]}
    assert slices
    assert all(
        project.exists(f".gpu-store/slice/{name[:2]}/{name}") or list(project.root.glob(f".gpu-store/slice/*/{name}*")) for name in slices
    )


def test_the_command_that_a_build_shows_does_the_same_by_hand(project: Project) -> None:
    calls(project)
    said = project.build("GPU_LOWERCOMSTR=")
    shown = [shlex.split(line) for line in said.lines if " lower " in line and "--join" in line]
    assert shown
    command = shown[0][next(index for index, word in enumerate(shown[0]) if word == "scons-gpu") + 1 :]
    made = project.path(command[command.index("-o") + 1])
    before = made.read_bytes()
    made.unlink()
    result = project.command(*command)
    assert result.returncode == 0, result.output
    assert made.read_bytes() == before
