// conv: contraction packed for gfx942
//
// kernel conv(x: f16[b=2,c=16,h=11,w=9], f: f16[o=32,c,r=3,s=3], g: f16[o]) -> (y: f16[b,o,i=6,j=9]) {
//   t: f32[b,o,i,j] = sum(c,r,s) x[b,c,i * 2 + r - 1,j + s * 2 - 2 | 0.0] * f[o,c,r,s]
//   y[b,o,i,j] = relu(t[b,o,i,j] + g[o])
// }
//
// Written by kvc, emitter hip.contraction_packed 1; BLOCK_M=32, BLOCK_N=32, BLOCK_K=128, WAVES_M=2, WAVES_N=2, MI_M=16, SPLIT_K=1, STAGES=2, DIRECT=0, TERMS=1.
// Launch ahead: conv_pack_f(f, f_packed), grid 3 x 1 x 1, block 256 x 1 x 1.
// Launch ahead: conv_pack_x(x, x_packed), grid 3 x 1 x 1, block 256 x 1 x 1.
// Launch: conv(g, y, f_packed, x_packed), grid 4 x 1 x 1, block 256 x 1 x 1.
// Scratch: f_packed, 4608 elements of f16.
// Scratch: x_packed, 5408 elements of f16.

#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>
#ifndef KVC_WAVE_SIZE
#define KVC_WAVE_SIZE 64
#if defined(__HIP_DEVICE_COMPILE__)
#define KVC_HAS_MFMA 1
#else
#define KVC_HAS_MFMA 0
#endif
#endif

constexpr int COPY_THREADS = 256;  // of the launches that copy operands
constexpr int M = 32;  // o
constexpr int N = 108;  // b, i, j
constexpr int K = 144;  // r, s, c
constexpr int BLOCK_M = 32;  // results a workgroup: BLOCK_M x BLOCK_N
constexpr int BLOCK_N = 32;
constexpr int BLOCK_K = 128;  // depth of a tile in LDS
constexpr int TILES_M = (M + BLOCK_M - 1) / BLOCK_M;
constexpr int TILES_N = (N + BLOCK_N - 1) / BLOCK_N;
constexpr int WAVES_M = 2;  // waves of a workgroup: WAVES_M x WAVES_N
constexpr int WAVES_N = 2;
constexpr int LANES = 64;
constexpr int THREADS = WAVES_M * WAVES_N * LANES;
constexpr int MI = 16;  // rows and columns of one matrix instruction
constexpr int GROUPS = LANES / MI;  // of lanes that hold different depths
constexpr int FRAGMENT = 8;  // consecutive depths a lane reads at once
constexpr int FRAGMENTS_M = BLOCK_M / (WAVES_M * MI);  // results a wave, in instructions
constexpr int FRAGMENTS_N = BLOCK_N / (WAVES_N * MI);
constexpr int RESULTS = MI * MI / LANES;  // a lane and instruction
constexpr int A_SLOTS = BLOCK_M * BLOCK_K / 8;  // packs of 8 along the depth in a tile of A
constexpr int A_LOADS = (A_SLOTS + THREADS - 1) / THREADS;  // of them a thread
constexpr int B_SLOTS = BLOCK_N * BLOCK_K / 8;  // packs of 8 along the depth in a tile of B
constexpr int B_LOADS = (B_SLOTS + THREADS - 1) / THREADS;  // of them a thread
constexpr int CHUNK = 8;  // 16 bytes of a tile
constexpr int H_SIZE = 11;
constexpr int W_SIZE = 9;

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

#if KVC_HAS_MFMA
constexpr int MI_DEPTH = 4;  // depths a lane gives to one instruction
typedef _Float16 Operand __attribute__((ext_vector_type(4)));
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

extern "C" __global__ void __launch_bounds__(COPY_THREADS)
conv_pack_f(const __half* __restrict__ f, __half* __restrict__ f_packed) {
  const int thread = blockIdx.x * COPY_THREADS + threadIdx.x;
  if (thread >= 576) return;
  const int chunk = thread % 2;  // of 8 elements along c
  const int row = thread / 2;
  Pack<__half, 8> f_packed_pack;
  #pragma unroll
  for (int v = 0; v < 8; ++v) {
    const float f_value = __half2float(f[row / 9 * 144 + chunk * 72 + v * 9 + row % 9]);
    const float f_packed_value = __half2float(__float2half(f_value));
    f_packed_pack.lane[v] = __float2half(f_packed_value);
  }
  *reinterpret_cast<Pack<__half, 8>*>(f_packed + row * 16 + chunk * 8) = f_packed_pack;
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS)
conv_pack_x(const __half* __restrict__ x, __half* __restrict__ x_packed) {
  const int thread = blockIdx.x * COPY_THREADS + threadIdx.x;
  if (thread >= 676) return;
  const int chunk = thread % 2;  // of 8 elements along c
  const int row = thread / 2;
  Pack<__half, 8> x_packed_pack;
  #pragma unroll
  for (int v = 0; v < 8; ++v) {
    const float x_value = row / 13 % 13 - 1 >= 0 && row / 13 % 13 - 1 < H_SIZE && row % 13 - 2 >= 0 && row % 13 - 2 < W_SIZE ? __half2float(x[row / 169 * 1584 + chunk * 792 + v * 99 + row / 13 % 13 * 9 + row % 13 - 11]) : 0.0f;
    const float x_packed_value = __half2float(__float2half(x_value));
    x_packed_pack.lane[v] = __float2half(x_packed_value);
  }
  *reinterpret_cast<Pack<__half, 8>*>(x_packed + row * 16 + chunk * 8) = x_packed_pack;
}

extern "C" __global__ void __launch_bounds__(THREADS)
conv(const __half* __restrict__ g,
     __half* __restrict__ y,
     const __half* __restrict__ f_packed,
     const __half* __restrict__ x_packed) {
  const int thread = threadIdx.x;
  const int m0 = blockIdx.x / TILES_N % TILES_M * BLOCK_M;
  const int n0 = blockIdx.x % TILES_N * BLOCK_N;
  const int lane = thread % LANES;
  const int wave_m = thread / LANES / WAVES_N * (BLOCK_M / WAVES_M);  // first row of this wave
  const int wave_n = thread / LANES % WAVES_N * (BLOCK_N / WAVES_N);  // and column
  alignas(16) __shared__ __half a_tile_0[BLOCK_M * BLOCK_K];
  alignas(16) __shared__ __half a_tile_1[BLOCK_M * BLOCK_K];
  alignas(16) __shared__ __half b_tile_0[BLOCK_N * BLOCK_K];
  alignas(16) __shared__ __half b_tile_1[BLOCK_N * BLOCK_K];
  Pack<__half, 8> a_stage[A_LOADS];
  auto load_a = [&](int k0) {
    #pragma unroll
    for (int i = 0; i < A_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = m0 + slot / (BLOCK_K / 8);
      const int k = k0 / 8 + slot % (BLOCK_K / 8);
      if (k < K / 8) {
        a_stage[i].set(*reinterpret_cast<const Pack<__half, 8>*>(f_packed + row * 144 + k * 8));
      } else {
        a_stage[i] = Pack<__half, 8>{};
      }
    }
  };
  auto store_a = [&](__half* a_tile) __attribute__((always_inline)) {
    #pragma unroll
    for (int i = 0; i < A_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = slot / (BLOCK_K / 8);
      const int k = slot % (BLOCK_K / 8);
      *reinterpret_cast<Pack<__half, 8>*>(&a_tile[swizzled<BLOCK_K>(row, k * 8)]) = a_stage[i];
    }
  };
  Pack<__half, 8> b_stage[B_LOADS];
  auto load_b = [&](int k0) {
    #pragma unroll
    for (int i = 0; i < B_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = n0 + slot / (BLOCK_K / 8);
      const int k = k0 / 8 + slot % (BLOCK_K / 8);
      if (row < N && k < K / 8) {
        b_stage[i].set(*reinterpret_cast<const Pack<__half, 8>*>(x_packed + row / 54 * 2704 + row / 9 % 6 * 416 + k / 6 * 208 + row % 9 * 16 + k / 2 % 3 * 32 + k % 2 * 8));
      } else {
        b_stage[i] = Pack<__half, 8>{};
      }
    }
  };
  auto store_b = [&](__half* b_tile) __attribute__((always_inline)) {
    #pragma unroll
    for (int i = 0; i < B_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = slot / (BLOCK_K / 8);
      const int k = slot % (BLOCK_K / 8);
      *reinterpret_cast<Pack<__half, 8>*>(&b_tile[swizzled<BLOCK_K>(row, k * 8)]) = b_stage[i];
    }
  };
  Results acc[FRAGMENTS_M][FRAGMENTS_N] = {};
  load_a(0);
  store_a(a_tile_0);
  load_b(0);
  store_b(b_tile_0);
  __syncthreads();
  auto step = [&](int k0, __half* a_tile, __half* b_tile, __half* a_next, __half* b_next) __attribute__((always_inline)) {
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
            acc[i][j] = __builtin_amdgcn_mfma_f32_16x16x16f16(
                a_part[i].step[step], b_part[j].step[step], acc[i][j], 0, 0, 0);
    }
#else
    for (int k = 0; k < BLOCK_K; ++k) {
      for (int i = 0; i < FRAGMENTS_M; ++i) {
        #pragma unroll
        for (int r = 0; r < RESULTS; ++r) {
          const float a_value = __half2float(a_tile[swizzled<BLOCK_K>((wave_m + i * MI + result_row(lane, r)), k)]);
          for (int j = 0; j < FRAGMENTS_N; ++j) {
            acc[i][j][r] += a_value * __half2float(b_tile[swizzled<BLOCK_K>((wave_n + j * MI + lane % MI), k)]);
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
        const float g_value = __half2float(g[m]);
        y[n / 54 * 1728 + m * 54 + n % 54] = __float2half(relu(acc[i][j][r] + g_value));
      }
    }
  }
}
