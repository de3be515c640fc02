// Cooperative groups: blocks, tiles, and whoever happens to be here.
#include <cooperative_groups.h>

namespace cg = cooperative_groups;

template <typename Group>
__device__ float sum_of(const Group& group, float value) {
  for (int offset = group.size() / 2; offset > 0; offset /= 2) value += group.shfl_down(value, offset);
  return value;
}

__global__ void tiles(const float* x, float* y) {
  cg::thread_block block = cg::this_thread_block();
  auto tile = cg::tiled_partition<16>(block);
  float sum = sum_of(tile, x[block.group_index().x * block.size() + block.thread_rank()]);
  if (tile.thread_rank() == 0) y[block.thread_rank() / 16] = sum;
  block.sync();
}

__global__ void whoever(int* counter, const int* x) {
  if (x[threadIdx.x] > 0) {
    cg::coalesced_group here = cg::coalesced_threads();
    if (here.thread_rank() == 0) atomicAdd(counter, static_cast<int>(here.size()));
  }
}
