// Attention without its score matrix: softmax(Q Kᵀ / √d) V in one pass over the keys.
//
// The softmax is kept online (Milakov and Gimelshein, 2018; Dao et al., 2022): a running maximum and a running sum per
// query, and an accumulator that is rescaled whenever the maximum grows. Each thread owns one query; tiles of keys and
// values pass through dynamic shared memory, so that a block reads them once for all of its queries.
//
//   grid   (ceil(length / kQueries), heads, batch)
//   block  kQueries threads
//   shared 2 * kKeys * Head * sizeof(float) bytes, given at launch

constexpr int kQueries = 128;
constexpr int kKeys = 32;

struct Shape {
  int heads;
  int length;  // of queries and of keys
};

extern __shared__ float4 tiles[];

template <int Head>
__device__ void load_tile(float4* tile, const float* rows, int count) {
  constexpr int kQuads = Head / 4;
  const float4* from = reinterpret_cast<const float4*>(rows);
  for (int i = threadIdx.x; i < kKeys * kQuads; i += kQueries) {
    if (i / kQuads < count) tile[i] = from[i];
  }
}

template <int Head>
__device__ float dot(const float4 (&query)[Head / 4], const float4* key) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < Head / 4; ++i) {
    const float4 k = key[i];
    sum = fmaf(query[i].x, k.x, fmaf(query[i].y, k.y, fmaf(query[i].z, k.z, fmaf(query[i].w, k.w, sum))));
  }
  return sum;
}

__device__ inline float4 scale_add(float4 acc, float scale, float weight, float4 v) {
  return make_float4(fmaf(acc.x, scale, weight * v.x), fmaf(acc.y, scale, weight * v.y), fmaf(acc.z, scale, weight * v.z),
                     fmaf(acc.w, scale, weight * v.w));
}

template <int Head, bool Causal>
__global__ void __launch_bounds__(kQueries) attention(const float* __restrict__ queries, const float* __restrict__ keys,
                                                      const float* __restrict__ values, float* __restrict__ out, Shape shape) {
  constexpr int kQuads = Head / 4;
  float4* const key_tile = tiles;
  float4* const value_tile = tiles + kKeys * kQuads;

  const long long plane = (static_cast<long long>(blockIdx.z) * shape.heads + blockIdx.y) * shape.length * Head;
  const int row = blockIdx.x * kQueries + threadIdx.x;
  const bool live = row < shape.length;

  float4 query[kQuads];
  float4 acc[kQuads];
  const float scale = rsqrtf(static_cast<float>(Head));
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const float4 q = live ? reinterpret_cast<const float4*>(queries + plane + static_cast<long long>(row) * Head)[i]
                          : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    query[i] = make_float4(q.x * scale, q.y * scale, q.z * scale, q.w * scale);
    acc[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }

  float highest = -INFINITY;
  float total = 0.0f;
  // A causal block never looks past its own last query, so whole tiles are left out, not masked.
  const int end = Causal ? min(shape.length, static_cast<int>(blockIdx.x + 1) * kQueries) : shape.length;

  for (int first = 0; first < end; first += kKeys) {
    const int count = min(kKeys, shape.length - first);
    __syncthreads();
    load_tile<Head>(key_tile, keys + plane + static_cast<long long>(first) * Head, count);
    load_tile<Head>(value_tile, values + plane + static_cast<long long>(first) * Head, count);
    __syncthreads();

    const int visible = Causal ? min(count, row - first + 1) : count;
    for (int j = 0; j < visible; ++j) {
      const float score = dot<Head>(query, key_tile + j * kQuads);
      const float raised = fmaxf(highest, score);
      const float decay = __expf(highest - raised);  // 0 at the first key, where highest is -inf
      const float weight = __expf(score - raised);
      highest = raised;
      total = fmaf(total, decay, weight);
#pragma unroll
      for (int i = 0; i < kQuads; ++i) acc[i] = scale_add(acc[i], decay, weight, value_tile[j * kQuads + i]);
    }
  }

  if (!live) return;
  const float share = 1.0f / total;
  float4* const to = reinterpret_cast<float4*>(out + plane + static_cast<long long>(row) * Head);
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    to[i] = make_float4(acc[i].x * share, acc[i].y * share, acc[i].z * share, acc[i].w * share);
  }
}

#define INSTANTIATE(head, causal) \
  template __global__ void attention<head, causal>(const float*, const float*, const float*, float*, Shape);
INSTANTIATE(32, false)
INSTANTIATE(32, true)
INSTANTIATE(64, false)
INSTANTIATE(64, true)
