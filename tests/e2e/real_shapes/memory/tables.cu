// Read-only tables: a large one of two kernels, a small one, one of strings, one that folds away, and a switch that becomes one.
static const __device__ unsigned char sbox[2048] = {0x63, 0x7c, 0x77, 0x7b, 0xf2, 0x6b, 0x6f, 0xc5, 0x30, 0x01, 0x67, 0x2b, 0xfe, 0xd7, 0xab, 0x76};
static const __device__ int steps[8] = {1, 3, 6, 2, 7, 5, 4, 8};
static const __device__ float folded[3] = {0.25f, 0.5f, 0.125f};
static const __device__ char* const names[3] = {"solid", "liquid", "gas"};

__global__ void encrypt(unsigned char* data) { data[threadIdx.x] = sbox[data[threadIdx.x] + 256 * (blockIdx.x & 7)]; }

__global__ void encrypt_words(uchar4* data) {
  uchar4 word = data[threadIdx.x];
  data[threadIdx.x] = make_uchar4(sbox[word.x], sbox[word.y + 256], sbox[word.z + 512], sbox[word.w + 768]);
}

__global__ void hop(int* data) { data[threadIdx.x] = data[threadIdx.x] * steps[data[threadIdx.x] & 7] + steps[blockIdx.x & 7]; }

__global__ void smooth(float* x) { x[threadIdx.x + 1] = folded[0] * x[threadIdx.x] + folded[1] * x[threadIdx.x + 1] + folded[2] * x[threadIdx.x + 2]; }

__global__ void spell(char* out, int which) {
  for (int i = 0; i < 5 && names[which % 3u][i]; ++i) out[threadIdx.x * 8 + i] = names[which % 3u][i];
}

__global__ void choose(int* data) {
  int value = data[threadIdx.x];
  switch (value & 7) {
    case 0: value = 17; break;
    case 1: value = -4; break;
    case 2: value = 90; break;
    case 3: value = 31; break;
    case 4: value = 8; break;
    case 5: value = 77; break;
    default: value = 3; break;
  }
  data[threadIdx.x] = value;
}
