// y = exp(x - max) / sum for each row. The maximum is taken out first, so nothing overflows; where a row lies meanwhile is tuned.
//
// LANES threads share a row. A row that is longer than what they can hold is right all the same: the rest is read again.
//
//   grid   ceil(rows / ROWS) blocks
//   block  LANES * ROWS threads
//   shared static
//
//   METHOD registers  the row is read once, each thread holds ITEMS of it
//   METHOD shared     the row is read once into shared memory, HELD floats
//     COPY_BULK 1       by one instruction for all of it (sm_90), if the row lies at a multiple of 16 bytes
//   METHOD online     the row is read twice, and nothing is held: maximum and sum grow together, ITEMS at a time
//   LANES 32          a warp has a row, a block has ROWS of them; otherwise a block has one row
//   MIN_BLOCKS 2      so many blocks on a multiprocessor, which limits registers
//
// A row that holds NaN or +inf, or nothing but -inf, becomes NaN, by all methods. x and y do not overlap.
// `columns` is at most 2^31 - 1 - LANES * ITEMS.

#ifndef METHOD
#define METHOD online
#endif
#ifndef LANES
#define LANES 256
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef ITEMS
#define ITEMS 4
#endif
#ifndef HELD
#define HELD 4096
#endif
#ifndef COPY_BULK
#define COPY_BULK 0
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 0  // none asked for: 1 would let ptxas take more registers
#endif

#include "copy_async.cuh"
#include "reduce.cuh"

enum Method { registers, shared, online };
constexpr Method kMethod = METHOD;
static_assert(LANES % kWarpSize == 0 && LANES * ROWS <= 1024, "a row needs whole warps, a block at most 1024 threads");
static_assert(ROWS == 1 || LANES == kWarpSize, "several rows a block: a warp each");
static_assert(kMethod != shared || ROWS == 1, "shared memory holds one row");
static_assert(kMethod == shared || !COPY_BULK, "a bulk copy goes to shared memory");

template <class Op>
__device__ static float reduce(float value, Op op) {
  if constexpr (LANES == kWarpSize) {
    return warp_reduce(value, op);
  } else {
    return block_reduce(value, op);
  }
}

__device__ static void in_registers(const float* __restrict__ row, float* __restrict__ to, int columns, int lane) {
  constexpr int kHeld = LANES * ITEMS;
  float held[ITEMS];
  float highest = Max::identity;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int i = item * LANES + lane;
    held[item] = i < columns ? row[i] : Max::identity;
    highest = fmaxf(highest, held[item]);
  }
  for (int i = kHeld + lane; i < columns; i += LANES) highest = fmaxf(highest, row[i]);
  highest = reduce(highest, Max());

  float total = 0.0f;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    held[item] = __expf(held[item] - highest);  // 0 past the row's end, where it is -inf
    total += held[item];
  }
  for (int i = kHeld + lane; i < columns; i += LANES) total += __expf(row[i] - highest);
  const float share = 1.0f / reduce(total, Sum());

#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int i = item * LANES + lane;
    if (i < columns) to[i] = held[item] * share;
  }
  for (int i = kHeld + lane; i < columns; i += LANES) to[i] = __expf(row[i] - highest) * share;
}

// Gives how many floats of the row the bulk copy brings: all but up to three, or none. The whole block calls it.
__device__ static int bulk_load([[maybe_unused]] float* held, [[maybe_unused]] const float* row, [[maybe_unused]] int kept) {
#if COPY_BULK
  __shared__ unsigned long long barrier;
  const int copied = reinterpret_cast<unsigned long long>(row) % 16 == 0 ? kept / 4 * 4 : 0;
  if (copied == 0) return 0;
  if (threadIdx.x == 0) bulk_init(&barrier);
  __syncthreads();
  if (threadIdx.x == 0) bulk_copy(held, row, copied * sizeof(float), &barrier);
  bulk_wait(&barrier);
  return copied;
#else
  return 0;
#endif
}

// A thread reads and writes only its own elements of `held`, i = lane modulo LANES, so no barrier is needed for them.
__device__ static void in_shared(const float* __restrict__ row, float* __restrict__ to, int columns, int lane) {
  __shared__ __align__(16) float held[HELD];
  const int kept = min(columns, HELD);
  const int copied = bulk_load(held, row, kept);
  for (int i = copied / LANES * LANES + lane; i < kept; i += LANES) {
    if (i >= copied) held[i] = row[i];
  }

  const int rest = HELD / LANES * LANES + lane;  // HELD need not be a multiple of LANES
  float highest = Max::identity;
  for (int i = lane; i < kept; i += LANES) highest = fmaxf(highest, held[i]);
  for (int i = rest; i < columns; i += LANES) highest = i < HELD ? highest : fmaxf(highest, row[i]);
  highest = reduce(highest, Max());

  float total = 0.0f;
  for (int i = lane; i < kept; i += LANES) {
    held[i] = __expf(held[i] - highest);
    total += held[i];
  }
  for (int i = rest; i < columns; i += LANES) total += i < HELD ? 0.0f : __expf(row[i] - highest);
  const float share = 1.0f / reduce(total, Sum());

  for (int i = lane; i < kept; i += LANES) to[i] = held[i] * share;
  for (int i = rest; i < columns; i += LANES) {
    if (i >= HELD) to[i] = __expf(row[i] - highest) * share;
  }
}

// What a sum that was taken relative to `from` weighs relative to `to`: nothing where `from` is -inf, since nothing was added
// yet. The difference may be no number there.
__device__ static float weight(float from, float to) { return from == Max::identity ? 0.0f : __expf(from - to); }

// Milakov and Gimelshein, 2018.
__device__ static void in_passing(const float* __restrict__ row, float* __restrict__ to, int columns, int lane) {
  float highest = Max::identity;
  float total = 0.0f;
  for (int first = lane; first < columns; first += LANES * ITEMS) {
    float batch[ITEMS];
    float raised = highest;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const int i = first + item * LANES;
      batch[item] = i < columns ? row[i] : Max::identity;
      raised = fmaxf(raised, batch[item]);
    }
    total *= weight(highest, raised);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) total += weight(batch[item], raised);
    highest = raised;
  }
  const float peak = reduce(highest, Max());
  const float share = 1.0f / reduce(total * weight(highest, peak), Sum());

  for (int i = lane; i < columns; i += LANES) to[i] = __expf(row[i] - peak) * share;
}

extern "C" __global__ void __launch_bounds__(LANES* ROWS, MIN_BLOCKS)
    softmax_rows(const float* __restrict__ x, float* __restrict__ y, int rows, int columns) {
  const int lane = threadIdx.x % LANES;
  const int row = static_cast<int>(blockIdx.x) * ROWS + threadIdx.x / LANES;
  // Whole warps leave here, and where a block has several rows, none waits for another.
  if (row >= rows) return;
  const float* const from = x + static_cast<long long>(row) * columns;
  float* const to = y + static_cast<long long>(row) * columns;
  if constexpr (kMethod == registers) {
    in_registers(from, to, columns, lane);
  } else if constexpr (kMethod == shared) {
    in_shared(from, to, columns, lane);
  } else {
    in_passing(from, to, columns, lane);
  }
}
