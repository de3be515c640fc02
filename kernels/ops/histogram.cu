// A 256-bin histogram of bytes. Each warp counts into bins of its own, so that equal bytes rarely meet in one atomic.

#include "grid.cuh"
#include "reduce.cuh"

constexpr int kBins = 256;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;

__global__ void __launch_bounds__(kThreads) histogram(const uchar4* __restrict__ data, unsigned* __restrict__ bins, long long quads) {
  __shared__ unsigned mine[kWarps][kBins];
  unsigned* const row = mine[threadIdx.x / kWarpSize];
  for (int i = threadIdx.x; i < kWarps * kBins; i += kThreads) (&mine[0][0])[i] = 0;
  __syncthreads();

  for (long long i = grid_first(); i < quads; i += grid_stride()) {
    const uchar4 bytes = data[i];
    atomicAdd(row + bytes.x, 1u);
    atomicAdd(row + bytes.y, 1u);
    atomicAdd(row + bytes.z, 1u);
    atomicAdd(row + bytes.w, 1u);
  }
  __syncthreads();

  unsigned sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += mine[warp][threadIdx.x];
  if (sum != 0) atomicAdd(bins + threadIdx.x, sum);
}

// The smallest byte that at least `share` of all bytes do not exceed. One block of kBins threads.
__global__ void __launch_bounds__(kBins) quantile(const unsigned* __restrict__ bins, float share, unsigned* result) {
  __shared__ unsigned long long upto[kBins];
  const int bin = threadIdx.x;
  upto[bin] = bins[bin];
  __syncthreads();
  for (int offset = 1; offset < kBins; offset *= 2) {
    const unsigned long long left = bin >= offset ? upto[bin - offset] : 0;
    __syncthreads();
    upto[bin] += left;
    __syncthreads();
  }

  const double wanted = static_cast<double>(share) * static_cast<double>(upto[kBins - 1]);
  const bool reached = static_cast<double>(upto[bin]) >= wanted;
  const bool reached_before = bin > 0 && static_cast<double>(upto[bin - 1]) >= wanted;
  if (reached && !reached_before) *result = bin;
}
