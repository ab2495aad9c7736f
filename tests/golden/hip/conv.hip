// conv: contraction for gfx942
//
// kernel conv(x: f32[b=2,c=5,h=19,w=17], f: f32[o=19,c,r=3,s=3], scale: f32[o]) -> (y: f32[b,o,i=10,j=9]) {
//   t: f32[b,o,i,j] = sum(c,r,s) x[b,c,2 * i + r - 1,2 * j + s - 1 | 0.0] * f[o,c,r,s]
//   y[b,o,i,j] = relu(t[b,o,i,j] * scale[o])
// }
//
// Written by kvc, emitter hip.contraction 1; BLOCK_M=32, BLOCK_N=32, BLOCK_K=64, WAVES_M=2, WAVES_N=2, MI_M=16, SPLIT_K=1, STAGES=2, DIRECT=0.
// Launch: conv(x, f, scale, y), grid 6 x 1 x 1, block 256 x 1 x 1.

#include <hip/hip_runtime.h>
#ifndef KVC_WAVE_SIZE
#define KVC_WAVE_SIZE 64
#if defined(__HIP_DEVICE_COMPILE__)
#define KVC_HAS_MFMA 1
#else
#define KVC_HAS_MFMA 0
#endif
#endif

constexpr int M = 19;  // o
constexpr int N = 180;  // b, i, j
constexpr int K = 45;  // c, r, s
constexpr int BLOCK_M = 32;  // results a workgroup: BLOCK_M x BLOCK_N
constexpr int BLOCK_N = 32;
constexpr int BLOCK_K = 64;  // depth of a tile in LDS
constexpr int TILES_M = (M + BLOCK_M - 1) / BLOCK_M;
constexpr int TILES_N = (N + BLOCK_N - 1) / BLOCK_N;
constexpr int WAVES_M = 2;  // waves of a workgroup: WAVES_M x WAVES_N
constexpr int WAVES_N = 2;
constexpr int LANES = 64;
constexpr int THREADS = WAVES_M * WAVES_N * LANES;
constexpr int MI = 16;  // rows and columns of one matrix instruction
constexpr int GROUPS = LANES / MI;  // of lanes that hold different depths
constexpr int FRAGMENT = 4;  // consecutive depths a lane reads at once
constexpr int FRAGMENTS_M = BLOCK_M / (WAVES_M * MI);  // results a wave, in instructions
constexpr int FRAGMENTS_N = BLOCK_N / (WAVES_N * MI);
constexpr int RESULTS = MI * MI / LANES;  // a lane and instruction
constexpr int A_SLOTS = BLOCK_M * BLOCK_K;  // elements in a tile of A
constexpr int A_LOADS = (A_SLOTS + THREADS - 1) / THREADS;  // of them a thread
constexpr int B_SLOTS = BLOCK_N * BLOCK_K / 4;  // 4 depths of a row in a tile of B
constexpr int B_LOADS = (B_SLOTS + THREADS - 1) / THREADS;  // of them a thread
constexpr int CHUNK = 4;  // 16 bytes of a tile
constexpr int H_SIZE = 19;
constexpr int W_SIZE = 17;

// Where (row, depth) of a tile lies. Chunks of 16 bytes change places so that neither a wave's reads (one chunk of
// neighbouring rows) nor its transposing writes (rows some apart) meet in a bank.
template <int DEPTH>
__device__ __forceinline__ int swizzled(int row, int depth) {
  constexpr int ROW_CHUNKS = DEPTH / CHUNK;
  constexpr int TURNS = ROW_CHUNKS < 8 ? ROW_CHUNKS : 8;
  const int far = ROW_CHUNKS < 8 ? (row & 8) >> 1 | (row & 16) >> 3 : (row >> 3 & 3) << 1;
  const int turn = (row / (8 / TURNS) & (TURNS - 1)) ^ far;
  return ((row * ROW_CHUNKS + depth / CHUNK) ^ turn) * CHUNK + depth % CHUNK;
}

// COUNT elements that move in accesses of up to 16 bytes.
template <class T, int COUNT>
struct alignas(sizeof(T) * COUNT < 16 ? sizeof(T) * COUNT : 16) Pack {
  T lane[COUNT];
  // Lane by lane: an array of packs then stays in registers, which copies of whole structs do not always.
  __device__ __forceinline__ void set(Pack other) {
    #pragma unroll
    for (int v = 0; v < COUNT; ++v) lane[v] = other.lane[v];
  }
};

#if KVC_HAS_MFMA
constexpr int MI_DEPTH = 1;  // depths a lane gives to one instruction
typedef float Operand;
typedef float Results __attribute__((ext_vector_type(4)));
struct alignas(16) Fragment {
  Operand step[FRAGMENT / MI_DEPTH];
};
#else
typedef float Results[RESULTS];
#endif

// The row of a lane's r-th result within one instruction; its column is lane % MI.
__device__ __forceinline__ int result_row(int lane, int r) {
  return r / 4 * (4 * GROUPS) + lane / MI * 4 + r % 4;
}

// The larger value; NaN wins.
template <class T>
__device__ __forceinline__ T maximum(T a, T b) {
  return a > b || a != a ? a : b;
}

__device__ __forceinline__ float relu(float x) {
  return maximum(x, 0.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS)
conv(const float* __restrict__ x, const float* __restrict__ f, const float* __restrict__ scale, float* __restrict__ y) {
  const int thread = threadIdx.x;
  const int m0 = blockIdx.x / TILES_N % TILES_M * BLOCK_M;
  const int n0 = blockIdx.x % TILES_N * BLOCK_N;
  const int lane = thread % LANES;
  const int wave_m = thread / LANES / WAVES_N * (BLOCK_M / WAVES_M);  // first row of this wave
  const int wave_n = thread / LANES % WAVES_N * (BLOCK_N / WAVES_N);  // and column
  alignas(16) __shared__ float a_tile_0[BLOCK_M * BLOCK_K];
  alignas(16) __shared__ float a_tile_1[BLOCK_M * BLOCK_K];
  alignas(16) __shared__ float b_tile_0[BLOCK_N * BLOCK_K];
  alignas(16) __shared__ float b_tile_1[BLOCK_N * BLOCK_K];
  float a_stage[A_LOADS];
  auto load_a = [&](int k0) {
    #pragma unroll
    for (int i = 0; i < A_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = m0 + slot / BLOCK_K;
      const int k = k0 + slot % BLOCK_K;
      if (row < M && k < K) {
        const float f_value = f[row * 45 + k];
        a_stage[i] = f_value;
      } else {
        a_stage[i] = 0.0f;
      }
    }
  };
  auto store_a = [&](float* a_tile) __attribute__((always_inline)) {
    #pragma unroll
    for (int i = 0; i < A_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = slot / BLOCK_K;
      const int k = slot % BLOCK_K;
      a_tile[swizzled<BLOCK_K>(row, k)] = a_stage[i];
    }
  };
  float b_stage[B_LOADS][4];
  auto load_b = [&](int k0) {
    #pragma unroll
    for (int i = 0; i < B_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      #pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int row = n0 + slot % BLOCK_N;
        const int k = k0 + (slot / BLOCK_N) * 4 + step;
        if (row < N && k < K) {
          const float x_value = row / 9 % 10 * 2 + k / 3 % 3 - 1 >= 0 && row / 9 % 10 * 2 + k / 3 % 3 - 1 < H_SIZE && row % 9 * 2 + k % 3 - 1 >= 0 && row % 9 * 2 + k % 3 - 1 < W_SIZE ? x[row / 90 * 1615 + k / 9 * 323 + row / 9 % 10 * 34 + k / 3 % 3 * 17 + row % 9 * 2 + k % 3 - 18] : 0.0f;
          b_stage[i][step] = x_value;
        } else {
          b_stage[i][step] = 0.0f;
        }
      }
    }
  };
  auto store_b = [&](float* b_tile) __attribute__((always_inline)) {
    #pragma unroll
    for (int i = 0; i < B_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = slot % BLOCK_N;
      const int k = slot / BLOCK_N;
      #pragma unroll
      for (int v = 0; v < 1; ++v) {
        Pack<float, 4> chunk;
        #pragma unroll
        for (int step = 0; step < 4; ++step) chunk.lane[step] = b_stage[i][step];
        *reinterpret_cast<Pack<float, 4>*>(&b_tile[swizzled<BLOCK_K>(row, k * 4)]) = chunk;
      }
    }
  };
  Results acc[FRAGMENTS_M][FRAGMENTS_N] = {};
  load_a(0);
  store_a(a_tile_0);
  load_b(0);
  store_b(b_tile_0);
  __syncthreads();
  auto step = [&](int k0, float* a_tile, float* b_tile, float* a_next, float* b_next) __attribute__((always_inline)) {
    if (k0 + BLOCK_K < K) {
      load_a(k0 + BLOCK_K);
      load_b(k0 + BLOCK_K);
    }
#if KVC_HAS_MFMA
    #pragma unroll
    for (int k = 0; k < BLOCK_K; k += GROUPS * FRAGMENT) {
      const int depth = k + lane / MI * FRAGMENT;
      Fragment a_part[FRAGMENTS_M];
      #pragma unroll
      for (int i = 0; i < FRAGMENTS_M; ++i)
        a_part[i] = *reinterpret_cast<const Fragment*>(&a_tile[swizzled<BLOCK_K>((wave_m + i * MI + lane % MI), depth)]);
      Fragment b_part[FRAGMENTS_N];
      #pragma unroll
      for (int i = 0; i < FRAGMENTS_N; ++i)
        b_part[i] = *reinterpret_cast<const Fragment*>(&b_tile[swizzled<BLOCK_K>((wave_n + i * MI + lane % MI), depth)]);
      #pragma unroll
      for (int step = 0; step < FRAGMENT / MI_DEPTH; ++step)
        #pragma unroll
        for (int i = 0; i < FRAGMENTS_M; ++i)
          #pragma unroll
          for (int j = 0; j < FRAGMENTS_N; ++j)
            acc[i][j] = __builtin_amdgcn_mfma_f32_16x16x4f32(
                a_part[i].step[step], b_part[j].step[step], acc[i][j], 0, 0, 0);
    }
#else
    for (int k = 0; k < BLOCK_K; ++k) {
      for (int i = 0; i < FRAGMENTS_M; ++i) {
        #pragma unroll
        for (int r = 0; r < RESULTS; ++r) {
          const float a_value = a_tile[swizzled<BLOCK_K>((wave_m + i * MI + result_row(lane, r)), k)];
          for (int j = 0; j < FRAGMENTS_N; ++j) {
            acc[i][j][r] += a_value * b_tile[swizzled<BLOCK_K>((wave_n + j * MI + lane % MI), k)];
          }
        }
      }
    }
#endif
    if (k0 + BLOCK_K < K) {
      store_a(a_next);
      store_b(b_next);
    }
    __syncthreads();
  };
  for (int k0 = 0; k0 < K; k0 += 2 * BLOCK_K) {
    step(k0, a_tile_0, b_tile_0, a_tile_1, b_tile_1);
    if (k0 + BLOCK_K < K) step(k0 + BLOCK_K, a_tile_1, b_tile_1, a_tile_0, b_tile_0);
  }
  #pragma unroll
  for (int j = 0; j < FRAGMENTS_N; ++j) {
    const int n = n0 + wave_n + j * MI + lane % MI;
    if (n >= N) continue;
    #pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i) {
      #pragma unroll
      for (int r = 0; r < RESULTS; ++r) {
        const int m = m0 + wave_m + i * MI + result_row(lane, r);
        if (m >= M) continue;
        const float scale_value = scale[m];
        y[n / 90 * 1710 + m * 90 + n % 90] = relu(acc[i][j][r] * scale_value);
      }
    }
  }
}
