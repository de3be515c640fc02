// C = A B in f32, all row-major, any M, N and K. The shape of its tiles is a matter of tuning.
//
// A block makes a TILE_M x TILE_N tile of C. Tiles of A and B pass through shared memory, TILE_K deep and STAGES at a time; a
// thread keeps a THREAD_M x THREAD_N patch of C in registers. A lies transposed in shared memory, so that a thread reads four
// of its rows, as four of its columns, by one load. Every candidate adds up in the order of k, so all give the same bits.
//
//   grid   ceil(M / TILE_M) * ceil(N / TILE_N) blocks, in one dimension: neither side is limited
//   block  (TILE_M / THREAD_M) * (TILE_N / THREAD_N) threads
//   shared static, 4 * STAGES * TILE_K * (TILE_M + 4 + TILE_N) bytes
//
//   STAGES 1       loads of the next tile are on their way while the block multiplies, and wait in registers
//   STAGES 2       there is a second buffer to put them in: one barrier a tile instead of two
//   COPY_ASYNC 1   no registers on the way (sm_80): STAGES - 1 tiles are under way
//   PACKED 1       two multiply-adds by one instruction (sm_100)
//   MIN_BLOCKS 2   so many blocks on a multiprocessor: the limit of registers that ptxas keeps where there are launch bounds
//                  (GPU_MAXRREGCOUNT is ignored then)

#ifndef TILE_M
#define TILE_M 64
#endif
#ifndef TILE_N
#define TILE_N 64
#endif
#ifndef TILE_K
#define TILE_K 16
#endif
#ifndef THREAD_M
#define THREAD_M 4
#endif
#ifndef THREAD_N
#define THREAD_N 4
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef COPY_ASYNC
#define COPY_ASYNC 0
#endif
#ifndef PACKED
#define PACKED 0
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 0  // none asked for: 1 would let ptxas take more registers
#endif

#include "copy_async.cuh"

#if defined(__CUDA_ARCH__) && PACKED && __CUDA_ARCH__ < 1000
#error "fma.rn.f32x2 needs sm_100 or newer"
#endif

constexpr int kDown = TILE_M / THREAD_M;    // threads
constexpr int kAcross = TILE_N / THREAD_N;  // threads
constexpr int kThreads = kDown * kAcross;
constexpr int kPad = 4;  // a warp that writes A's tile, transposed, then meets each bank once if TILE_K is 8
constexpr int kLoadsA = TILE_M * TILE_K / kThreads;
constexpr int kLoadsB = TILE_N * TILE_K / kThreads;

static_assert(TILE_M % THREAD_M == 0 && TILE_N % THREAD_N == 0, "patches must cover the tile");
static_assert(THREAD_M % 4 == 0 && THREAD_N % 4 == 0, "a thread reads and owns four at a time");
static_assert(kThreads % 32 == 0 && kThreads <= 1024, "the tile needs whole warps, and at most 1024 threads");
static_assert(TILE_M * TILE_K % kThreads == 0 && TILE_N * TILE_K % kThreads == 0, "each thread must load equally much of a tile");
static_assert(COPY_ASYNC ? STAGES >= 2 : STAGES == 1 || STAGES == 2, "one buffer or two, or more of them filled by cp.async");

struct Tiles {
  float a[STAGES][TILE_K][TILE_M + kPad];
  float b[STAGES][TILE_K][TILE_N];
};

// Where the tile of A and B lies that this block multiplies next.
struct Source {
  const float* a;
  const float* b;
  int m, n, k;    // of the whole
  int top, left;  // of the tile of C
};

// The patch: THREAD_M rows of pairs of columns.
using Patch = float2[THREAD_M][THREAD_N / 2];

__device__ static float2 multiply_add(float a, float2 b, float2 c) {
#if PACKED
  float2 sum;
  asm("{\n\t"
      ".reg .b64 a, b, c;\n\t"
      "mov.b64 a, {%2, %2};\n\t"
      "mov.b64 b, {%3, %4};\n\t"
      "mov.b64 c, {%5, %6};\n\t"
      "fma.rn.f32x2 c, a, b, c;\n\t"
      "mov.b64 {%0, %1}, c;\n\t"
      "}"
      : "=f"(sum.x), "=f"(sum.y)
      : "f"(a), "f"(b.x), "f"(b.y), "f"(c.x), "f"(c.y));
  return sum;
#else
  return make_float2(fmaf(a, b.x, c.x), fmaf(a, b.y, c.y));
#endif
}

// Thread i of a row of threads owns columns 4i to 4i + 3 of each quarter (or half, ...) of the tile, not 4 * count in a row: so
// the float4 that a warp reads at once are neighbours. The same holds for its rows.
__device__ static void multiply(const Tiles& tiles, int stage, int down, int across, Patch& patch) {
#pragma unroll
  for (int k = 0; k < TILE_K; ++k) {
    float a[THREAD_M];
    float2 b[THREAD_N / 2];
#pragma unroll
    for (int i = 0; i < THREAD_M; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&tiles.a[stage][k][i * kDown + down * 4]);
      a[i] = four.x;
      a[i + 1] = four.y;
      a[i + 2] = four.z;
      a[i + 3] = four.w;
    }
#pragma unroll
    for (int j = 0; j < THREAD_N; j += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&tiles.b[stage][k][j * kAcross + across * 4]);
      b[j / 2] = make_float2(four.x, four.y);
      b[j / 2 + 1] = make_float2(four.z, four.w);
    }
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
#pragma unroll
      for (int j = 0; j < THREAD_N / 2; ++j) patch[i][j] = multiply_add(a[i], b[j], patch[i][j]);
    }
  }
}

#if COPY_ASYNC
__device__ static void copy_tiles(const Source& from, int first, Tiles& tiles, int stage) {
#pragma unroll
  for (int load = 0; load < kLoadsA; ++load) {
    const int i = load * kThreads + threadIdx.x;
    const int m = from.top + i / TILE_K;
    const int k = first + i % TILE_K;
    const bool there = m < from.m && k < from.k;
    copy_async(&tiles.a[stage][i % TILE_K][i / TILE_K], from.a + (there ? static_cast<long long>(m) * from.k + k : 0), there);
  }
#pragma unroll
  for (int load = 0; load < kLoadsB; ++load) {
    const int i = load * kThreads + threadIdx.x;
    const int k = first + i / TILE_N;
    const int n = from.left + i % TILE_N;
    const bool there = k < from.k && n < from.n;
    copy_async(&tiles.b[stage][i / TILE_N][i % TILE_N], from.b + (there ? static_cast<long long>(k) * from.n + n : 0), there);
  }
}

__device__ static void accumulate(const Source& from, Tiles& tiles, int down, int across, Patch& patch) {
  const int count = (from.k + TILE_K - 1) / TILE_K;
#pragma unroll
  for (int tile = 0; tile < STAGES - 1; ++tile) {
    if (tile < count) copy_tiles(from, tile * TILE_K, tiles, tile);
    commit_group();
  }
  for (int tile = 0; tile < count; ++tile) {
    wait_groups<STAGES - 2>();
    // After it, everyone's part of this tile is there, and everyone has read the last one, whose buffer is filled next.
    __syncthreads();
    const int next = tile + STAGES - 1;
    if (next < count) copy_tiles(from, next * TILE_K, tiles, next % STAGES);
    commit_group();
    multiply(tiles, tile % STAGES, down, across, patch);
  }
}
#else
struct Loaded {
  float a[kLoadsA];
  float b[kLoadsB];
};

__device__ static void load(const Source& from, int first, Loaded& loaded) {
#pragma unroll
  for (int load = 0; load < kLoadsA; ++load) {
    const int i = load * kThreads + threadIdx.x;
    const int m = from.top + i / TILE_K;
    const int k = first + i % TILE_K;
    loaded.a[load] = m < from.m && k < from.k ? from.a[static_cast<long long>(m) * from.k + k] : 0.0f;
  }
#pragma unroll
  for (int load = 0; load < kLoadsB; ++load) {
    const int i = load * kThreads + threadIdx.x;
    const int k = first + i / TILE_N;
    const int n = from.left + i % TILE_N;
    loaded.b[load] = k < from.k && n < from.n ? from.b[static_cast<long long>(k) * from.n + n] : 0.0f;
  }
}

__device__ static void store(const Loaded& loaded, Tiles& tiles, int stage) {
#pragma unroll
  for (int load = 0; load < kLoadsA; ++load) {
    const int i = load * kThreads + threadIdx.x;
    tiles.a[stage][i % TILE_K][i / TILE_K] = loaded.a[load];
  }
#pragma unroll
  for (int load = 0; load < kLoadsB; ++load) {
    const int i = load * kThreads + threadIdx.x;
    tiles.b[stage][i / TILE_N][i % TILE_N] = loaded.b[load];
  }
}

__device__ static void accumulate(const Source& from, Tiles& tiles, int down, int across, Patch& patch) {
  Loaded loaded;
  const int count = (from.k + TILE_K - 1) / TILE_K;
  if (count > 0) {
    load(from, 0, loaded);
    store(loaded, tiles, 0);
  }
  __syncthreads();
  for (int tile = 0; tile < count; ++tile) {
    if (tile + 1 < count) load(from, (tile + 1) * TILE_K, loaded);
    multiply(tiles, tile % STAGES, down, across, patch);
    // With two buffers, the one that is written now was read before the last barrier.
    if (STAGES == 1) __syncthreads();
    if (tile + 1 < count) store(loaded, tiles, (tile + 1) % STAGES);
    __syncthreads();
  }
}
#endif

extern "C" __global__ void __launch_bounds__(kThreads, MIN_BLOCKS)
    gemm_tiled(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n, int k) {
  __shared__ __align__(16) Tiles tiles;
  const int tiles_across = (n - 1) / TILE_N + 1;
  const int top = static_cast<int>(blockIdx.x) / tiles_across * TILE_M;
  const int left = static_cast<int>(blockIdx.x) % tiles_across * TILE_N;
  const int down = threadIdx.x / kAcross;
  const int across = threadIdx.x % kAcross;

  Patch patch = {};
  accumulate(Source{a, b, m, n, k, top, left}, tiles, down, across, patch);

#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    const int row = top + i / 4 * 4 * kDown + down * 4 + i % 4;
    if (row >= m) continue;
    float* const to = c + static_cast<long long>(row) * n;
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) {
      const int column = left + j / 4 * 4 * kAcross + across * 4 + j % 4;
      if (column < n) to[column] = j % 2 == 0 ? patch[i][j / 2].x : patch[i][j / 2].y;
    }
  }
}
