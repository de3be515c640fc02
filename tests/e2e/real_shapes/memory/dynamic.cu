// Dynamic shared memory, of two types under one name, alone and beside static arrays.
extern __shared__ float pool[];
extern __shared__ int4 wide_pool[];

__global__ void scan(float* data, int n) {
  int i = threadIdx.x, from = 0, to = 1;
  pool[i] = i > 0 ? data[i - 1] : 0.0f;
  __syncthreads();
  for (int step = 1; step < n; step *= 2) {
    from = 1 - from;
    to = 1 - to;
    pool[to * n + i] = pool[from * n + i] + (i >= step ? pool[from * n + i - step] : 0.0f);
    __syncthreads();
  }
  data[i] = pool[to * n + i];
}

__global__ void transpose(const float* in, float* out, int width) {
  __shared__ float tile[32][33];
  tile[threadIdx.y][threadIdx.x] = in[(blockIdx.y * 32 + threadIdx.y) * width + blockIdx.x * 32 + threadIdx.x];
  pool[threadIdx.y * 32 + threadIdx.x] = static_cast<float>(threadIdx.x);
  __syncthreads();
  out[(blockIdx.x * 32 + threadIdx.y) * width + blockIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][threadIdx.y] + pool[threadIdx.x * 32 + threadIdx.y];
}

__global__ void shuffle_wide(int4* data, const int* order) {
  wide_pool[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = wide_pool[order[threadIdx.x] & 127];
}
