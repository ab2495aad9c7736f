// matmul: contraction packed for gfx942
//
// kernel matmul(x: f32[m=70,k=100], y: f32[k,n=90], b: f32[n]) -> (z: f32[m,n]) {
//   t: f32[m,n] = sum(k) x[m,k] * y[k,n]
//   z[m,n] = relu(t[m,n] + b[n])
// }
//
// Written by kvc, emitter hip.contraction_packed 1; BLOCK_M=32, BLOCK_N=32, BLOCK_K=64, WAVES_M=2, WAVES_N=2, MI_M=16, SPLIT_K=1, STAGES=1, DIRECT=0, TERMS=3.
// Launch ahead: matmul_pack_x(x, x_high, x_middle, x_low), grid 4 x 1 x 1, block 256 x 1 x 1.
// Launch ahead: matmul_pack_y(y, y_high, y_middle, y_low), grid 5 x 1 x 1, block 256 x 1 x 1.
// Launch: matmul(b, z, x_high, x_middle, x_low, y_high, y_middle, y_low, special), grid 9 x 1 x 1, block 256 x 1 x 1.
// Launch: matmul_repair(x, y, b, z, special), grid 9 x 1 x 1, block 256 x 1 x 1.
// Scratch: x_high, 7280 elements of bf16.
// Scratch: x_middle, 7280 elements of bf16.
// Scratch: x_low, 7280 elements of bf16.
// Scratch: y_high, 9360 elements of bf16.
// Scratch: y_middle, 9360 elements of bf16.
// Scratch: y_low, 9360 elements of bf16.
// Scratch: special, 9 elements of i32.

#include <hip/hip_runtime.h>
#include <hip/hip_bf16.h>
#ifndef KVC_WAVE_SIZE
#define KVC_WAVE_SIZE 64
#if defined(__HIP_DEVICE_COMPILE__)
#define KVC_HAS_MFMA 1
#else
#define KVC_HAS_MFMA 0
#endif
#endif

constexpr int COPY_THREADS = 256;  // of the launches that copy operands
constexpr int M = 70;  // m
constexpr int N = 90;  // n
constexpr int K = 104;  // k_
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
constexpr int FRAGMENT = 8;  // consecutive depths a lane reads at once
constexpr int FRAGMENTS_M = BLOCK_M / (WAVES_M * MI);  // results a wave, in instructions
constexpr int FRAGMENTS_N = BLOCK_N / (WAVES_N * MI);
constexpr int RESULTS = MI * MI / LANES;  // a lane and instruction
constexpr int A_SLOTS = BLOCK_M * BLOCK_K / 8;  // packs of 8 along the depth in a tile of A
constexpr int A_LOADS = (A_SLOTS + THREADS - 1) / THREADS;  // of them a thread
constexpr int B_SLOTS = BLOCK_N * BLOCK_K / 8;  // packs of 8 along the depth in a tile of B
constexpr int B_LOADS = (B_SLOTS + THREADS - 1) / THREADS;  // of them a thread
constexpr int CHUNK = 8;  // 16 bytes of a tile
constexpr int GROUP_M = 8;
constexpr int K_SIZE = 100;

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
typedef short Operand __attribute__((ext_vector_type(4)));
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
matmul_pack_x(const float* __restrict__ x,
              __hip_bfloat16* __restrict__ x_high,
              __hip_bfloat16* __restrict__ x_middle,
              __hip_bfloat16* __restrict__ x_low) {
  const int thread = blockIdx.x * COPY_THREADS + threadIdx.x;
  if (thread >= 910) return;
  const int chunk = thread % 13;  // of 8 elements along k_
  const int row = thread / 13;
  Pack<__hip_bfloat16, 8> x_high_pack;
  Pack<__hip_bfloat16, 8> x_middle_pack;
  Pack<__hip_bfloat16, 8> x_low_pack;
  #pragma unroll
  for (int v = 0; v < 8; ++v) {
    const float x_value = chunk * 8 + v < K_SIZE ? x[row * 100 + chunk * 8 + v] : 0.0f;
    const float x_high_value = __bfloat162float(__float2bfloat16(x_value));
    x_high_pack.lane[v] = __float2bfloat16(x_high_value);
    const float x_middle_value = __bfloat162float(__float2bfloat16(x_value - x_high_value));
    x_middle_pack.lane[v] = __float2bfloat16(x_middle_value);
    const float x_low_value = __bfloat162float(__float2bfloat16(x_value - x_high_value - x_middle_value));
    x_low_pack.lane[v] = __float2bfloat16(x_low_value);
  }
  *reinterpret_cast<Pack<__hip_bfloat16, 8>*>(x_high + row * 104 + chunk * 8) = x_high_pack;
  *reinterpret_cast<Pack<__hip_bfloat16, 8>*>(x_middle + row * 104 + chunk * 8) = x_middle_pack;
  *reinterpret_cast<Pack<__hip_bfloat16, 8>*>(x_low + row * 104 + chunk * 8) = x_low_pack;
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS)
matmul_pack_y(const float* __restrict__ y,
              __hip_bfloat16* __restrict__ y_high,
              __hip_bfloat16* __restrict__ y_middle,
              __hip_bfloat16* __restrict__ y_low) {
  const int thread = blockIdx.x * COPY_THREADS + threadIdx.x;
  if (thread >= 1170) return;
  const int chunk = thread / 90;  // of 8 elements along k_
  const int row = thread % 90;
  Pack<__hip_bfloat16, 8> y_high_pack;
  Pack<__hip_bfloat16, 8> y_middle_pack;
  Pack<__hip_bfloat16, 8> y_low_pack;
  #pragma unroll
  for (int v = 0; v < 8; ++v) {
    const float y_value = chunk * 8 + v < K_SIZE ? y[chunk * 720 + v * 90 + row] : 0.0f;
    const float y_high_value = __bfloat162float(__float2bfloat16(y_value));
    y_high_pack.lane[v] = __float2bfloat16(y_high_value);
    const float y_middle_value = __bfloat162float(__float2bfloat16(y_value - y_high_value));
    y_middle_pack.lane[v] = __float2bfloat16(y_middle_value);
    const float y_low_value = __bfloat162float(__float2bfloat16(y_value - y_high_value - y_middle_value));
    y_low_pack.lane[v] = __float2bfloat16(y_low_value);
  }
  *reinterpret_cast<Pack<__hip_bfloat16, 8>*>(y_high + row * 104 + chunk * 8) = y_high_pack;
  *reinterpret_cast<Pack<__hip_bfloat16, 8>*>(y_middle + row * 104 + chunk * 8) = y_middle_pack;
  *reinterpret_cast<Pack<__hip_bfloat16, 8>*>(y_low + row * 104 + chunk * 8) = y_low_pack;
}

extern "C" __global__ void __launch_bounds__(THREADS)
matmul(const float* __restrict__ b,
       float* __restrict__ z,
       const __hip_bfloat16* __restrict__ x_high,
       const __hip_bfloat16* __restrict__ x_middle,
       const __hip_bfloat16* __restrict__ x_low,
       const __hip_bfloat16* __restrict__ y_high,
       const __hip_bfloat16* __restrict__ y_middle,
       const __hip_bfloat16* __restrict__ y_low,
       int* __restrict__ special) {
  const int thread = threadIdx.x;
  const int item = blockIdx.x % (TILES_M * TILES_N);  // GROUP_M rows of tiles at a time
  const int first = item / (GROUP_M * TILES_N) * GROUP_M;
  const int rest = TILES_M - first < GROUP_M ? TILES_M - first : GROUP_M;
  const int m0 = (first + item % (GROUP_M * TILES_N) % rest) * BLOCK_M;
  const int n0 = item % (GROUP_M * TILES_N) / rest * BLOCK_N;
  const int lane = thread % LANES;
  const int wave_m = thread / LANES / WAVES_N * (BLOCK_M / WAVES_M);  // first row of this wave
  const int wave_n = thread / LANES % WAVES_N * (BLOCK_N / WAVES_N);  // and column
  alignas(16) __shared__ __hip_bfloat16 a_high_tile[BLOCK_M * BLOCK_K];
  alignas(16) __shared__ __hip_bfloat16 a_middle_tile[BLOCK_M * BLOCK_K];
  alignas(16) __shared__ __hip_bfloat16 a_low_tile[BLOCK_M * BLOCK_K];
  alignas(16) __shared__ __hip_bfloat16 b_high_tile[BLOCK_N * BLOCK_K];
  alignas(16) __shared__ __hip_bfloat16 b_middle_tile[BLOCK_N * BLOCK_K];
  alignas(16) __shared__ __hip_bfloat16 b_low_tile[BLOCK_N * BLOCK_K];
  Pack<__hip_bfloat16, 8> a_high_stage[A_LOADS];
  auto load_a_high = [&](int k0) {
    #pragma unroll
    for (int i = 0; i < A_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = m0 + slot / (BLOCK_K / 8);
      const int k = k0 / 8 + slot % (BLOCK_K / 8);
      if (row < M && k < K / 8) {
        a_high_stage[i].set(*reinterpret_cast<const Pack<__hip_bfloat16, 8>*>(x_high + row * 104 + k * 8));
      } else {
        a_high_stage[i] = Pack<__hip_bfloat16, 8>{};
      }
    }
  };
  auto store_a_high = [&]() {
    #pragma unroll
    for (int i = 0; i < A_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = slot / (BLOCK_K / 8);
      const int k = slot % (BLOCK_K / 8);
      *reinterpret_cast<Pack<__hip_bfloat16, 8>*>(&a_high_tile[swizzled<BLOCK_K>(row, k * 8)]) = a_high_stage[i];
    }
  };
  Pack<__hip_bfloat16, 8> a_middle_stage[A_LOADS];
  auto load_a_middle = [&](int k0) {
    #pragma unroll
    for (int i = 0; i < A_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = m0 + slot / (BLOCK_K / 8);
      const int k = k0 / 8 + slot % (BLOCK_K / 8);
      if (row < M && k < K / 8) {
        a_middle_stage[i].set(*reinterpret_cast<const Pack<__hip_bfloat16, 8>*>(x_middle + row * 104 + k * 8));
      } else {
        a_middle_stage[i] = Pack<__hip_bfloat16, 8>{};
      }
    }
  };
  auto store_a_middle = [&]() {
    #pragma unroll
    for (int i = 0; i < A_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = slot / (BLOCK_K / 8);
      const int k = slot % (BLOCK_K / 8);
      *reinterpret_cast<Pack<__hip_bfloat16, 8>*>(&a_middle_tile[swizzled<BLOCK_K>(row, k * 8)]) = a_middle_stage[i];
    }
  };
  Pack<__hip_bfloat16, 8> a_low_stage[A_LOADS];
  auto load_a_low = [&](int k0) {
    #pragma unroll
    for (int i = 0; i < A_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = m0 + slot / (BLOCK_K / 8);
      const int k = k0 / 8 + slot % (BLOCK_K / 8);
      if (row < M && k < K / 8) {
        a_low_stage[i].set(*reinterpret_cast<const Pack<__hip_bfloat16, 8>*>(x_low + row * 104 + k * 8));
      } else {
        a_low_stage[i] = Pack<__hip_bfloat16, 8>{};
      }
    }
  };
  auto store_a_low = [&]() {
    #pragma unroll
    for (int i = 0; i < A_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = slot / (BLOCK_K / 8);
      const int k = slot % (BLOCK_K / 8);
      *reinterpret_cast<Pack<__hip_bfloat16, 8>*>(&a_low_tile[swizzled<BLOCK_K>(row, k * 8)]) = a_low_stage[i];
    }
  };
  Pack<__hip_bfloat16, 8> b_high_stage[B_LOADS];
  auto load_b_high = [&](int k0) {
    #pragma unroll
    for (int i = 0; i < B_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = n0 + slot / (BLOCK_K / 8);
      const int k = k0 / 8 + slot % (BLOCK_K / 8);
      if (row < N && k < K / 8) {
        b_high_stage[i].set(*reinterpret_cast<const Pack<__hip_bfloat16, 8>*>(y_high + row * 104 + k * 8));
      } else {
        b_high_stage[i] = Pack<__hip_bfloat16, 8>{};
      }
    }
  };
  auto store_b_high = [&]() {
    #pragma unroll
    for (int i = 0; i < B_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = slot / (BLOCK_K / 8);
      const int k = slot % (BLOCK_K / 8);
      *reinterpret_cast<Pack<__hip_bfloat16, 8>*>(&b_high_tile[swizzled<BLOCK_K>(row, k * 8)]) = b_high_stage[i];
    }
  };
  Pack<__hip_bfloat16, 8> b_middle_stage[B_LOADS];
  auto load_b_middle = [&](int k0) {
    #pragma unroll
    for (int i = 0; i < B_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = n0 + slot / (BLOCK_K / 8);
      const int k = k0 / 8 + slot % (BLOCK_K / 8);
      if (row < N && k < K / 8) {
        b_middle_stage[i].set(*reinterpret_cast<const Pack<__hip_bfloat16, 8>*>(y_middle + row * 104 + k * 8));
      } else {
        b_middle_stage[i] = Pack<__hip_bfloat16, 8>{};
      }
    }
  };
  auto store_b_middle = [&]() {
    #pragma unroll
    for (int i = 0; i < B_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = slot / (BLOCK_K / 8);
      const int k = slot % (BLOCK_K / 8);
      *reinterpret_cast<Pack<__hip_bfloat16, 8>*>(&b_middle_tile[swizzled<BLOCK_K>(row, k * 8)]) = b_middle_stage[i];
    }
  };
  Pack<__hip_bfloat16, 8> b_low_stage[B_LOADS];
  auto load_b_low = [&](int k0) {
    #pragma unroll
    for (int i = 0; i < B_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = n0 + slot / (BLOCK_K / 8);
      const int k = k0 / 8 + slot % (BLOCK_K / 8);
      if (row < N && k < K / 8) {
        b_low_stage[i].set(*reinterpret_cast<const Pack<__hip_bfloat16, 8>*>(y_low + row * 104 + k * 8));
      } else {
        b_low_stage[i] = Pack<__hip_bfloat16, 8>{};
      }
    }
  };
  auto store_b_low = [&]() {
    #pragma unroll
    for (int i = 0; i < B_LOADS; ++i) {
      const int slot = i * THREADS + thread;
      const int row = slot / (BLOCK_K / 8);
      const int k = slot % (BLOCK_K / 8);
      *reinterpret_cast<Pack<__hip_bfloat16, 8>*>(&b_low_tile[swizzled<BLOCK_K>(row, k * 8)]) = b_low_stage[i];
    }
  };
  Results acc[FRAGMENTS_M][FRAGMENTS_N] = {};
  Results small[FRAGMENTS_M][FRAGMENTS_N] = {};  // the products below 2^-16 of the sum
  load_a_high(0);
  load_a_middle(0);
  load_a_low(0);
  load_b_high(0);
  load_b_middle(0);
  load_b_low(0);
  for (int k0 = 0; k0 < K; k0 += BLOCK_K) {
    store_a_high();
    store_a_middle();
    store_a_low();
    store_b_high();
    store_b_middle();
    store_b_low();
    __syncthreads();
    if (k0 + BLOCK_K < K) {
      load_a_high(k0 + BLOCK_K);  // the next tile is on its way while this one is used
      load_a_middle(k0 + BLOCK_K);
      load_a_low(k0 + BLOCK_K);
      load_b_high(k0 + BLOCK_K);
      load_b_middle(k0 + BLOCK_K);
      load_b_low(k0 + BLOCK_K);
    }
    Results part[FRAGMENTS_M][FRAGMENTS_N] = {};  // of this tile of the depth
#if KVC_HAS_MFMA
    #pragma unroll
    for (int k = 0; k < BLOCK_K; k += GROUPS * FRAGMENT) {
      const int depth = k + lane / MI * FRAGMENT;
      Fragment a_high_part[FRAGMENTS_M];
      #pragma unroll
      for (int i = 0; i < FRAGMENTS_M; ++i)
        a_high_part[i] = *reinterpret_cast<const Fragment*>(&a_high_tile[swizzled<BLOCK_K>((wave_m + i * MI + lane % MI), depth)]);
      Fragment a_middle_part[FRAGMENTS_M];
      #pragma unroll
      for (int i = 0; i < FRAGMENTS_M; ++i)
        a_middle_part[i] = *reinterpret_cast<const Fragment*>(&a_middle_tile[swizzled<BLOCK_K>((wave_m + i * MI + lane % MI), depth)]);
      Fragment a_low_part[FRAGMENTS_M];
      #pragma unroll
      for (int i = 0; i < FRAGMENTS_M; ++i)
        a_low_part[i] = *reinterpret_cast<const Fragment*>(&a_low_tile[swizzled<BLOCK_K>((wave_m + i * MI + lane % MI), depth)]);
      Fragment b_high_part[FRAGMENTS_N];
      #pragma unroll
      for (int i = 0; i < FRAGMENTS_N; ++i)
        b_high_part[i] = *reinterpret_cast<const Fragment*>(&b_high_tile[swizzled<BLOCK_K>((wave_n + i * MI + lane % MI), depth)]);
      Fragment b_middle_part[FRAGMENTS_N];
      #pragma unroll
      for (int i = 0; i < FRAGMENTS_N; ++i)
        b_middle_part[i] = *reinterpret_cast<const Fragment*>(&b_middle_tile[swizzled<BLOCK_K>((wave_n + i * MI + lane % MI), depth)]);
      Fragment b_low_part[FRAGMENTS_N];
      #pragma unroll
      for (int i = 0; i < FRAGMENTS_N; ++i)
        b_low_part[i] = *reinterpret_cast<const Fragment*>(&b_low_tile[swizzled<BLOCK_K>((wave_n + i * MI + lane % MI), depth)]);
      #pragma unroll
      for (int step = 0; step < FRAGMENT / MI_DEPTH; ++step)
        #pragma unroll
        for (int i = 0; i < FRAGMENTS_M; ++i)
          #pragma unroll
          for (int j = 0; j < FRAGMENTS_N; ++j)
            small[i][j] = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
                a_low_part[i].step[step], b_high_part[j].step[step], small[i][j], 0, 0, 0);
      #pragma unroll
      for (int step = 0; step < FRAGMENT / MI_DEPTH; ++step)
        #pragma unroll
        for (int i = 0; i < FRAGMENTS_M; ++i)
          #pragma unroll
          for (int j = 0; j < FRAGMENTS_N; ++j)
            small[i][j] = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
                a_middle_part[i].step[step], b_middle_part[j].step[step], small[i][j], 0, 0, 0);
      #pragma unroll
      for (int step = 0; step < FRAGMENT / MI_DEPTH; ++step)
        #pragma unroll
        for (int i = 0; i < FRAGMENTS_M; ++i)
          #pragma unroll
          for (int j = 0; j < FRAGMENTS_N; ++j)
            small[i][j] = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
                a_high_part[i].step[step], b_low_part[j].step[step], small[i][j], 0, 0, 0);
      #pragma unroll
      for (int step = 0; step < FRAGMENT / MI_DEPTH; ++step)
        #pragma unroll
        for (int i = 0; i < FRAGMENTS_M; ++i)
          #pragma unroll
          for (int j = 0; j < FRAGMENTS_N; ++j)
            part[i][j] = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
                a_middle_part[i].step[step], b_high_part[j].step[step], part[i][j], 0, 0, 0);
      #pragma unroll
      for (int step = 0; step < FRAGMENT / MI_DEPTH; ++step)
        #pragma unroll
        for (int i = 0; i < FRAGMENTS_M; ++i)
          #pragma unroll
          for (int j = 0; j < FRAGMENTS_N; ++j)
            part[i][j] = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
                a_high_part[i].step[step], b_middle_part[j].step[step], part[i][j], 0, 0, 0);
      #pragma unroll
      for (int step = 0; step < FRAGMENT / MI_DEPTH; ++step)
        #pragma unroll
        for (int i = 0; i < FRAGMENTS_M; ++i)
          #pragma unroll
          for (int j = 0; j < FRAGMENTS_N; ++j)
            part[i][j] = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
                a_high_part[i].step[step], b_high_part[j].step[step], part[i][j], 0, 0, 0);
    }
#else
    for (int k = 0; k < BLOCK_K; ++k) {
      for (int i = 0; i < FRAGMENTS_M; ++i) {
        #pragma unroll
        for (int r = 0; r < RESULTS; ++r) {
          const float a_high_value = __bfloat162float(a_high_tile[swizzled<BLOCK_K>((wave_m + i * MI + result_row(lane, r)), k)]);
          const float a_middle_value = __bfloat162float(a_middle_tile[swizzled<BLOCK_K>((wave_m + i * MI + result_row(lane, r)), k)]);
          const float a_low_value = __bfloat162float(a_low_tile[swizzled<BLOCK_K>((wave_m + i * MI + result_row(lane, r)), k)]);
          for (int j = 0; j < FRAGMENTS_N; ++j) {
            const float b_high_value = __bfloat162float(b_high_tile[swizzled<BLOCK_K>((wave_n + j * MI + lane % MI), k)]);
            const float b_middle_value = __bfloat162float(b_middle_tile[swizzled<BLOCK_K>((wave_n + j * MI + lane % MI), k)]);
            const float b_low_value = __bfloat162float(b_low_tile[swizzled<BLOCK_K>((wave_n + j * MI + lane % MI), k)]);
            small[i][j][r] += a_low_value * b_high_value;
            small[i][j][r] += a_middle_value * b_middle_value;
            small[i][j][r] += a_high_value * b_low_value;
            part[i][j][r] += a_middle_value * b_high_value;
            part[i][j][r] += a_high_value * b_middle_value;
            part[i][j][r] += a_high_value * b_high_value;
          }
        }
      }
    }
#endif
    #pragma unroll
    for (int i = 0; i < FRAGMENTS_M; ++i)
    #pragma unroll
    for (int j = 0; j < FRAGMENTS_N; ++j)
    #pragma unroll
    for (int r = 0; r < RESULTS; ++r)
      acc[i][j][r] += part[i][j][r];
    __syncthreads();
  }
  bool finite = true;
  #pragma unroll
  for (int i = 0; i < FRAGMENTS_M; ++i)
  #pragma unroll
  for (int j = 0; j < FRAGMENTS_N; ++j)
    #pragma unroll
    for (int r = 0; r < RESULTS; ++r) {
    acc[i][j][r] += small[i][j][r];
    finite = finite && fabsf(acc[i][j][r]) < INFINITY;
  }
  __shared__ int wave_special[WAVES_M * WAVES_N];
  const int any_special = __any(!finite);
  if (lane == 0) wave_special[thread / LANES] = any_special;
  __syncthreads();
  if (thread == 0) {
    int found = 0;
    for (int wave = 0; wave < WAVES_M * WAVES_N; ++wave) found |= wave_special[wave];
    special[blockIdx.x] = found;
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
        const float b_value = b[n];
        z[m * 90 + n] = relu(acc[i][j][r] + b_value);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
matmul_repair(const float* __restrict__ x,
              const float* __restrict__ y,
              const float* __restrict__ b,
              float* __restrict__ z,
              const int* __restrict__ special) {
  if (!special[blockIdx.x]) return;
  const int item = blockIdx.x % (TILES_M * TILES_N);  // GROUP_M rows of tiles at a time
  const int first = item / (GROUP_M * TILES_N) * GROUP_M;
  const int rest = TILES_M - first < GROUP_M ? TILES_M - first : GROUP_M;
  const int m0 = (first + item % (GROUP_M * TILES_N) % rest) * BLOCK_M;
  const int n0 = item % (GROUP_M * TILES_N) / rest * BLOCK_N;
  for (int at = threadIdx.x; at < BLOCK_M * BLOCK_N; at += THREADS) {
    const int m = m0 + at / BLOCK_N;
    const int n = n0 + at % BLOCK_N;
    if (m >= M || n >= N) continue;
    float t = 0.0f;
    for (int k = 0; k < K_SIZE; ++k) {
      const float x_value = x[m * 100 + k];
      const float y_value = y[k * 90 + n];
      t += x_value * y_value;
    }
    const float b_value = b[n];
    z[m * 90 + n] = relu(t + b_value);
  }
}
