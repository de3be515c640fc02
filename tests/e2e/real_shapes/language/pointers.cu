// Function pointers: a table that the host may set, a choice made in the kernel, and a virtual function. Recursion, direct and mutual.
#include <new>

typedef float (*Rule)(float, float);

__device__ __noinline__ float slow(float a, float b) { return a / (b + 1.0f); }
__device__ __noinline__ float fast(float a, float b) { return a * b; }
__device__ Rule rules[2] = {slow, fast};

struct Body {
  __device__ virtual ~Body() {}
  __device__ virtual float mass(float r) const { return r; }
};

struct Ball : Body {
  __device__ float mass(float r) const override { return 4.18879f * r * r * r; }
};

struct Disc : Body {
  float height;
  __device__ explicit Disc(float h) : height(h) {}
  __device__ float mass(float r) const override { return 3.14159f * r * r * height; }
};

__device__ __noinline__ int depth(const int* left, const int* right, int node) {
  if (node < 0) return 0;
  int a = depth(left, right, left[node]), b = depth(left, right, right[node]);
  return 1 + (a > b ? a : b);
}

__device__ bool odd(unsigned n);
__device__ __noinline__ bool even(unsigned n) { return n == 0 || odd(n - 1); }
__device__ __noinline__ bool odd(unsigned n) { return n != 0 && even(n - 1); }

__global__ void through_a_table(const float* x, float* y, const int* which) { y[threadIdx.x] = rules[which[threadIdx.x] & 1](x[threadIdx.x], 2.0f); }

__global__ void through_a_choice(const float* x, float* y, int which) {
  Rule rule = which > 3 ? slow : fast;
  y[threadIdx.x] = rule(x[threadIdx.x], y[threadIdx.x]);
}

__global__ void through_a_virtual(float* y, int which) {
  Ball ball;
  Disc disc(2.0f);
  const Body* body = which ? static_cast<const Body*>(&ball) : &disc;
  y[threadIdx.x] = body->mass(y[threadIdx.x]);
}

__global__ void walk(const int* left, const int* right, int* out) { out[threadIdx.x] = depth(left, right, threadIdx.x); }

__global__ void parity(unsigned* data) { data[threadIdx.x] = even(data[threadIdx.x] & 15u); }
