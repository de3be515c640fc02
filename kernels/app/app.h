// What the program's two .cu do for it. Each function gives null, or what CUDA said against it.
#pragma once

#include <vector>

struct Moments {
  float sum;
  float largest;
};

const char* scale_and_shift(std::vector<float>& values, float factor, float shift);
const char* moments_of(const std::vector<float>& values, Moments& result);
