// Warps: shuffles, votes, matches, reductions in hardware, and atomics of every kind.
#define ALL 0xffffffffu

__device__ int warp_sum(int value) {
  for (int lane = 16; lane > 0; lane >>= 1) value += __shfl_down_sync(ALL, value, lane);
  return value;
}

__global__ void sum_by_warp(const int* x, int* y) {
  __shared__ int sums[32];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, value = warp_sum(x[blockIdx.x * blockDim.x + threadIdx.x]);
  if (lane == 0) sums[warp] = value;
  __syncthreads();
  if (warp == 0) {
    value = warp_sum(lane < (blockDim.x + 31) / 32 ? sums[lane] : 0);
    if (lane == 0) atomicAdd(y, value);
  }
}

__global__ void compact(const int* x, int* y, int* count) {
  int value = x[blockIdx.x * blockDim.x + threadIdx.x], lane = threadIdx.x & 31, base = 0;
  unsigned kept = __ballot_sync(ALL, value > 0);
  if (lane == 0 && kept) base = atomicAdd(count, __popc(kept));
  base = __shfl_sync(ALL, base, 0);
  if (value > 0) y[base + __popc(kept & ((1u << lane) - 1))] = value;
}

__global__ void histogram(const unsigned* x, unsigned* bins) {
  unsigned key = x[threadIdx.x] & 15u, peers = __match_any_sync(ALL, key);
  if ((threadIdx.x & 31) == __ffs(peers) - 1) atomicAdd(bins + key, __popc(peers));
  if (__any_sync(ALL, key == 15u)) atomicMax(bins + 16, __reduce_max_sync(ALL, key));
}

__global__ void lock_free(double* x, float* y, unsigned long long* z, int* flag) {
  atomicAdd(x, 1.5);
  atomicAdd(y, 0.5f);
  unsigned long long seen = *z, expected;
  do {
    expected = seen;
    seen = atomicCAS(z, expected, expected * 3 + 1);
  } while (seen != expected);
  __threadfence();
  if (threadIdx.x == 0) atomicExch(flag, 1);
}
