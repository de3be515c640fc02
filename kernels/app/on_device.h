// Memory of the device that ends with its block, and the error that came first.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

class Memory {
 public:
  explicit Memory(std::size_t bytes) { keep(cudaMalloc(&data_, bytes)); }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  float* floats() const { return static_cast<float*>(data_); }
  bool good() const { return error_ == cudaSuccess; }
  void fill(const void* from, std::size_t bytes) {
    if (good()) keep(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice));
  }
  void read(void* to, std::size_t bytes) {
    if (good()) keep(cudaGetLastError());  // of the launch before
    if (good()) keep(cudaMemcpy(to, data_, bytes, cudaMemcpyDeviceToHost));
  }
  const char* complaint() const { return good() ? nullptr : cudaGetErrorString(error_); }

 private:
  void keep(cudaError_t error) {
    if (good()) error_ = error;
  }

  void* data_ = nullptr;
  cudaError_t error_ = cudaSuccess;
};
