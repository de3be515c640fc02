// GELU, exact and as the tanh that most networks were trained with, and SwiGLU.

#include "grid.cuh"

__device__ static float gelu_of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }

__device__ static float gelu_tanh_of(float x) {
  const float inner = 0.79788456f * fmaf(0.044715f * x * x, x, x);
  return 0.5f * x * (1.0f + tanhf(inner));
}

__global__ void gelu(const float* __restrict__ x, float* __restrict__ y, long long count) {
  for (long long i = grid_first(); i < count; i += grid_stride()) y[i] = gelu_of(x[i]);
}

__global__ void gelu_tanh(const float* __restrict__ x, float* __restrict__ y, long long count) {
  for (long long i = grid_first(); i < count; i += grid_stride()) y[i] = gelu_tanh_of(x[i]);
}

// `x` is (rows, 2 * columns): the left half is gated by the SiLU of the right one.
__global__ void swiglu(const float* __restrict__ x, float* __restrict__ y, long long rows, int columns) {
  for (long long i = grid_first(); i < rows * columns; i += grid_stride()) {
    const float* row = x + i / columns * 2 * columns;
    const float value = row[i % columns];
    const float gate = row[columns + i % columns];
    y[i] = value * gate / (1.0f + __expf(-gate));
  }
}
