// Checks that run on the device, between two layers: what is wrong is said where it happens.

#include <cassert>
#include <cstdio>

#include "grid.cuh"

// How many bad values were met since the host last cleared it.
__device__ unsigned offences;

// Counts values that are not finite, and names the first few: a tensor full of NaN should not fill the terminal.
__global__ void check_finite(const float* __restrict__ x, long long count, int layer) {
  constexpr unsigned kShown = 8;
  for (long long i = grid_first(); i < count; i += grid_stride()) {
    if (isfinite(x[i])) continue;
    if (atomicAdd(&offences, 1u) < kShown) printf("layer %d: element %lld is %f\n", layer, i, static_cast<double>(x[i]));
  }
}

// Indexes into a table of `size` rows. A wrong one ends the launch: the gather that follows would read anything.
__global__ void check_indexes(const int* __restrict__ indexes, long long count, int size) {
  for (long long i = grid_first(); i < count; i += grid_stride()) {
    assert(indexes[i] >= 0 && indexes[i] < size);
  }
}

// A probability distribution per row sums to one, to within `slack`.
__global__ void check_rows_sum_to_one(const float* __restrict__ x, long long rows, int columns, float slack) {
  for (long long row = grid_first(); row < rows; row += grid_stride()) {
    float sum = 0.0f;
    for (int i = 0; i < columns; ++i) sum += x[row * columns + i];
    if (fabsf(sum - 1.0f) > slack && atomicAdd(&offences, 1u) == 0) {
      printf("row %lld sums to %f\n", row, static_cast<double>(sum));
    }
  }
}
