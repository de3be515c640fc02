// Device variables: one that the host sees, a private counter of two kernels, one that is only written, one inside a function.
__device__ unsigned long long total = 7;
static __device__ int progress[3];
static __device__ float last;
static __device__ int ticket;

__device__ __noinline__ int next_ticket() { return atomicAdd(&ticket, 1); }

__global__ void count(const int* x) { atomicAdd(&total, static_cast<unsigned long long>(x[threadIdx.x])); }

__global__ void advance(const int* x) { atomicAdd(&progress[x[threadIdx.x] % 3u], 1); }

__global__ void report(int* out) {
  out[threadIdx.x] = progress[threadIdx.x % 3u] + static_cast<int>(total);
  progress[threadIdx.x % 3u] = 0;
}

__global__ void remember(float* x) {
  x[threadIdx.x] *= 2.0f;
  last = x[threadIdx.x];
}

__global__ void take_a_number(int* out) { out[threadIdx.x] = next_ticket(); }
