// Reductions over a warp and over a block.
//
// Every thread of the block must call block_reduce, and every thread receives the result.
#pragma once

constexpr int kWarpSize = 32;
constexpr unsigned kFullMask = 0xffffffffu;

struct Sum {
  static constexpr float identity = 0.0f;
  __device__ float operator()(float a, float b) const { return a + b; }
};

struct Max {
  static constexpr float identity = -__builtin_huge_valf();
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <class Op>
__device__ float warp_reduce(float value, Op op) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value = op(value, __shfl_xor_sync(kFullMask, value, offset));
  }
  return value;
}

template <class Op>
__device__ float block_reduce(float value, Op op) {
  __shared__ float partial[kWarpSize];
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int warps = (blockDim.x + kWarpSize - 1) / kWarpSize;

  value = warp_reduce(value, op);
  // A second reduction in the same kernel must not overwrite what slow warps still read.
  __syncthreads();
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  return warp_reduce(lane < warps ? partial[lane] : Op::identity, op);
}
