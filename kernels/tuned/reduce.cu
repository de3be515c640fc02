// sums[row] = the sum of a row of `columns` numbers; the sum of a whole array is that of its only row.
//
// LANES threads share a row and pass what they have through shuffles. Each keeps ITEMS sums, so that as many loads are under way.
//
//   grid   ceil(rows / ROWS) * SPLIT blocks
//   block  LANES * ROWS threads
//   shared static
//
//   LANES 32       a warp has a row, a block has ROWS of them; otherwise a block has one row
//   SPLIT above 1  that many blocks share a row, and the last to end adds up what they put into `workspace`: rows * (SPLIT + 1)
//                  floats, all 0 (fill_f32) before the first launch. It is all 0 again after each. Otherwise it is not touched.
//   STAGES 2, ...  that many batches of ITEMS come through shared memory by cp.async (sm_80); 0: straight into registers
//
// Which numbers are added to which depends on the candidate, never on the timing: the same candidate gives the same bits.
// `columns` is at most 2^31 - 1 - LANES * ITEMS * (STAGES + 1).

#ifndef LANES
#define LANES 256
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef ITEMS
#define ITEMS 4
#endif
#ifndef SPLIT
#define SPLIT 1
#endif
#ifndef STAGES
#define STAGES 0
#endif

#define COPY_ASYNC (STAGES > 0)
#include "copy_async.cuh"
#include "reduce.cuh"

#if SPLIT > 1 && ROWS > 1
#error "a block that has several rows cannot share one with other blocks"
#endif
static_assert(LANES % kWarpSize == 0 && LANES * ROWS <= 1024, "a row needs whole warps, a block at most 1024 threads");
static_assert(ROWS == 1 || LANES == kWarpSize, "several rows a block: a warp each");
static_assert(STAGES != 1, "a ring of one batch has nothing under way");

constexpr int kBatch = LANES * ITEMS;

// The part of the row that this block adds up.
struct Part {
  const float* row;
  int begin, end;
};

#if STAGES > 0
// Each thread reads only what it copied itself, so no barrier is needed.
__device__ static void copy_batch(Part part, int first, int lane, float (&batch)[ITEMS][LANES * ROWS]) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int i = first + item * LANES + lane;
    copy_async(&batch[item][threadIdx.x], part.row + (i < part.end ? i : 0), i < part.end);
  }
}

__device__ static float add_up(Part part, int lane) {
  __shared__ float ring[STAGES][ITEMS][LANES * ROWS];
  float sums[ITEMS] = {};
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    const int first = part.begin + stage * kBatch;
    if (first < part.end) copy_batch(part, first, lane, ring[stage]);
    commit_group();
  }
  int stage = 0;
  for (int first = part.begin; first < part.end; first += kBatch) {
    wait_groups<STAGES - 2>();
    const int next = first + (STAGES - 1) * kBatch;
    if (next < part.end) copy_batch(part, next, lane, ring[(stage + STAGES - 1) % STAGES]);
    commit_group();
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) sums[item] += ring[stage][item][threadIdx.x];
    stage = (stage + 1) % STAGES;
  }
#else
__device__ static float add_up(Part part, int lane) {
  float sums[ITEMS] = {};
  for (int first = part.begin; first < part.end; first += kBatch) {
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int i = first + item * LANES + lane;
      sums[item] += i < part.end ? part.row[i] : 0.0f;
    }
  }
#endif
  float sum = 0.0f;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) sum += sums[item];
  if constexpr (LANES == kWarpSize) {
    return warp_reduce(sum, Sum());
  } else {
    return block_reduce(sum, Sum());
  }
}

#if SPLIT > 1
// Tickets first, a row each; then SPLIT sums a row. The ticket goes from SPLIT - 1 to 0 by itself, for the next launch.
__device__ static void meet(float sum, float* workspace, int row, int part, int rows, float* sums) {
  __shared__ bool last;
  volatile float* const parts = workspace + rows + static_cast<long long>(row) * SPLIT;
  if (threadIdx.x == 0) {
    parts[part] = sum;
    __threadfence();
    last = atomicInc(reinterpret_cast<unsigned*>(workspace) + row, SPLIT - 1) == SPLIT - 1;
  }
  __syncthreads();
  if (!last || threadIdx.x >= kWarpSize) return;

  __threadfence();
  float total = 0.0f;
  for (int i = threadIdx.x; i < SPLIT; i += kWarpSize) {
    total += parts[i];
    parts[i] = 0.0f;
  }
  total = warp_reduce(total, Sum());
  if (threadIdx.x == 0) sums[row] = total;
}
#endif

extern "C" __global__ void __launch_bounds__(LANES* ROWS)
    reduce_rows(const float* __restrict__ x, float* __restrict__ sums, float* __restrict__ workspace, int rows, int columns) {
  const int lane = threadIdx.x % LANES;
  const int row = static_cast<int>(blockIdx.x / SPLIT) * ROWS + threadIdx.x / LANES;
  // Whole warps leave here, and where a block has more of them than one row needs, none waits for another.
  if (row >= rows) return;
  const float* const from = x + static_cast<long long>(row) * columns;
#if SPLIT > 1
  const int part = blockIdx.x % SPLIT;
  const int length = (columns - 1) / SPLIT + 1;
  const long long begin = static_cast<long long>(part) * length;
  const float sum = add_up(Part{from, static_cast<int>(min(begin, static_cast<long long>(columns))),
                                static_cast<int>(min(begin + length, static_cast<long long>(columns)))},
                           lane);
  meet(sum, workspace, row, part, rows, sums);
#else
  const float sum = add_up(Part{from, 0, columns}, lane);
  if (lane == 0) sums[row] = sum;
#endif
}
