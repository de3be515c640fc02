// Inclusive prefix sum in one pass over memory, by decoupled look-back (Merrill and Garland, 2016).
//
// A block publishes the sum of its tile at once, and its inclusive prefix as soon as it knows it. A block that waits for
// its prefix walks back over its predecessors: it adds their sums until it meets one whose prefix is known.

#include "reduce.cuh"

constexpr int kThreads = 256;
constexpr int kItems = 8;
constexpr int kTile = kThreads * kItems;
constexpr int kWarps = kThreads / kWarpSize;

// State and value travel in one 64-bit word, so that neither is ever seen without the other.
enum State : unsigned { kEmpty = 0, kSum = 1, kPrefix = 2 };

__device__ static unsigned long long pack(State state, unsigned value) {
  return static_cast<unsigned long long>(state) << 32 | value;
}

__device__ static unsigned look_back(volatile unsigned long long* tiles, int tile) {
  unsigned prefix = 0;
  for (int before = tile - 1; before >= 0;) {
    const unsigned long long word = tiles[before];
    const unsigned state = static_cast<unsigned>(word >> 32);
    if (state == kEmpty) continue;  // not published yet; that block runs, since tiles are taken in order
    prefix += static_cast<unsigned>(word);
    if (state == kPrefix) break;
    --before;
  }
  return prefix;
}

__device__ static unsigned warp_scan(unsigned value) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const unsigned left = __shfl_up_sync(kFullMask, value, offset);
    if (lane >= offset) value += left;
  }
  return value;
}

// Before each scan: one word per tile, and the ticket that hands tiles out.
__global__ void scan_reset(unsigned long long* tiles, unsigned* ticket, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) tiles[i] = pack(kEmpty, 0);
  if (i == 0) *ticket = 0;
}

__global__ void __launch_bounds__(kThreads) scan_inclusive(const unsigned* __restrict__ in, unsigned* __restrict__ out,
                                                           unsigned long long* tiles, unsigned* ticket, int length) {
  __shared__ unsigned warp_sums[kWarps];
  __shared__ unsigned shared_tile;
  __shared__ unsigned shared_prefix;

  // blockIdx says nothing of the order in which blocks start; a ticket does.
  if (threadIdx.x == 0) shared_tile = atomicAdd(ticket, 1u);
  __syncthreads();
  const int tile = static_cast<int>(shared_tile);
  const long long first = static_cast<long long>(tile) * kTile + threadIdx.x * kItems;

  unsigned item[kItems];
  unsigned sum = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    sum += first + i < length ? in[first + i] : 0u;
    item[i] = sum;
  }

  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const unsigned within = warp_scan(sum);
  if (lane == kWarpSize - 1) warp_sums[warp] = within;
  __syncthreads();

  unsigned before = within - sum;
  unsigned total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) before += warp_sums[i];
    total += warp_sums[i];
  }

  if (threadIdx.x == 0) {
    volatile unsigned long long* words = tiles;
    words[tile] = pack(tile == 0 ? kPrefix : kSum, total);
    const unsigned prefix = look_back(words, tile);
    words[tile] = pack(kPrefix, prefix + total);
    shared_prefix = prefix;
  }
  __syncthreads();

#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (first + i < length) out[first + i] = shared_prefix + before + item[i];
  }
}
