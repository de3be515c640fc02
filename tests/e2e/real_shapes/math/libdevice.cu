// Mathematics of the device library: single, double, fast, and what needs a table of its own.
__global__ void waves(const float* x, float* y) {
  float v = x[threadIdx.x];
  y[threadIdx.x] = sinf(v) * expf(-v) + powf(fabsf(v), 0.3f) + erff(v) + __logf(v + 2.0f) + rsqrtf(v + 1.0f);
}

__global__ void doubles(const double* x, double* y) {
  double v = x[threadIdx.x];
  y[threadIdx.x] = log1p(v) + atan2(v, 2.0) + cbrt(v) + tgamma(v) + fmod(v, 0.7) + sqrt(v);
}

__global__ void parts(const float* x, float* y, int* exponent) {
  float whole;
  y[threadIdx.x] = modff(x[threadIdx.x], &whole) + frexpf(whole, exponent + threadIdx.x) + (isnan(whole) ? 1.0f : copysignf(whole, -2.0f));
}

template <typename T>
__device__ T gauss(T x) {
  return exp(-x * x / T(2)) / sqrt(T(6.283185307179586));
}

__global__ void bell(const float* x, float* y, const double* u, double* v) {
  y[threadIdx.x] = gauss(x[threadIdx.x]);
  v[threadIdx.x] = gauss(u[threadIdx.x]);
}
