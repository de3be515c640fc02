// C = epilogue(A B): one template, forty kernels.
//
// Each block makes a Rows x Columns tile of C. Tiles of A and B pass through static shared memory, DEPTH deep; each
// thread keeps a 4 x 4 patch of C in registers. The forty instances are five tile shapes, both layouts of B, and four
// epilogues: the kind of file where an edit to one epilogue should not cost forty compilations.

#ifndef DEPTH
#define DEPTH 8
#endif

constexpr int kPatch = 4;

struct Size {
  int m, n, k;
};

struct Identity {
  __device__ static float bias(const float*, int) { return 0.0f; }
  __device__ static float apply(float x) { return x; }
};
struct Bias {
  __device__ static float bias(const float* bias, int n) { return bias[n]; }
  __device__ static float apply(float x) { return x; }
};
struct BiasRelu : Bias {
  __device__ static float apply(float x) { return fmaxf(x, 0.0f); }
};
struct BiasSilu : Bias {
  __device__ static float apply(float x) { return x / (1.0f + __expf(-x)); }
};

// B is (k, n), or (n, k) where it is transposed.
struct Normal {
  __device__ static long long at(Size size, int k, int n) { return static_cast<long long>(k) * size.n + n; }
};
struct Transposed {
  __device__ static long long at(Size size, int k, int n) { return static_cast<long long>(n) * size.k + k; }
};

template <int Rows, int Columns, class Layout, class Epilogue>
__global__ void __launch_bounds__(Rows* Columns / (kPatch * kPatch))
    gemm(const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ bias, float* __restrict__ c, Size size) {
  constexpr int kThreads = Rows * Columns / (kPatch * kPatch);
  constexpr int kAcross = Columns / kPatch;
  // One column more than needed: rows of A then start in different banks.
  __shared__ float a_tile[DEPTH][Rows + 1];
  __shared__ float b_tile[DEPTH][Columns];

  const int top = blockIdx.y * Rows;
  const int left = blockIdx.x * Columns;
  const int row = threadIdx.x / kAcross * kPatch;
  const int column = threadIdx.x % kAcross * kPatch;

  float patch[kPatch][kPatch] = {};
  for (int first = 0; first < size.k; first += DEPTH) {
    for (int i = threadIdx.x; i < DEPTH * Rows; i += kThreads) {
      const int k = first + i % DEPTH;
      const int m = top + i / DEPTH;
      a_tile[i % DEPTH][i / DEPTH] = m < size.m && k < size.k ? a[static_cast<long long>(m) * size.k + k] : 0.0f;
    }
    for (int i = threadIdx.x; i < DEPTH * Columns; i += kThreads) {
      const int k = first + i / Columns;
      const int n = left + i % Columns;
      b_tile[i / Columns][i % Columns] = n < size.n && k < size.k ? b[Layout::at(size, k, n)] : 0.0f;
    }
    __syncthreads();

#pragma unroll
    for (int k = 0; k < DEPTH; ++k) {
#pragma unroll
      for (int i = 0; i < kPatch; ++i) {
#pragma unroll
        for (int j = 0; j < kPatch; ++j) patch[i][j] = fmaf(a_tile[k][row + i], b_tile[k][column + j], patch[i][j]);
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int j = 0; j < kPatch; ++j) {
    const int n = left + column + j;
    if (n >= size.n) break;
    const float added = Epilogue::bias(bias, n);
    float* const to = c + static_cast<long long>(top + row) * size.n + n;
    const int rows = min(kPatch, size.m - top - row);
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      if (i < rows) to[static_cast<long long>(i) * size.n] = Epilogue::apply(patch[i][j] + added);
    }
  }
}

#define EPILOGUES(each, rows, columns, layout) \
  each(rows, columns, layout, Identity) each(rows, columns, layout, Bias) each(rows, columns, layout, BiasRelu) \
      each(rows, columns, layout, BiasSilu)
#define LAYOUTS(each, rows, columns) EPILOGUES(each, rows, columns, Normal) EPILOGUES(each, rows, columns, Transposed)
#define SHAPES(each) \
  LAYOUTS(each, 16, 32) LAYOUTS(each, 32, 32) LAYOUTS(each, 32, 64) LAYOUTS(each, 64, 32) LAYOUTS(each, 64, 64)

#define INSTANTIATE(rows, columns, layout, epilogue) \
  template __global__ void gemm<rows, columns, layout, epilogue>(const float*, const float*, const float*, float*, Size);
SHAPES(INSTANTIATE)
