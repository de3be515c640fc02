// What the fast kernels must agree with, written as the formulas are. For comparing on a bench: the module is bypassed,
// so a program that is shipped does not hold them.

#include "grid.cuh"

__global__ void reference_gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  for (long long i = grid_first(); i < static_cast<long long>(m) * n; i += grid_stride()) {
    double sum = 0.0;
    for (int j = 0; j < k; ++j) sum += static_cast<double>(a[i / n * k + j]) * b[static_cast<long long>(j) * n + i % n];
    c[i] = static_cast<float>(sum);
  }
}

// One thread per query of one head. `scores` is a scratch of length * length.
__global__ void reference_attention(const float* q, const float* k, const float* v, double* scores, float* out, int length, int head) {
  for (long long row = grid_first(); row < length; row += grid_stride()) {
    double* const mine = scores + row * length;
    double highest = -INFINITY;
    for (int j = 0; j < length; ++j) {
      double sum = 0.0;
      for (int d = 0; d < head; ++d) sum += static_cast<double>(q[row * head + d]) * k[static_cast<long long>(j) * head + d];
      mine[j] = sum / sqrt(static_cast<double>(head));
      highest = fmax(highest, mine[j]);
    }
    double total = 0.0;
    for (int j = 0; j < length; ++j) total += mine[j] = exp(mine[j] - highest);
    for (int d = 0; d < head; ++d) {
      double sum = 0.0;
      for (int j = 0; j < length; ++j) sum += mine[j] * v[static_cast<long long>(j) * head + d];
      out[row * head + d] = static_cast<float>(sum / total);
    }
  }
}
