// Long kernels: unrolled, with many live values, and one that keeps an array in local memory.
template <int N>
__global__ void polynomial(const double* coefficients, const double* x, double* y) {
  double v = x[threadIdx.x], sum = coefficients[0], live[8] = {v, v * v, v + 1, v - 1, v * 3, v / 3, -v, 1 / v};
#pragma unroll
  for (int i = 1; i < N; ++i) {
    sum = sum * v + coefficients[i];
    live[i % 8] = live[(i + 3) % 8] * sum - live[(i + 5) % 8];
  }
  y[threadIdx.x] = sum + live[0] + live[1] + live[2] + live[3] + live[4] + live[5] + live[6] + live[7];
}

template __global__ void polynomial<40>(const double*, const double*, double*);
template __global__ void polynomial<6>(const double*, const double*, double*);

__global__ void stencil(const float* __restrict__ in, float* __restrict__ out, int nx, int ny, int nz) {
  int x = blockIdx.x * blockDim.x + threadIdx.x + 4, y = blockIdx.y * blockDim.y + threadIdx.y + 4;
  const int plane = nx * ny;
  float behind[4], front[4], here;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    behind[k] = in[k * plane + y * nx + x];
    front[k] = in[(k + 5) * plane + y * nx + x];
  }
  here = in[4 * plane + y * nx + x];
  for (int z = 4; z < nz - 4; ++z) {
    float sum = -2.5f * here;
#pragma unroll
    for (int k = 1; k <= 4; ++k) {
      const float* at = in + z * plane + y * nx + x;
      sum += (1.0f / (k * k)) * (at[k] + at[-k] + at[k * nx] + at[-k * nx] + front[k - 1] + behind[4 - k]);
    }
    out[z * plane + y * nx + x] = sum;
#pragma unroll
    for (int k = 0; k < 3; ++k) behind[k] = behind[k + 1];
    behind[3] = here;
    here = front[0];
#pragma unroll
    for (int k = 0; k < 3; ++k) front[k] = front[k + 1];
    if (z + 5 < nz) front[3] = in[(z + 5) * plane + y * nx + x];
  }
}

__global__ void select_smallest(const float* x, float* y, int n) {
  float kept[32];
  for (int i = 0; i < 32; ++i) kept[i] = 1e30f;
  for (int i = 0; i < n; ++i) {
    float v = x[i * blockDim.x + threadIdx.x];
    int place = 31;
    while (place > 0 && kept[place - 1] > v) {
      kept[place] = kept[place - 1];
      --place;
    }
    if (kept[place] > v) kept[place] = v;
  }
  for (int i = 0; i < 32; ++i) y[i * blockDim.x + threadIdx.x] = kept[i];
}
