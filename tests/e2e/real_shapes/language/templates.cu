// Templates with external linkage, functors, lambdas that capture, an unnamed namespace: one kernel text, many kernels.
#include <cuda_runtime.h>

namespace shapes {

template <typename T>
struct Plus {
  __device__ T operator()(T a, T b) const { return a + b; }
};

template <typename T>
struct Larger {
  __device__ T operator()(T a, T b) const { return a < b ? b : a; }
};

template <typename T, int Threads, typename Operation>
__global__ void fold(const T* __restrict__ in, T* __restrict__ out, int n, Operation operation) {
  __shared__ T partial[Threads];
  T sum = in[threadIdx.x];
  for (int i = blockIdx.x * Threads + threadIdx.x; i < n; i += gridDim.x * Threads) sum = operation(sum, in[i]);
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int half = Threads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] = operation(partial[threadIdx.x], partial[threadIdx.x + half]);
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}

template <typename Function>
__global__ void each(int n, Function function) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) function(i);
}

}  // namespace shapes

namespace {

__global__ void hidden(int* data) { data[threadIdx.x] ^= 1; }

}  // namespace

void launch(float* x, float* y, double* z, int* data, int n, float a) {
  shapes::fold<float, 128><<<8, 128>>>(x, y, n, shapes::Plus<float>());
  shapes::fold<double, 64><<<8, 64>>>(z, z, n, shapes::Larger<double>());
  shapes::each<<<n / 128, 128>>>(n, [=] __device__(int i) { y[i] = a * x[i] + y[i]; });
  shapes::each<<<n / 128, 128>>>(n, [=] __device__(int i) { data[i] = static_cast<int>(x[i]); });
  hidden<<<1, 128>>>(data);
}
