// What other kernels ask for before they run: a workspace filled, an array copied, a matrix transposed.
//
//   fill_*, copy_f32  grid: any number of blocks, block: any number of threads; each thread goes on where the grid ends
//   transpose_f32     grid: any number of blocks, ceil(rows / 32) * ceil(columns / 32) give each one tile; block: (32, 8)

#include "grid.cuh"

extern "C" __global__ void fill_f32(float* __restrict__ to, float value, long long count) {
  for (long long i = grid_first(); i < count; i += grid_stride()) to[i] = value;
}

extern "C" __global__ void fill_i32(int* __restrict__ to, int value, long long count) {
  for (long long i = grid_first(); i < count; i += grid_stride()) to[i] = value;
}

extern "C" __global__ void copy_f32(const float* __restrict__ from, float* __restrict__ to, long long count) {
  for (long long i = grid_first(); i < count; i += grid_stride()) to[i] = from[i];
}

constexpr int kSide = 32;
constexpr int kLines = 8;  // that a block moves at once

// `from` is rows x columns, `to` is columns x rows. Both are read and written along their lines; shared memory makes the turn.
extern "C" __global__ void __launch_bounds__(kSide* kLines)
    transpose_f32(const float* __restrict__ from, float* __restrict__ to, int rows, int columns) {
  // One column more than needed: a warp that reads a column then meets each bank once.
  __shared__ float tile[kSide][kSide + 1];
  const int across = (columns - 1) / kSide + 1;
  const long long tiles = static_cast<long long>((rows - 1) / kSide + 1) * across;
  for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
    const int top = static_cast<int>(i / across) * kSide;
    const int left = static_cast<int>(i % across) * kSide;

    const int column = left + threadIdx.x;
    for (int line = threadIdx.y; line < kSide; line += kLines) {
      const long long at = static_cast<long long>(top + line) * columns + column;
      if (top + line < rows && column < columns) tile[line][threadIdx.x] = from[at];
    }
    __syncthreads();
    const int row = top + threadIdx.x;
    for (int line = threadIdx.y; line < kSide; line += kLines) {
      const long long at = static_cast<long long>(left + line) * rows + row;
      if (left + line < columns && row < rows) to[at] = tile[threadIdx.x][line];
    }
    __syncthreads();  // the next tile must not overwrite what slow warps still read
  }
}
