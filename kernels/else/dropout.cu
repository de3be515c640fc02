// Dropout whose mask is never stored: it is drawn again, from the same counter, when the gradient needs it.
//
// The generator is Philox 4x32-10 (Salmon et al., 2011): a block cipher over (seed, element), so any thread draws any
// element's number without having drawn those before it.

#include "grid.cuh"

struct Settings {
  unsigned long long seed;
  float keep;  // the share of elements that stay, above 0
};

// Set by the host with cuMemcpyHtoD before the first launch; both kernels must see the same.
__constant__ Settings settings;

// How many elements were dropped since the host last cleared it.
__device__ unsigned long long dropped;

__device__ static uint4 philox(unsigned long long seed, unsigned long long element) {
  uint4 c = make_uint4(static_cast<unsigned>(element), static_cast<unsigned>(element >> 32), 0u, 0u);
  uint2 key = make_uint2(static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32));
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned high0 = __umulhi(0xD2511F53u, c.x);
    const unsigned high1 = __umulhi(0xCD9E8D57u, c.z);
    c = make_uint4(high1 ^ c.y ^ key.x, 0xCD9E8D57u * c.z, high0 ^ c.w ^ key.y, 0xD2511F53u * c.x);
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return c;
}

// 24 bits are what a float between 0 and 1 can hold evenly.
__device__ static bool stays(unsigned bits) { return static_cast<float>(bits >> 8) * 0x1p-24f < settings.keep; }

__device__ static float4 masked(float4 x, long long quad, unsigned& lost) {
  const uint4 bits = philox(settings.seed, quad);
  const bool keep[4] = {stays(bits.x), stays(bits.y), stays(bits.z), stays(bits.w)};
  const float scale = 1.0f / settings.keep;
  lost += !keep[0] + !keep[1] + !keep[2] + !keep[3];
  return make_float4(keep[0] ? x.x * scale : 0.0f, keep[1] ? x.y * scale : 0.0f, keep[2] ? x.z * scale : 0.0f,
                     keep[3] ? x.w * scale : 0.0f);
}

__global__ void dropout(const float4* __restrict__ x, float4* __restrict__ y, long long quads) {
  unsigned lost = 0;
  for (long long i = grid_first(); i < quads; i += grid_stride()) y[i] = masked(x[i], i, lost);
  // One atomic per warp, not per thread.
  for (int offset = 16; offset > 0; offset /= 2) lost += __shfl_xor_sync(0xffffffffu, lost, offset);
  if (threadIdx.x % 32 == 0 && lost != 0) atomicAdd(&dropped, static_cast<unsigned long long>(lost));
}

__global__ void dropout_backward(const float4* __restrict__ grad, float4* __restrict__ out, long long quads) {
  unsigned ignored = 0;
  for (long long i = grid_first(); i < quads; i += grid_stride()) out[i] = masked(grad[i], i, ignored);
}
