// Launch bounds: on a template, with a minimum of blocks, equal kernels under other bounds, a grid constant.
template <int Threads>
__global__ void __launch_bounds__(Threads) bounded(float* x) {
  x[blockIdx.x * Threads + threadIdx.x] += 1.0f;
}

template __global__ void bounded<64>(float*);
template __global__ void bounded<1024>(float*);

__global__ void __launch_bounds__(256, 4) crowded(const double* x, double* y) {
  double v[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) v[i] = x[i * blockDim.x + threadIdx.x];
#pragma unroll
  for (int i = 0; i < 16; ++i) y[i * blockDim.x + threadIdx.x] = v[(i * 5) % 16] * v[15 - i] + v[0];
}

__global__ void __launch_bounds__(128) same(int* x) { x[threadIdx.x] -= 3; }
__global__ void __launch_bounds__(512) same_but_wider(int* x) { x[threadIdx.x] -= 3; }
__global__ void same_without(int* x) { x[threadIdx.x] -= 3; }

struct Options {
  int limits[20];
  float weights[20];
};

__global__ void by_value(const __grid_constant__ Options options, float* x) { x[threadIdx.x] = options.weights[threadIdx.x % 20] * options.limits[blockIdx.x % 20]; }
