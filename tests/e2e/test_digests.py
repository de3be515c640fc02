"""D: equal and unequal. What is one object, what never is, and which edits a kernel does not notice."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from elftools.elf.elffile import ELFFile
from project import CUDA, Project, ll

from scons_gpu.link import bundle

if TYPE_CHECKING:
    from scons_gpu.toolchain.tools import Toolchain

NET = 'env.GpuProgram("build/net", env.GpuModule("net", ["net.cu"]))\n'


def code(data: bytes, tmp: Path) -> dict[str, bytes]:
    """Kernel → its machine code."""
    tmp.write_bytes(data)
    with tmp.open("rb") as file:
        return {
            section.name.removeprefix(".text."): section.data()
            for section in ELFFile(file).iter_sections()
            if section.name.startswith(".text.")
        }


def bundled(project: Project, module: str, stem: str = "build/net") -> dict[str, tuple[str, str, bytes]]:
    """Kernel → its object's name, its entry there, its machine code."""
    objects = bundle.read_bundle(project.bytes(f"{stem}/{module}.gpubundle")).objects
    found = {}
    for symbol, kernel in project.manifest(stem)["modules"][module]["kernels"].items():
        for arch, made in kernel["archs"].items():
            text = code(objects[f"{arch}/{made['object']}.cubin"], project.path("object"))
            found[symbol if arch == "sm_90" else f"{symbol} {arch}"] = (made["object"], made["entry"], text[made["entry"]])
    return found


def digests(project: Project, module: str, arch: str = "sm_90") -> dict[str, str]:
    """Kernel → the digest of its unit."""
    parts = project.plan(module, arch)["parts"]
    return {kernel["symbol"]: part["digest"] for part in parts for kernel in part["kernels"]}


TWINS = """\
#include <cstdio>
__device__ __noinline__ float helper(float v) { return v * v + 1.0f; }
__constant__ float table[4] = {1.0f, 2.0f, 3.0f, 4.0f};
template <class T> __global__ void __launch_bounds__(128) fill(T* data, int n) {
  __shared__ float buffer[128];
  buffer[threadIdx.x] = (float)(int)data[threadIdx.x];
  __syncthreads();
  if (n < 0) printf("fill %d\\n", n);
  data[threadIdx.x] = (T)(int)helper(buffer[127 - threadIdx.x]);
}
template __global__ void fill<int>(int*, int);
template __global__ void fill<unsigned>(unsigned*, int);
static __global__ void one(float* data) { data[0] = helper(data[1]); }
static __global__ void another(float* data) { data[0] = helper(data[1]); }
__global__ void two(float* data) { one<<<1, 1>>>(data); }
__global__ void different(float* data) { data[0] = helper(data[2]); }
"""


def test_d1_twins_share_one_object_of_a_bundle_where_asked(project: Project) -> None:
    project.write(
        "SConstruct",
        """
apart = env.GpuModule("apart", ["net.cu"])
shared = env.GpuModule("shared", ["net.cu"], GPU_SHARE_TWINS=1)
again = env.GpuModule("again", ["again.cu"], GPU_SHARE_TWINS=1)
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[apart, shared, again]))
""".replace('"])', '"], GPU_LINK="bundle")').replace("GPU_SHARE", 'GPU_LINK="bundle", GPU_SHARE'),
    )
    text = TWINS.replace("one<<<1, 1>>>(data)", "data[3] = 4.0f")
    text = text.replace("static __global__", 'extern "C" __global__')
    project.write("net.cu", text)
    project.write("again.cu", 'extern "C" __global__ void renamed(float* data) { data[3] = 4.0f; }\n')
    project.build("-j2")

    apart, shared, again = (bundled(project, name) for name in ("apart", "shared", "again"))
    assert len({name for name, _, _ in apart.values()}) == len(apart) == 6
    assert {entry for _, entry, _ in apart.values()} == set(apart)
    assert {entry for _, entry, _ in shared.values()} == {"__kernel"}
    sharing: dict[str, set[str]] = {}
    for symbol, (name, _, _) in shared.items():
        sharing.setdefault(name, set()).add(symbol)
    assert sorted(sorted(names) for names in sharing.values()) == [
        ["_Z3twoPf"],
        ["_Z4fillIiEvPT_i", "_Z4fillIjEvPT_i"],
        ["_Z9differentPf"],
        ["another", "one"],
    ]
    # An object is what it would be under its own name; also one that another module's kernel shares.
    assert {symbol: text for symbol, (_, _, text) in shared.items()} == {symbol: text for symbol, (_, _, text) in apart.items()}
    assert again["renamed"][0] == shared["_Z3twoPf"][0]
    kernels = project.manifest()["modules"]["shared"]["kernels"]
    for symbol, kernel in project.manifest()["modules"]["apart"]["kernels"].items():
        ours, theirs = ({**it["archs"]["sm_90"], "object": "", "entry": "", "sha256": ""} for it in (kernel, kernels[symbol]))
        assert ours == theirs
    assert project.stats()["twins"] == 6
    assert project.done()["assemble"] == 6 + 4
    project.idle()


KERNEL = """\
#ifndef BOUND
#define BOUND 128
#endif
extern "C" __global__ void __launch_bounds__(BOUND) k(float* data) { data[threadIdx.x] = sqrtf(data[threadIdx.x + 1]) / data[0]; }
"""


def test_d2_what_is_made_differently_is_never_merged(project: Project, toolchain: Toolchain) -> None:
    variants = {
        "base": "",
        "bounds": "CPPDEFINES={'BOUND': 256}",
        "arch": "GPU_ARCHS='sm_90a'",
        "opt": "GPU_OPT=1",
        "debug": "GPU_DEBUG=1",
        "lineinfo": "GPU_LINEINFO=1",
        "ftz": "GPU_FTZ=1",
        "registers": "GPU_MAXRREGCOUNT=32",
        "flags": "GPU_PTXASFLAGS='--warn-on-spills'",
        "assembler": "GPU_CUDA_PATH='toolkit'",
    }
    modules = "\n".join(f"    env.GpuModule({name!r}, ['net.cu'], {override})," for name, override in variants.items())
    project.write(
        "SConstruct",
        CUDA
        + f"""
env.Replace(GPU_LINK="bundle", GPU_SHARE_TWINS=1)
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[
{modules}
]))
""",
    )
    project.write("net.cu", KERNEL)
    assert toolchain.ptxas is not None
    # Another assembler: it says the same version of itself, and is another file.
    folder = Path(toolchain.ptxas.path).resolve().parent
    for tool in folder.iterdir():
        project.path("toolkit/bin").mkdir(parents=True, exist_ok=True)
        if tool.name == "ptxas":
            shutil.copy(tool, project.path("toolkit/bin/ptxas"))
            with project.path("toolkit/bin/ptxas").open("ab") as file:
                file.write(b"\0")
        else:
            project.path(f"toolkit/bin/{tool.name}").symlink_to(tool)
    project.path("toolkit/nvvm").symlink_to(folder.parent / "nvvm")
    project.build("-j2")

    made = {name: bundled(project, name) for name in variants}
    names = {name: next(iter(kernels.values()))[0] for name, kernels in made.items()}
    assert len(set(names.values())) == len(variants), names
    units = {name: next(iter(digests(project, name, "sm_90a" if name == "arch" else "sm_90").values())) for name in variants}
    assert len(set(units.values())) == len(variants) - 3, "register limit, flags and assembler shape the object alone"
    assert units["base"] == units["registers"] == units["flags"] == units["assembler"]


def test_d3_options_that_read_alike_are_kept_apart(project: Project) -> None:
    project.write(
        "SConstruct",
        CUDA
        + """
env.GpuProgram("build/net", env.GpuModule("net", [
    env.GpuSource("net.cu", CPPDEFINES={"NAME": "one", "VALUE": "1"}),
    env.GpuSource("net.cu", CPPDEFINES={"NAME": "two", "VALUE": "1 -DOTHER=2"}),
    env.GpuSource("net.cu", CPPDEFINES={"NAME": "three", "VALUE": "1", "OTHER": "2"}),
]))
""",
    )
    project.write(
        "net.cu",
        "#ifndef OTHER\n#define OTHER 1\n#endif\n#define TEXT(x) #x\n#define AS_TEXT(x) TEXT(x)\n"
        'extern "C" __global__ void NAME(int* data) { data[0] = OTHER; data[1] = AS_TEXT(VALUE)[data[2]]; }\n',
    )
    project.build()
    assert project.compiled() == ["one", "three", "two"]
    assert len(set(digests(project, "net").values())) == 3


UNNOTICED = """\
// a first comment
#include "shapes.h"
struct Pair { int a, b; };
__device__ float halve(float v) { return v * 0.5f; }
__device__ int lane() {
  int id;
  // a comment above inline assembly
  asm("mov.u32 %0, %%laneid;" : "=r"(id));
  return id;
}
__global__ void uses_asm(int* data) { data[threadIdx.x] = lane(); }
__global__ void uses_pair(Pair* data) { data[threadIdx.x].a = data[threadIdx.x].b; }
__global__ void halves(float* data) { data[threadIdx.x] = halve(data[threadIdx.x]); }
__global__ void uses_float2(float2* data) { data[threadIdx.x].x = 1.0f; }
"""


def test_d4_a_kernel_does_not_notice_what_does_not_concern_it(project: Project) -> None:
    project.write("SConstruct", 'env["CPPPATH"] = ["include"]\n' + NET)
    project.write("net.cu", UNNOTICED)
    project.write("include/shapes.h", "struct Shape { int corners; };\n")
    project.build("-j2")
    before = digests(project, "net")
    assert len(project.compiled()) == 4

    # Comments, blank lines, further structs, another order, another function edited, one added, one removed.
    head, _, kernels = UNNOTICED.partition("__global__")
    moved = "".join(f"__global__{kernel}" for kernel in reversed(kernels.split("__global__")))
    moved = moved.replace("__global__ void uses_float2(float2* data) { data[threadIdx.x].x = 1.0f; }\n", "")
    text = head.replace("// a first comment", "// another\n\n\n// two").replace(
        "// a comment above", "// a much longer comment\n\n  // above"
    )
    project.write("net.cu", text.replace("0.5f", "0.25f") + moved + "__global__ void added(float4* data) { data->w = 2.0f; }\n")
    project.write("include/shapes.h", "struct Shape { int corners; };\nstruct More { float2 at; Shape of; };\n")
    project.build("-j1")
    assert project.compiled() == ["added(float4*)", "halves(float*)"]
    after = digests(project, "net")
    assert {name for name in before if before[name] == after.get(name)} == {"_Z8uses_asmPi", "_Z9uses_pairP4Pair"}

    # Another file in another folder, in a checkout elsewhere.
    project.path("some folder").mkdir()
    project.path("net.cu").rename(project.path("some folder/other.cu"))
    project.edit("SConstruct", '"net.cu"', '"some folder/other.cu"')
    moved_project = Project(project.root.with_name("elsewhere, with a longer path"))
    shutil.copytree(project.root, moved_project.root, ignore=shutil.ignore_patterns("build", ".sconsign*"), dirs_exist_ok=True)
    moved_project.build("-j2")
    assert moved_project.compiled() == []
    assert digests(moved_project, "net") == after


EDITS = """\
#include "outer.h"
struct Pair { int a, b; };
__constant__ int table[3] = {1, 2, 3};
__device__ __forceinline__ float helper(float v) { return v * 0.5f; }
__global__ void uses_helper(float* data) { *data = helper(*data); }
__global__ void uses_table(int* data) { *data = table[*data]; }
__global__ void uses_pair(Pair* data) { data->b = 1; }
__global__ void uses_define(int* data) { *data = DEFINE; }
__global__ void uses_header(int* data) { *data = HEADER; }
static __device__ const int numbers[100] = {7};
__global__ void uses_numbers(int* data) { *data = numbers[*data]; }
"""


def test_d5_an_edit_concerns_exactly_the_kernels_that_it_reaches(project: Project) -> None:
    project.write("SConstruct", CUDA + 'env["CPPDEFINES"] = {"DEFINE": "1"}\nenv["CPPPATH"] = ["."]\n' + NET)
    project.write("net.cu", EDITS)
    project.write("outer.h", '#include "inner.h"\n')
    project.write("inner.h", "#define HEADER 5\n")
    project.build("-j2")
    assert len(project.compiled()) == 6
    for file, old, new, concerned in (
        ("net.cu", "v * 0.5f", "v * 0.25f", ["uses_helper(float*)"]),
        ("net.cu", "{7}", "{7, 8}", ["uses_numbers(int*)"]),
        ("net.cu", "int a, b;", "int a, c, b;", ["uses_pair(Pair*)"]),
        ("SConstruct", '"1"', '"2"', ["uses_define(int*)"]),
        ("inner.h", "5", "6", ["uses_header(int*)"]),
        # The host may set it, so kernels read it at run time: the state is made anew, and no kernel.
        ("net.cu", "{1, 2, 3}", "{1, 2, 4}", []),
        ("net.cu", "int table[3] = {1, 2, 4}", "long long table[3] = {1, 2, 4}", ["uses_table(int*)"]),
    ):
        project.edit(file, old, new)
        project.build()
        assert project.compiled() == concerned, new
        assert project.done()["link"] == 1
    project.idle()


HEADER = "__device__ int shared_by_name;\nstatic __device__ int own;\n"
FIRST = (
    '#include "state.h"\nextern "C" __global__ void first(int* data) { data[0] = atomicAdd(&shared_by_name, 1) + atomicAdd(&own, 1); }\n'
)


def test_d6_a_header_variable_of_two_sources(project: Project) -> None:
    project.write(
        "SConstruct",
        CUDA
        + """
left = env.GpuModule("left", ["first.cu"])
right = env.GpuModule("right", ["second.cu"])
apart = env.GpuModule("apart", ["first.cu", "second.cu"], GPU_LINK="bundle")
private = env.GpuModule("private", ["first.cu", "second.cu"], CPPDEFINES={"shared_by_name": "own"})
text = env.GpuModule("text", ["first.cu", "second.cu"], CPPDEFINES={"shared_by_name": "own"}, GPU_ARCHS="compute_90")
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[left, right, apart, private, text]))
env.GpuProgram("build/one", env.GpuModule("one", ["first.cu", "second.cu"]))
env["CPPPATH"] = ["."]
""",
    )
    project.write("state.h", "#ifndef shared_by_name\n__device__ int shared_by_name;\n#endif\nstatic __device__ int own;\n")
    project.write("first.cu", FIRST)
    project.write("second.cu", FIRST.replace("first", "second"))
    result = project.fail("-k", "-j2")

    errors = [line for line in result.output.splitlines() if line.startswith("error: ")]
    assert errors == ["error: module one (sm_90): variable shared_by_name is defined in first.cu and in second.cu"], result.output
    assert "make it static, or put the sources into two modules" in result.output
    assert not project.path("build/one").exists() or not list(project.root.glob("build/one/**/*.plan.json"))
    # Two modules, or a bundle: each has its own.
    for module in ("left", "right"):
        own, shared = project.variables(module)
        assert (re.fullmatch(r"_ZL3own\$[0-9a-f]{16}", own) is not None, shared) == (True, "shared_by_name")
    objects = bundle.read_bundle(project.bytes("build/net/apart.gpubundle")).objects
    assert len(objects) == 2
    # A private one is two variables in one image too.
    one, other = project.variables("private")
    assert one != other
    assert (one.partition("$")[0], other.partition("$")[0]) == ("_ZL3own", "_ZL3own")
    ptx = project.read("build/net/text/compute_90.ptx")
    assert sorted(set(re.findall(r"_ZL3own[\w$]+", ptx))) == [one, other]


def collide(project: Project, module: str) -> dict[str, Any]:
    """All that a user can tell of a module, but for names made of digests."""
    found: dict[str, Any] = {}
    for symbol, kernel in project.manifest()["modules"][module]["kernels"].items():
        found[symbol] = {arch: {**made, "unit": "", "object": ""} for arch, made in kernel["archs"].items()}
    return found


@pytest.mark.parametrize("bits", ["0", "2"])
def test_d7_units_whose_digests_collide_are_both_right(project: Project, bits: str) -> None:
    project.write(
        "SConstruct",
        """
image = env.GpuModule("image", ["net.ll"])
apart = env.GpuModule("apart", ["net.ll"], GPU_LINK="bundle")
twins = env.GpuModule("twins", ["net.ll"], GPU_LINK="bundle", GPU_SHARE_TWINS=1)
text = env.GpuModule("text", ["net.ll"], GPU_ARCHS="compute_90")
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[image, apart, twins, text]))
""",
    )
    state = (
        "@memo = internal addrspace(1) global i32 0\n@other = internal addrspace(1) global i32 1\n"
        + "".join(
            f"@{name} = internal addrspace(1) constant [100 x i32] [{', '.join([f'i32 {fill}'] * 100)}]\n"
            for name, fill in (("ones", 1), ("twos", 2))
        )
        + "".join(
            f"define ptx_kernel void @uses_{name}(ptr addrspace(1) %data, i32 %at) {{\n"
            f"  %place = getelementptr [100 x i32], ptr addrspace(1) @{table}, i32 0, i32 %at\n"
            f"  %from = load i32, ptr addrspace(1) %place\n"
            f"  %old = atomicrmw add ptr addrspace(1) @{name}, i32 %from monotonic\n"
            "  store i32 %old, ptr addrspace(1) %data\n  ret void\n}\n"
            for name, table in (("memo", "ones"), ("other", "twos"))
        )
    )
    project.write("net.ll", ll("one=1.0", "two=2.0", "three=3.0", "four=4.0", "twin=4.0", head=state))
    cut = Project(project.root.with_name("cut"), environ={**project.environ, "SCONS_GPU_TEST_HASH_BITS": bits})
    for name, data in project.files().items():
        cut.write(name, data.decode())
    for each in (project, cut):
        each.build("-j2")

    assert len(set(digests(cut, "image").values())) == len(digests(project, "image")) == 7
    assert {name[:32] for name in digests(cut, "image").values()} <= {f"{number:032x}" for number in range(1 << int(bits))}
    for module in ("image", "apart", "twins", "text"):
        assert collide(cut, module) == collide(project, module)
    strip = re.compile(r"\$[0-9a-f]{16}(\$\d+)?")
    ours, theirs = (code(each.image("image").read_bytes(), project.path("object")) for each in (cut, project))
    assert ours == theirs
    for module in ("apart", "twins"):
        ours, theirs = ({symbol: text for symbol, (_, _, text) in bundled(each, module).items()} for each in (cut, project))
        assert ours == theirs
    sharing = {name for name, _, _ in bundled(cut, "twins").values()}
    assert len(sharing) == len({name for name, _, _ in bundled(project, "twins").values()})
    assert len(strip.sub("", cut.read("build/net/text/compute_90.ptx"))) == len(
        strip.sub("", project.read("build/net/text/compute_90.ptx"))
    )
    cut.idle()
    # One more of a digest that is taken, in a later build.
    for each in (project, cut):
        each.edit("net.ll", "fadd float %old, 3.0", "fadd float %old, 5.0")
        each.build()
    assert code(cut.image("image").read_bytes(), cut.path("object")) == code(project.image("image").read_bytes(), project.path("object"))
    cut.idle()
