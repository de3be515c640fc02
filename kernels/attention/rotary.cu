// Rotary position embedding (Su et al., 2021): pairs of channels are turned by an angle that grows with the position.
//
// Angles reach thousands of radians, where the fast sine is wrong: this takes libdevice's sinf, cosf and expf, with
// their table-driven range reduction.

#include "grid.cuh"

struct Rotary {
  int heads;
  int channels;    // of one head, even
  float log_base;  // ln 10000 in the paper
};

__device__ static float2 turn(float2 pair, float angle) {
  const float s = sinf(angle);
  const float c = cosf(angle);
  return make_float2(pair.x * c - pair.y * s, pair.x * s + pair.y * c);
}

__device__ static float angle_of(const Rotary& shape, int pair, int position) {
  const float share = 2.0f * static_cast<float>(pair) / static_cast<float>(shape.channels);
  return static_cast<float>(position) * expf(-shape.log_base * share);
}

// `x` is (tokens, heads, channels), turned in place. `positions` has one entry per token.
__global__ void rotary(float2* x, const int* __restrict__ positions, int tokens, Rotary shape) {
  const int pairs = shape.channels / 2;
  const long long count = static_cast<long long>(tokens) * shape.heads * pairs;
  for (long long i = grid_first(); i < count; i += grid_stride()) {
    const int token = static_cast<int>(i / (static_cast<long long>(shape.heads) * pairs));
    x[i] = turn(x[i], angle_of(shape, static_cast<int>(i % pairs), positions[token]));
  }
}

// The gradient turns back: the transpose of a rotation is its inverse.
__global__ void rotary_backward(float2* grad, const int* __restrict__ positions, int tokens, Rotary shape) {
  const int pairs = shape.channels / 2;
  const long long count = static_cast<long long>(tokens) * shape.heads * pairs;
  for (long long i = grid_first(); i < count; i += grid_stride()) {
    const int token = static_cast<int>(i / (static_cast<long long>(shape.heads) * pairs));
    grad[i] = turn(grad[i], -angle_of(shape, static_cast<int>(i % pairs), positions[token]));
  }
}
