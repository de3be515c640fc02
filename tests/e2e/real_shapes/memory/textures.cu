// Texture and surface objects, read-only loads, cache hints and vectors.
#include <cuda_runtime.h>

__global__ void sample(cudaTextureObject_t image, float* out, int width, float angle) {
  float u = (blockIdx.x * blockDim.x + threadIdx.x) / static_cast<float>(width) - 0.5f, v = blockIdx.y / static_cast<float>(width) - 0.5f;
  float s = __sinf(angle), c = __cosf(angle);
  out[blockIdx.y * width + blockIdx.x * blockDim.x + threadIdx.x] = tex2D<float>(image, u * c - v * s + 0.5f, v * c + u * s + 0.5f);
}

__global__ void fetch(cudaTextureObject_t line, const float4* __restrict__ weights, float4* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float4 value = tex1Dfetch<float4>(line, i), weight = __ldg(weights + i);
  out[i] = make_float4(value.x * weight.x, value.y * weight.y, value.z * weight.z, value.w * weight.w);
}

__global__ void paint(cudaSurfaceObject_t canvas, unsigned colour) { surf2Dwrite(colour, canvas, static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) * sizeof(unsigned)), static_cast<int>(blockIdx.y)); }
