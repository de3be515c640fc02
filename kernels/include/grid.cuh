// Loops over more elements than the grid has threads.
#pragma once

// The first element of this thread, and how far it is to its next one.
__device__ inline long long grid_first() { return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline long long grid_stride() { return static_cast<long long>(gridDim.x) * blockDim.x; }
