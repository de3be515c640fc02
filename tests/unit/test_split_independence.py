"""A kernel's slice depends on what the kernel names and on nothing else: clang's own output, permuted and edited."""

from __future__ import annotations

import hashlib
import random
import re
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import pytest

from scons_gpu.source.clang import compile_cuda
from scons_gpu.source.options import ClangOptions
from scons_gpu.split import split
from scons_gpu.toolchain.arch import parse

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scons_gpu.split.index import Index
    from scons_gpu.toolchain.tools import Toolchain

(SM_90,) = parse("sm_90")

SOURCE = """
#include <cuda_fp16.h>
struct Pair { float a; int b; };
__constant__ float coef[16];
__device__ int counter;
static __device__ const int odd[] = {1, 3, 5, 7, 9, 11, 13};
static __device__ float helper(float x, int i) { return x * coef[i & 15] + odd[i % 7]; }
template <typename T> __device__ T twice(T x) { return x + x; }
template <typename T, int N> __global__ void scale(T* x, const Pair* p) {
  __shared__ T tile[N];
  tile[threadIdx.x] = twice(x[threadIdx.x]);
  __syncthreads();
  x[threadIdx.x] = tile[N - 1 - threadIdx.x] + (T)p->a;
}
template __global__ void scale<float, 64>(float*, const Pair*);
template __global__ void scale<double, 32>(double*, const Pair*);
__global__ void __launch_bounds__(128, 2) halves(__half2* x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = __hfma2(x[i], x[i], x[i]);
}
__global__ void counts(float* x) {
  extern __shared__ float buffer[];
  buffer[threadIdx.x] = helper(x[threadIdx.x], threadIdx.x);
  if (buffer[0] > 0) atomicAdd(&counter, 1);
  asm volatile("// here" ::: "memory");
}
__global__ void prints(int n) { if (n > 3) printf("%d of them\\n", n); }
"""
ADDED = """
struct Other { double x[4]; };
static __device__ float another(float x) { return x * 3.0f; }
__global__ void before(Other* o, __half2* h, float2* f) { o->x[0] = another(f->x) + __half2float(h->x); printf("before %d\\n", 1); }
"""


def clang(text: str, *, toolchain: Toolchain, folder: Path, debug: bool = False) -> str:
    assert toolchain.clang
    (folder / "k.cu").write_text(text)
    options = ClangOptions(debug=debug)
    out = folder / "k.ll"
    compile_cuda(toolchain.clang, "k.cu", target=SM_90, options=options, headers=toolchain.headers, output=out, top=str(folder))
    return out.read_text()


def slices(text: str, form: str = "apart") -> dict[str, tuple[str, str, str]]:
    """Kernel → its unit's text and body; state and tables under their own names."""
    texts: dict[str, str] = {}

    def put(slice_text: str) -> str:
        name = hashlib.sha256(slice_text.encode()).hexdigest()
        texts[name] = slice_text
        return name

    index: Index = split(text, source="k.cu", target=SM_90, form=form, put=put)
    found = {kernel.symbol: (texts[unit.slice], unit.body, unit.joined) for unit in index.units for kernel in unit.kernels}
    found.update({table.symbol: (texts[table.slice], "", "") for table in index.tables})
    found.update({state.symbol: (state.content, "", "") for state in index.state})
    return found


@pytest.fixture(scope="module")
def compile_text(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    folder = tmp_path_factory.mktemp("clang")

    def compiled(text: str, *, debug: bool = False) -> str:
        return clang(text, toolchain=toolchain, folder=folder, debug=debug)

    return compiled


@pytest.fixture(scope="module")
def printed(compile_text: Callable[..., str]) -> str:
    return compile_text(SOURCE)


@pytest.fixture(scope="module")
def changed(compile_text: Callable[..., str]) -> str:
    """Kernels added and moved, comments and structs added, a kernel gone: all that must not matter, at once."""
    head, halves, rest = re.split(r"(?=__global__ void __launch_bounds__|__global__ void counts)", SOURCE)
    rest, _ = rest.split("__global__ void prints")
    return compile_text(
        head.replace("template <typename T> __device__", ADDED + "// a comment\n\ntemplate <typename T> __device__") + rest + halves
    )


@pytest.mark.parametrize("form", ["apart", "closed"])
def test_d4_adding_removing_and_moving_changes_no_other_slice(printed: str, changed: str, form: str) -> None:
    before, after = slices(printed, form), slices(changed, form)
    both = before.keys() & after.keys()
    assert {name: after[name] for name in both} == {name: before[name] for name in both}
    assert len([name for name in both if name.startswith("_Z")]) == 4
    assert after.keys() - both == {"_Z6beforeP5OtherP7__half2P6float2"}
    assert before.keys() - both == {"_Z6printsi"}


def test_d5_an_edit_changes_exactly_the_kernels_concerned(printed: str) -> None:
    before = slices(printed)

    def touched(old: str, new: str) -> set[str]:
        assert old in printed
        after = slices(printed.replace(old, new))
        return {name for name in before if after[name] != before[name]}

    scales = {name for name in before if name.startswith("_Z5scale")}
    assert len(scales) == 2
    assert touched("i32 11, i32 13]", "i32 11, i32 15]") == {"_Z6countsPf"}  # a table
    assert touched("%struct.Pair = type { float, i32 }", "%struct.Pair = type { float, i32, i32 }") == scales  # a layout
    assert touched("fadd contract float %3, %4", "fmul contract float %3, %4") == {name for name in scales if "If" in name}  # a callee
    assert touched("constant [12 x i8]", "constant [12 x i8]") == set()


def test_d4_the_order_of_ir_does_not_matter(printed: str) -> None:
    before = slices(printed)
    first = re.findall(r"^(?:target|%)[^\n]*\n", printed, re.MULTILINE)  # LLVM wants a type's size when it is used
    parts = re.findall(r"^define .*?^}\n|^(?:declare|@|\$|!|attributes)[^\n]*\n", printed, re.MULTILINE | re.DOTALL)
    for seed in range(5):
        random.Random(seed).shuffle(parts)  # noqa: S311 - repeatable on purpose
        assert slices("\n".join(first + parts)) == before


def test_d4_a_slice_splits_into_itself(printed: str) -> None:
    for name, (text, body, joined) in slices(printed, "closed").items():
        if name.startswith("_Z"):
            assert slices(text, "closed")[name] == (text, body, joined)


def test_d1_twins_have_one_body() -> None:
    def source(number: int, added: int) -> str:
        return f"""
@t{number} = internal addrspace(3) global [32 x i32] undef
define internal i32 @f{number}(i32 %x) {{
  %r = add i32 %x, {added}
  ret i32 %r
}}
define ptx_kernel void @k{number}(ptr %x) {{
  %r = call i32 @f{number}(i32 1)
  store i32 %r, ptr addrspace(3) @t{number}
  ret void
}}
"""

    found = slices('target triple = "nvptx64-nvidia-cuda"\n' + source(1, 1) + source(2, 1) + source(3, 2))
    assert found["k1"][0] != found["k2"][0]
    assert found["k1"][1] == found["k2"][1] != found["k3"][1]


def test_s6_debug_information_is_cut_to_the_unit(compile_text: Callable[..., str]) -> None:
    for text, _, _ in slices(compile_text(SOURCE, debug=True), "closed").values():
        if not text.startswith("target"):
            continue
        assert len(re.findall("distinct !DICompileUnit", text)) == 1
        assert text.count("distinct !DISubprogram") <= text.count("define ") + 8  # inlined callees' are not there yet: no passes ran
        with llvm.parse_assembly(text, llvm.create_context()) as module:
            module.verify()
            assert "DICompileUnit" in str(module)  # LLVM drops debug information that does not verify


def test_units_joined_again_define_the_closure_of_all_kernels(printed: str) -> None:
    """The round trip: nothing that a kernel reaches is lost, everything verifies together."""
    with llvm.parse_assembly(printed, llvm.create_context()) as module:
        wanted = {function.name for function in module.functions if "ptx_kernel" in str(function)}
    found = slices(printed)
    joined = set()
    for name in wanted:
        with llvm.parse_assembly(found[name][0], llvm.create_context()) as module:
            module.verify()
            for function in module.functions:
                if not function.is_declaration:
                    joined.add(function.name)
                else:
                    assert function.name.startswith("llvm.") or function.name in ("vprintf", "__assertfail"), function.name
    assert wanted <= joined
    assert {"_ZL6helperfi", "_Z5twiceIfET_S0_", "_Z5twiceIdET_S0_"} <= joined
