// Monte Carlo without a library: a counter-based generator, Box and Muller, a walk in a local array.
#include <cuda_runtime.h>

__device__ __forceinline__ uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 7; ++round) {
    unsigned high0 = __umulhi(0xD2511F53u, counter.x), high1 = __umulhi(0xCD9E8D57u, counter.z);
    counter = make_uint4(high1 ^ counter.y ^ key.x, 0xCD9E8D57u * counter.z, high0 ^ counter.w ^ key.y, 0xD2511F53u * counter.x);
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return counter;
}

__device__ float2 normal(uint4 bits) {
  float radius = sqrtf(-2.0f * logf((bits.x + 1.0f) * 2.3283064e-10f)), angle = bits.y * 1.4629180e-9f;
  return make_float2(radius * cosf(angle), radius * sinf(angle));
}

__global__ void estimate_pi(unsigned* hits, unsigned seed, int draws) {
  unsigned inside = 0, state = seed ^ (blockIdx.x * blockDim.x + threadIdx.x) * 2654435761u;
  for (int i = 0; i < draws; ++i) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    float x = (state >> 16) / 65536.0f, y = (state & 0xffffu) / 65536.0f;
    inside += x * x + y * y < 1.0f;
  }
  atomicAdd(hits, inside);
}

__global__ void price(float* out, float drift, float volatility, int steps, uint2 key) {
  float path[24];
  unsigned id = blockIdx.x * blockDim.x + threadIdx.x;
  float value = 100.0f;
  for (int i = 0; i < steps && i < 24; ++i) {
    float2 z = normal(philox(make_uint4(id, i, 0, 0), key));
    value *= expf(drift + volatility * (i & 1 ? z.x : z.y));
    path[i] = value;
  }
  float best = 0.0f;
  for (int i = 0; i < steps && i < 24; ++i) best = fmaxf(best, path[(i * 7) % 24]);
  out[id] = fmaxf(best - 105.0f, 0.0f);
}
