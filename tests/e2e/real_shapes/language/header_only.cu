// Two kernels over one header's helpers: each has its own copy, shared buffer included. Several shared arrays, used in another order.
#include "header_only.h"

__global__ void normalise(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = helpers::block_sum<64>(i < n ? x[i] : 0.0f);
  if (i < n) x[i] = helpers::clamp01(x[i] / sum);
}

__global__ void weigh(const float* x, const int* labels, float* y, int n) {
  __shared__ float best;
  __shared__ int label;
  __shared__ float row[64];
  for (int tile = 0; tile < helpers::ceil_div(n, 64); ++tile) {
    if (threadIdx.x == 0) {
      label = labels[tile];
      best = x[tile * 64 + (label & 63)];
    }
    row[threadIdx.x] = x[tile * 64 + threadIdx.x];
    __syncthreads();
    float share = helpers::block_sum<64>(row[63 - threadIdx.x] > best ? 1.0f : 0.0f);
    y[tile * 64 + threadIdx.x] = share + static_cast<float>(label);
    __syncthreads();
  }
}
