// Half precision and bfloat16, in pairs, and their conversions: the headers are full of inline assembly.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__global__ void axpy_half(const __half2* x, __half2* y, __half a) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = __hfma2(__half2half2(a), x[i], y[i]);
}

__global__ void softmax_half(__half* x, int n) {
  float top = -1e30f, sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += 32) top = fmaxf(top, __half2float(x[i]));
  for (int lane = 16; lane > 0; lane /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, lane));
  for (int i = threadIdx.x; i < n; i += 32) sum += __expf(__half2float(x[i]) - top);
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  for (int i = threadIdx.x; i < n; i += 32) x[i] = __float2half(__expf(__half2float(x[i]) - top) / sum);
}

__global__ void relu_bfloat(__nv_bfloat162* x) { x[threadIdx.x] = __hmax2(x[threadIdx.x], __float2bfloat162_rn(0.0f)); }

__global__ void narrow(const float4* x, __nv_bfloat16* y, __half* z) {
  float4 v = x[threadIdx.x];
  y[2 * threadIdx.x] = __float2bfloat16(v.x + v.y);
  y[2 * threadIdx.x + 1] = __hadd(__float2bfloat16(v.z), __float2bfloat16(v.w));
  z[threadIdx.x] = hexp(__float2half(v.x)) * __float2half(v.w);
}
