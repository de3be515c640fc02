// y = factor * x + shift, with the shift in constant memory that the host sets.
#include "app.h"
#include "grid.cuh"
#include "on_device.h"

__constant__ float shift_by;

__global__ void scale(float* values, float factor, long long count) {
  for (long long i = grid_first(); i < count; i += grid_stride()) values[i] = factor * values[i] + shift_by;
}

const char* scale_and_shift(std::vector<float>& values, float factor, float shift) {
  const std::size_t bytes = values.size() * sizeof(float);
  if (cudaError_t error = cudaMemcpyToSymbol(shift_by, &shift, sizeof shift)) return cudaGetErrorString(error);
  Memory memory(bytes);
  memory.fill(values.data(), bytes);
  if (memory.good()) scale<<<64, 256>>>(memory.floats(), factor, static_cast<long long>(values.size()));
  memory.read(values.data(), bytes);
  return memory.complaint();
}
