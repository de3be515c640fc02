// Helpers that live in a header: inlined, never inlined, with a shared buffer of their own.
#pragma once

namespace helpers {

__host__ __device__ inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

static __device__ __forceinline__ float clamp01(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }

template <int N>
__device__ __noinline__ float block_sum(float value) {
  __shared__ float buffer[N];
  buffer[threadIdx.x] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < N; ++i) sum += buffer[i];
  __syncthreads();
  return sum;
}

}  // namespace helpers
