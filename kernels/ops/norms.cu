// Row-wise normalisations: softmax, layer norm, RMS norm. One block per row, any row length.

#include "reduce.cuh"

constexpr int kThreads = 256;

// exp(x - max) / sum, with the maximum taken out first so that nothing overflows.
__global__ void __launch_bounds__(kThreads) softmax_rows(const float* __restrict__ x, float* __restrict__ y, int columns) {
  const float* row = x + static_cast<long long>(blockIdx.x) * columns;
  float* to = y + static_cast<long long>(blockIdx.x) * columns;

  float highest = Max::identity;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) highest = fmaxf(highest, row[i]);
  highest = block_reduce(highest, Max());

  float total = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) total += __expf(row[i] - highest);
  const float share = 1.0f / block_reduce(total, Sum());

  for (int i = threadIdx.x; i < columns; i += blockDim.x) to[i] = __expf(row[i] - highest) * share;
}

// Mean first, then the variance around it: one pass over x² - mean² cancels badly for rows far from zero.
__global__ void __launch_bounds__(kThreads) layer_norm(const float* __restrict__ x, const float* __restrict__ gain,
                                                       const float* __restrict__ bias, float* __restrict__ y, int columns,
                                                       float epsilon) {
  const float* row = x + static_cast<long long>(blockIdx.x) * columns;
  float* to = y + static_cast<long long>(blockIdx.x) * columns;

  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += row[i];
  const float mean = block_reduce(sum, Sum()) / static_cast<float>(columns);

  float squares = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    const float apart = row[i] - mean;
    squares = fmaf(apart, apart, squares);
  }
  const float scale = rsqrtf(block_reduce(squares, Sum()) / static_cast<float>(columns) + epsilon);

  for (int i = threadIdx.x; i < columns; i += blockDim.x) to[i] = fmaf((row[i] - mean) * scale, gain[i], bias[i]);
}

__global__ void __launch_bounds__(kThreads) rms_norm(const float* __restrict__ x, const float* __restrict__ gain,
                                                     float* __restrict__ y, int columns, float epsilon) {
  const float* row = x + static_cast<long long>(blockIdx.x) * columns;
  float* to = y + static_cast<long long>(blockIdx.x) * columns;

  float squares = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) squares = fmaf(row[i], row[i], squares);
  const float scale = rsqrtf(block_reduce(squares, Sum()) / static_cast<float>(columns) + epsilon);

  for (int i = threadIdx.x; i < columns; i += blockDim.x) to[i] = row[i] * scale * gain[i];
}
