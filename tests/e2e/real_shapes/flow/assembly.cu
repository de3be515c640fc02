// Inline assembly: special registers, predicates in scopes of their own, asynchronous copies, tensor cores.
__device__ __forceinline__ unsigned lane() {
  unsigned id;
  asm("mov.u32 %0, %%laneid;" : "=r"(id));
  return id;
}

__global__ void lanes(unsigned* out) { out[threadIdx.x] = lane() * 2 + 1; }

__global__ void guarded(const int* x, int* y) {
  int value = x[threadIdx.x];
  asm volatile(
      "{\n"
      "  .reg .pred p;\n"
      "  setp.gt.s32 p, %1, 0;\n"
      "  @p st.global.s32 [%0], %1;\n"
      "}" ::"l"(y + threadIdx.x), "r"(value)
      : "memory");
}

__global__ void copy_ahead(const float4* in, float4* out) {
  __shared__ float4 stage[2][64];
  unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(&stage[0][threadIdx.x]));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(in + threadIdx.x));
  asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;\n" ::: "memory");
  __syncthreads();
  stage[1][threadIdx.x] = stage[0][63 - threadIdx.x];
  out[threadIdx.x] = stage[1][threadIdx.x];
}

__global__ void multiply_tiles(const unsigned* a, const unsigned* b, float* c) {
  float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
  const unsigned* p = a + 4 * lane();
  const unsigned* q = b + 2 * lane();
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
      : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(q[0]), "r"(q[1]));
  c[4 * lane()] = d0 + d1 + d2 + d3;
}
