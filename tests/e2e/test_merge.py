"""GPU_LINK=merge: a module's units are assembled one by one, and its image is nevertheless that of one assembly."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from project import CUDA, Project, ll

from scons_gpu.inspect.cubin import Cubin
from scons_gpu.link import elf
from scons_gpu.store import record as records
from scons_gpu.store import sealed
from scons_gpu.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from toolkits import Toolkit

NET = 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n'
MIXED = """\
#define GLOBAL extern "C" __global__ void
extern "C" __device__ int vprintf(const char*, void*);
extern __shared__ int dynamic[];
__constant__ float coefficients[4];
__device__ int counter;
static __device__ int seen[8];
static __device__ const int squares[512] = {0, 1, 4, 9, 16, 25, 36};
__device__ __noinline__ int minus(int v) { return v - 7; }
static __device__ __noinline__ int helper(int n) { return n < 2 ? n : helper(n - 1) + helper(n - 2); }
GLOBAL states(float* data) { data[0] = coefficients[seen[atomicAdd(&counter, 1) & 7]++ & 3]; }
GLOBAL table(int* data) { data[1] = squares[data[0] & 511] + minus(data[2]); }
GLOBAL prints(int* data) { int value = data[0]; vprintf("%d\\n", &value); }
GLOBAL divides(float* data, long long* more) { data[0] /= data[1]; more[0] /= more[1]; }
GLOBAL shares(int* data) { dynamic[threadIdx.x] = data[0]; __syncthreads(); data[1] = dynamic[data[2]]; }
GLOBAL __launch_bounds__(128, 4) bound(float* data) { data[threadIdx.x] = sqrtf(data[0]); }
GLOBAL keeps(int* data) { __shared__ int kept[65]; kept[threadIdx.x] = data[0]; __syncthreads(); data[1] = kept[data[2]]; }
"""
FIGURES = ("registers", "stack_bytes", "shared_bytes", "constant_bytes", "spill_bytes")
TOGETHER = {"states", "table", "prints"}
LAST = """\
#define GLOBAL extern "C" __global__ void
extern "C" __device__ void* malloc(unsigned long);
static __device__ const int squares[512] = {0, 1, 4, 9, 16, 25, 36};
__device__ int counter;
GLOBAL allocates(void** data, int* more) { data[0] = malloc(8); more[0] = squares[more[1] & 511] + atomicAdd(&counter, 1); }
GLOBAL plain(float* data) { data[0] += data[1]; }
"""
"""The module's last kernel shares nothing, and behind it stands a table: what it calls decides where addresses lie all the same."""
THROUGH = """\
#define GLOBAL extern "C" __global__ void
typedef int (*Function)(int);
__device__ __noinline__ int plus(int v) { return v + 3; }
__device__ __noinline__ int minus(int v) { return v - 7; }
__device__ Function functions[2] = {plus, minus};
GLOBAL calls(int* data, int which) { data[0] = functions[which](data[1]); }
GLOBAL divides(float* data) { data[0] /= data[1]; }
GLOBAL adds(float* data) { data[0] += data[1]; }
"""
"""The assembler orders kernels in a way of its own where one calls through memory."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One module in two modes."""
    project = Project(tmp_path_factory.mktemp("merge") / "project")
    modules = "".join(
        f'through = env.GpuModule("through", ["through.cu"], GPU_ARCHS="sm_80 sm_90", GPU_LINK="{mode}")\n'
        f'last = env.GpuModule("last", ["last.cu"], GPU_ARCHS="sm_80 sm_90", GPU_LINK="{mode}")\n'
        f'net = env.GpuModule("net", ["net.cu"], submodules=[through, last], GPU_ARCHS="sm_80 sm_90", GPU_LINK="{mode}")\n'
        f'env.GpuProgram("build/{mode}", net)\n'
        for mode in ("merge", "whole", "auto")
    )
    project.write("SConstruct", CUDA + modules)
    project.write("net.cu", MIXED)
    project.write("through.cu", THROUGH)
    project.write("last.cu", LAST)
    project.build("-j2")
    return project


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_image_is_that_of_one_piece(built: Project, arch: str) -> None:
    """State, tables, printf, dynamic shared memory, own functions: all of the file, not the code alone."""
    for module in ("net", "last"):
        merged, whole, auto = (built.bytes(f"build/{mode}/{module}/{arch}.cubin") for mode in ("merge", "whole", "auto"))
        assert merged == auto == whole, module
    merged, whole = (Cubin(built.bytes(f"build/{mode}/through/{arch}.cubin")) for mode in ("merge", "whole"))
    assert merged.kernels == whole.kernels == ("adds", "calls", "divides")
    for name in merged.kernels:
        assert (merged.text(name), merged.contract(name)) == (whole.text(name), whole.contract(name))
        assert merged.resources(name) == whole.resources(name)


def test_the_manifest_says_what_was_assembled_together(built: Project) -> None:
    for mode in ("merge", "auto"):
        module = json.loads(built.read(f"build/{mode}.json"))["modules"]["net"]
        assert module["options"]["link"] == "merge"
        assert {name for name, kernel in module["kernels"].items() if kernel["archs"]["sm_90"]["object"] is None} == TOGETHER
        figures = [kernel["archs"]["sm_90"] for kernel in module["kernels"].values()]
        assert all(each["registers"] > 0 and each["spill_bytes"] == 0 for each in figures)
    classes = {
        each["kernel"]: each["kind"]
        for each in json.loads(built.command("compare", "--json", "build/merge.json", "--arch", "sm_90").stdout)["kernels"]
    }
    assert set(classes.values()) <= {"identical", "constant placement", "private state made visible"}, classes
    assert {name for name, kind in classes.items() if kind == "identical"} >= set(classes) - TOGETHER


def test_the_command_links_the_same(built: Project, tmp_path: Path) -> None:
    built.command("link", "build/merge/net/sm_90.plan.json", "-o", str(tmp_path / "x.cubin"))
    assert (tmp_path / "x.cubin").read_bytes() == built.bytes("build/merge/net/sm_90.cubin")


def test_an_edit_is_one_unit_and_a_merge(project: Project, toolkit: Toolkit) -> None:
    head = f'env["GPU_CUDA_PATH"] = "{toolkit.root}"\nenv["GPU_LINK"] = "merge"\n'
    project.write("SConstruct", head + NET)
    project.write("net.ll", ll("one=1.0", "two=2.0", "three=3.0"))
    project.build("-j2")
    tried = toolkit.counts()["ptxas"] - 3  # this toolkit is proven once
    assert tried >= 14
    image = project.bytes("build/net/net/sm_90.cubin")
    project.write("net.ll", ll("one=1.0", "two=7.0", "three=3.0"))
    project.build("-j2")
    assert project.compiled() == ["two"]
    assert toolkit.counts() == {"ptxas": 1, "fatbinary": 1}
    assert project.bytes("build/net/net/sm_90.cubin") != image
    project.write("net.ll", ll("one=1.0", "two=2.0", "three=3.0"))
    project.build("-j2")
    assert toolkit.counts() == {"fatbinary": 1}, "the object of before is in the store"
    assert project.bytes("build/net/net/sm_90.cubin") == image
    project.idle()
    # A module whose kernels differ in names alone, with one object for all of them.
    project.write("net.ll", ll("one=1.0", "two=1.0"))
    project.build("-j2", "GPU_SHARE_TWINS=1")
    assert toolkit.counts() == {"ptxas": 1, "fatbinary": 1}
    shared = project.bytes("build/net/net/sm_90.cubin")
    project.build("-j2", "GPU_LINK=whole")
    assert shared == project.bytes("build/net/net/sm_90.cubin")
    kernels = project.manifest()["modules"]["net"]["kernels"]
    assert set(kernels) == {"one", "two"}
    assert [each.symbol for each in elf.read(shared).kernels] == ["one", "two"]


def test_a_link_checks_what_no_link_of_this_code_did(project: Project) -> None:
    """Also what another one put into the store, with a record that is right."""
    project.write("SConstruct", 'env["GPU_LINK"] = "merge"\n' + NET)
    project.write("net.ll", ll("one=1.0", "two=2.0"))
    project.build("-j2")
    side = project.path("build/net/net/sm_90.link.json")
    told = sealed.from_text(side.read_bytes())
    store = Store([project.path(".gpu-store")])
    objects = {name: entry for path in store.root.glob("object/*/*.cubin") if (entry := store.load(path)) for name in _kernels(entry.data)}
    assert told["learned"]["understood"] == sorted(entry.record.sha256 for entry in objects.values())
    one = objects["one"]
    more = one.data + b"more"
    store.discard(one.path)
    store.save(one.path, more, records.make(more, key=one.record.key, resources=one.record.resources))
    project.idle()
    project.write("net.ll", ll("one=1.0", "two=7.0"))
    assert "the object of one of net.ll is not laid out as merging knows it" in project.fail().stderr
    # A link that says it took these very bytes is believed, if it was this code's.
    learned = {**told["learned"], "understood": [hashlib.sha256(more).hexdigest()]}
    side.write_text(sealed.to_text({**_unsealed(told), "learned": {**learned, "by": "another"}}))
    assert "not laid out" in project.fail().stderr
    side.write_text(sealed.to_text({**_unsealed(told), "learned": learned}))
    project.build()
    assert project.kernels("net") == ["one", "two"]


def _kernels(data: bytes) -> list[str]:
    return [each.symbol for each in elf.read(data).kernels]


def _unsealed(told: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if name != "seal"}


ASSERTING = """\
extern "C" __device__ int vprintf(const char*, void*);
extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, unsigned long);
#define CHECK(test) if (!(test)) __assertfail(#test, "net.cu", 7, "kernel", 1)
#define GLOBAL extern "C" __global__ void
__device__ int counter;
GLOBAL k0(float* x, int n) { CHECK(n > 0); x[threadIdx.x] += 10.5f; }
GLOBAL k1(float* x, int n) { CHECK(n > 1); __shared__ float kept[32]; kept[threadIdx.x] = x[0]; __syncthreads(); x[1] = kept[n] / x[2]; }
GLOBAL k2(float* x, int n) { CHECK(n > 2); x[threadIdx.x] += 12.5f; if (n == 7) vprintf("seven", 0); }
GLOBAL k3(float* x, int n) { CHECK(n > 3); x[threadIdx.x] += 13.5f; atomicAdd(&counter, n); }
GLOBAL k4(float* x, int n) { CHECK(n > 4); x[threadIdx.x] += 14.5f; }
GLOBAL plain(float* x) { x[threadIdx.x] += 15.5f; }
"""


def test_an_edit_of_a_kernel_that_asserts_assembles_that_kernel(project: Project, toolkit: Toolkit) -> None:
    """All of them share the slots of the functions that they call, and the strings; who did not change is a stub."""
    seen = project.path("seen")
    seen.mkdir()
    toolkit.wrap("ptxas", toolkit.binaries / "ptxas", before=f"cat unit.ptx > {seen}/$$.ptx")
    module = 'env.GpuModule("{0}", ["net.cu"], GPU_LINK="{1}")'
    modules = f"[{module.format('net', 'auto')}, {module.format('whole', 'whole')}]"
    head = f'env["GPU_CUDA_PATH"] = "{toolkit.root}"\n{CUDA}'
    project.write("SConstruct", f'{head}env.GpuProgram("build/net", env.GpuModule("top", [], submodules={modules}))\n')
    project.write("net.cu", ASSERTING)

    def built(*edits: tuple[str, str], arguments: Sequence[str] = ("-j2",)) -> list[set[str]]:
        """The kernels whose code each assembly of several had, of the merged module alone."""
        for old, new in edits:
            project.edit("net.cu", old, new)
        for path in seen.iterdir():
            path.unlink()
        project.build(*arguments)
        assert project.bytes("build/net/net/sm_90.cubin") == project.bytes("build/net/whole/sm_90.cubin")
        texts = [path.read_text(encoding="utf-8") for path in seen.iterdir()]
        several = [text for text in texts if text.count(".entry") > 1]
        code = [
            {name for name, body in re.findall(r"\.entry (\w+)\((.*?)\n?\}\n", text, re.DOTALL) if "$__past" not in body}
            for text in several
        ]
        return sorted((each for each in code if "plain" not in each), key=len)

    five = {f"k{number}" for number in range(5)}
    first = "__scons_gpu_first"  # in the place of `plain`, which is the module's last
    assert built()[-1] == {*five, first}
    assert built(("12.5f", "2.5f")) == [{"k2", first}]
    resources = project.manifest()["modules"]["net"]["kernels"]
    whole = project.manifest()["modules"]["whole"]["kernels"]
    for name in five:
        told = [each[name]["archs"]["sm_90"] for each in (resources, whole)]
        assert [told[0][field] for field in FIGURES] == [told[1][field] for field in FIGURES]
    assert built(("2.5f", "12.5f")) == [], "that text was assembled before"
    assert built(("13.5f", "3.5f")) == [{"k3", first}]
    # Two of five are more than a quarter: all of them are assembled again, and are what is taken from then on.
    assert built(("14.5f", "4.5f"))[-1] == {*five, first}
    assert built(("10.5f", "0.5f")) == [{"k0", first}]
    # Another string, and another function of the device: all addresses move.
    assert built(("seven", "eight"))[-1] == {*five, first}
    assert built(("x[threadIdx.x] += 15.5f", "vprintf(0, 0)")) == [], "and of the module's last kernel, which is among them now"
    project.idle()


OTHERWISE = """
for each; do last=$each; test "$previous" = -o && out=$each; previous=$each; done
case "$*" in *-v*) ;; esac
BINARY "$@" && printf 'more' >> "$out"
exit $?
"""


def test_what_does_not_merge_is_told(project: Project, toolkit: Toolkit) -> None:
    """By name where it was asked for by name; `auto` links an image, and says why."""
    project.write("SConstruct", f'env["GPU_CUDA_PATH"] = "{toolkit.root}"\n' + NET)
    project.write("net.ll", ll("one=1.0", "two=2.0"))
    said = project.fail("GPU_LINK=merge", "GPU_LINEINFO=1").stderr
    assert "error: module net: GPU_LINK=merge: debug information and line tables do not merge\n" in said
    result = project.build("-j2", "GPU_LINK=auto", "GPU_LINEINFO=1")
    assert "GPU_LINK=auto links the image of net: debug information and line tables do not merge" in result.output
    assert project.records()[-1]["unmerged"] == {"debug information and line tables do not merge": ["net"]}
    assert "GPU_LINK=auto" not in project.build("GPU_LINK=auto", "GPU_LINEINFO=1").output  # nothing was done
    assert project.manifest()["modules"]["net"]["options"]["link"] == "image"
    # An assembler whose files are laid out otherwise.
    toolkit.wrap("ptxas", toolkit.binaries / "ptxas", before=OTHERWISE.replace("BINARY", str(toolkit.binaries / "ptxas")))
    result = project.build("-j2", "GPU_LINK=auto")
    assert re.search(
        r"GPU_LINK=auto links the image of net: ptxas 13\.\S+ for sm_90: units that stand alone do not merge: \w+ is not laid out",
        result.output,
    )
    said = project.fail("GPU_LINK=merge").stderr
    assert re.search(r"^error: module net: GPU_LINK=merge: ptxas 13\.\S+ for sm_90: units that stand alone", said, re.MULTILINE)


def test_auto_links_what_has_several_options_or_targets(project: Project) -> None:
    """One merged image is of one kind: a candidate with options of its own, or PTX beside IR, is known before anything is compiled."""
    project.write("net.ll", ll("one", "two"))
    project.write("k.ptx", ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry third()\n{\n\tret;\n}\n")
    project.write(
        "SConstruct",
        'own = env.GpuModule("own", ["net.ll"], candidates={"one": [{"GPU_MAXRREGCOUNT": 32}, {"GPU_MAXRREGCOUNT": 64}]})\n'
        'ptx = env.GpuModule("ptx", ["net.ll", "k.ptx"])\n'
        'env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[own, ptx]))\n',
    )
    said = project.build("GPU_LINK=auto").output
    assert "GPU_LINK=auto links the image of own: candidates of one have GPU_MAXRREGCOUNT of their own" in said
    assert "GPU_LINK=auto links the image of ptx: k.ptx is PTX, beside other sources" in said
    project.idle("GPU_LINK=auto")
    for asked, why in (
        ("GPU_PROVIDER=ptxas+nvlink", "GPU_PROVIDER=ptxas+nvlink names what links"),
        ("GPU_DEFER=always", "GPU_DEFER=always"),
    ):
        project.run("GPU_LINK=auto", asked)
        assert project.records()[-1]["unmerged"][why] == ["ptx"]
    refused = project.fail("GPU_LINK=merge")
    assert "module own: GPU_LINK=merge: candidates of one have GPU_MAXRREGCOUNT of their own" in refused.output
