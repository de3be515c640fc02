// What talks to the host: printf with every kind of argument, assert, a trap, allocation on the device, clocks.
#include <assert.h>
#include <stdio.h>

__global__ void say(const float* x, const char* what) {
  if (threadIdx.x == 0) printf("%s: block %d has %f and %lld%%\n", what, blockIdx.x, x[blockIdx.x], static_cast<long long>(blockDim.x));
  if (x[threadIdx.x] < 0) printf("negative\n");
}

__global__ void check(const int* x, int* y, int n) {
  assert(n > 0 && "nothing to do");
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (x[i] == 0x7fffffff) __trap();
  y[i] = x[i] / n;
}

__global__ void grow(int** out, int n) {
  int* mine = static_cast<int*>(malloc(n * sizeof(int)));
  if (mine) {
    for (int i = 0; i < n; ++i) mine[i] = i;
    if (threadIdx.x & 1) free(mine);
  }
  out[threadIdx.x] = threadIdx.x & 1 ? nullptr : mine;
}

__global__ void spin(long long* out, unsigned long long until) {
  long long begun = clock64();
  while (static_cast<unsigned long long>(clock64() - begun) < until) __nanosleep(100);
  out[blockIdx.x] = clock64() - begun;
}
