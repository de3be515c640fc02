"""What quick tests of host objects share: the words of CUDA's language and of launches, and a runtime that writes down what it is told."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from project import Project

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["HEAD", "LAUNCH", "built_twice", "make_runtime", "said", "write_program"]

LAUNCH = """\
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __constant__ __attribute__((constant))
struct ThreadIdx { __declspec(property(get = get_x)) unsigned x; static __device__ unsigned get_x() { return __nvvm_read_ptx_sreg_tid_x(); } };
extern const __device__ ThreadIdx threadIdx;
inline __device__ int atomicAdd(int* place, int by) { return __atomic_fetch_add(place, by, __ATOMIC_RELAXED); }
typedef __SIZE_TYPE__ size_t;
struct dim3 { unsigned x, y, z; __host__ __device__ constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {} };
typedef enum { cudaSuccess } cudaError_t;
typedef struct CUstream_st* cudaStream_t;
extern "C" __host__ cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t);
extern "C" __host__ unsigned __cudaPushCallConfiguration(dim3, dim3, size_t = 0, cudaStream_t = nullptr);
extern "C" __host__ cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*);
"""

RUNTIME = r"""
#include <stdio.h>
#include <string.h>
typedef struct { unsigned x, y, z; } dim3;
static const void* stubs[64];
static const char* names[64];
static int count;
static dim3 grid, block;
static size_t bytes;
static void* stream;
void** __cudaRegisterFatBinary(void* wrapper) { printf("fatbin %d\n", *(int*)wrapper == 0x466243b1); return (void**)wrapper; }
void __cudaRegisterFatBinaryEnd(void** handle) {}
void __cudaUnregisterFatBinary(void** handle) {}
void __cudaRegisterFunction(void** handle, const char* stub, char* device, const char* name, int limit, void* a, void* b, void* c, void* d, int* e) {
  stubs[count] = stub;
  names[count++] = device;
  printf("kernel %s\n", device);
}
void __cudaRegisterVar(void** handle, char* host, char* device, const char* name, int external, size_t size, int constant, int global) {
  printf("variable %s %zu %s\n", device, size, constant ? "constant" : "global");
}
void __cudaRegisterTexture(void** handle, void* host, void** place, char* device, int dimensions, int normalized, int external) {
  printf("texture %s %d\n", device, dimensions);
}
unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t shared, void* s) { grid = g; block = b; bytes = shared; stream = s; return 0; }
int __cudaPopCallConfiguration(dim3* g, dim3* b, size_t* shared, void* s) { *g = grid; *b = block; *shared = bytes; *(void**)s = stream; return 0; }
int cudaLaunchKernel(const void* stub, dim3 g, dim3 b, void** args, size_t shared, void* s) {
  for (int i = 0; i < count; i++)
    if (stubs[i] == stub) {
      printf("launch %s %u,%u,%u %u,%u,%u %zu", names[i], g.x, g.y, g.z, b.x, b.y, b.z, shared);
      if (strstr(names[i], "mix")) printf(" %c %d %g %p %d", *(char*)args[0], *(int*)args[1], *(double*)args[2], *(void**)args[3], *(short*)args[4]);
      printf("\n");
      return 0;
    }
  printf("launch of nothing\n");
  return 1;
}
"""

HEAD = """\
import os
import scons_gpu
env = Environment(tools=["default", "gpu"], toolpath=[scons_gpu.TOOLPATH], GPU_ARCHS=["sm_90", "compute_90"])
env.Append(GPU_CLANGFLAGS=["-nocudainc", "-include", "launch.h"], LIBPATH=["#runtime"], RPATH=[Dir("#runtime").abspath])
"""
"""A SConstruct of quick `.cu` with launches. With `LIBS=["cudart"]` its programs ask the runtime below in place of CUDA's."""


def make_runtime(project: Project) -> None:
    """Puts launch.h and runtime/libcudart.so there: CUDA's runtime in name, which says what it is told and does nothing."""
    project.write("launch.h", LAUNCH)
    source = project.write("runtime/cudart.c", RUNTIME)
    library = source.with_name("libcudart.so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", str(library), str(source)], check=True)


def write_program(folder: Path, sources: Mapping[str, str], sconstruct: str) -> Project:
    """A project of these files, with that runtime."""
    project = Project(folder)
    make_runtime(project)
    for name, text in sources.items():
        project.write(name, text)
    project.write("SConstruct", sconstruct)
    return project


def built_twice(project: Project) -> Project:
    """Built, with nothing left to do."""
    project.build("-j2")
    project.idle()
    return project


def said(program: Path) -> list[str]:
    """What a program prints, run beside where it lies."""
    done = subprocess.run([str(program)], cwd=program.parent, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()
