// Unions, bit fields, packed and aligned structs passed by value; kernels with C names.
#include <cuda_runtime.h>

union Word {
  unsigned bits;
  float value;
  struct {
    unsigned mantissa : 23, exponent : 8, sign : 1;
  } parts;
  uchar4 bytes;
};

struct __align__(16) Ray {
  float3 from, to;
  Word tag;
  unsigned char kind;
};

struct Scene {
  Ray rays[4];
  int count;
  const float* weights;
};

extern "C" __global__ void exponents(const float* x, int* out) {
  Word word;
  word.value = x[threadIdx.x];
  out[threadIdx.x] = static_cast<int>(word.parts.exponent) - 127 + word.bytes.x;
}

extern "C" __global__ void trace(Scene scene, float* out) {
  float sum = 0.0f;
  for (int i = 0; i < scene.count; ++i) {
    const Ray& ray = scene.rays[i & 3];
    float3 d = make_float3(ray.to.x - ray.from.x, ray.to.y - ray.from.y, ray.to.z - ray.from.z);
    float length = sqrtf(d.x * d.x + d.y * d.y + d.z * d.z);
    sum += ray.tag.parts.sign ? -length : length * scene.weights[ray.kind];
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
