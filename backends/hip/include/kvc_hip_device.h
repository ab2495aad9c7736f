// kvc's device-side HIP: what a kernel may use of <hip/hip_runtime.h>, in a few hundred lines and with no ROCm.
//
// A source that compiles against this header compiles unchanged with hipcc and means the same there. The order of
// work in the shuffles, the scopes of the atomics and the fences of the barrier follow HIP's documented behaviour.
// As there, half and bfloat16 need <hip/hip_fp16.h> and <hip/hip_bf16.h>. Host code (kernel launches, the runtime API)
// is out of scope: a kernel file of kvc holds device code alone.
//
// Macros that kernel sources may read, and that `kvc_hip_cuda.h` defines as well:
//   KVC_WAVE_SIZE  lanes in a wave as a preprocessor constant: 64 on gfx9, 32 on NVIDIA. HIP's own `warpSize` is
//                  not a constant expression since ROCm 7, so array sizes and `#if` need this one.
//   KVC_HAS_MFMA   1 where the __builtin_amdgcn_mfma_* builtins exist (gfx9 device code), else 0: sources guard their
//                  matrix-core path with `#if KVC_HAS_MFMA` and keep a scalar path in the `#else`.
// Under a real hipcc neither header is seen, so a source that uses them begins with the prologue in
// `kvc.backends.hip.toolchain.PROLOGUE`.
#ifndef KVC_HIP_DEVICE_H
#define KVC_HIP_DEVICE_H

#if !defined(__HIP__) || !defined(__cplusplus)
#error "kvc_hip_device.h is for HIP C++ device code compiled by clang (-x hip)"
#endif

#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__ 1
#endif

#ifdef __HIP_DEVICE_COMPILE__
#define KVC_HAS_MFMA 1
#else
#define KVC_HAS_MFMA 0
#endif
#define KVC_WAVE_SIZE 64

// ---- attributes ---------------------------------------------------------------------------------------------------
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ type name[];

// As HIP: the second figure is the least number of waves per SIMD to leave room for, not CUDA's blocks per SM.
#define KVC_LAUNCH_BOUNDS_1(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define KVC_LAUNCH_BOUNDS_2(threads, waves) \
  __attribute__((amdgpu_flat_work_group_size(1, threads), amdgpu_waves_per_eu(waves)))
#define KVC_LAUNCH_BOUNDS_PICK(first, second, name, ...) name
#define __launch_bounds__(...) \
  KVC_LAUNCH_BOUNDS_PICK(__VA_ARGS__, KVC_LAUNCH_BOUNDS_2, KVC_LAUNCH_BOUNDS_1, )(__VA_ARGS__)

// Functions of this header: always inlined and never exported, so that a kernel contains nothing but itself.
#define KVC_FN static inline __attribute__((device, always_inline, unused))

// ---- integers -----------------------------------------------------------------------------------------------------
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef __INTPTR_TYPE__ intptr_t;
typedef __UINTPTR_TYPE__ uintptr_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
namespace std {
using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::int8_t;
using ::intptr_t;
using ::ptrdiff_t;
using ::size_t;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::uint8_t;
using ::uintptr_t;
}  // namespace std

// ---- where a thread is --------------------------------------------------------------------------------------------
struct dim3 {
  uint32_t x, y, z;
  constexpr __host__ __device__ dim3(uint32_t x = 1, uint32_t y = 1, uint32_t z = 1) : x(x), y(y), z(z) {}
};

// Implicit kernel arguments of code object version 5: number of workgroups (u32 x 3), then workgroup size (u16 x 3).
KVC_FN uint32_t kvc_block_count(int axis) {
  return ((const __attribute__((address_space(4))) uint32_t*)__builtin_amdgcn_implicitarg_ptr())[axis];
}

#define KVC_COORDINATE(name, ex, ey, ez)                                                       \
  struct kvc_##name##_t {                                                                      \
    __declspec(property(get = get_x)) uint32_t x;                                              \
    __declspec(property(get = get_y)) uint32_t y;                                              \
    __declspec(property(get = get_z)) uint32_t z;                                              \
    __device__ inline __attribute__((always_inline)) uint32_t get_x() const { return ex; }     \
    __device__ inline __attribute__((always_inline)) uint32_t get_y() const { return ey; }     \
    __device__ inline __attribute__((always_inline)) uint32_t get_z() const { return ez; }     \
    __device__ inline __attribute__((always_inline)) operator dim3() const { return dim3(ex, ey, ez); } \
  };                                                                                           \
  extern const __device__ __attribute__((weak)) kvc_##name##_t name;

KVC_COORDINATE(threadIdx, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(),
               __builtin_amdgcn_workitem_id_z())
KVC_COORDINATE(blockIdx, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(),
               __builtin_amdgcn_workgroup_id_z())
KVC_COORDINATE(blockDim, __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(),
               __builtin_amdgcn_workgroup_size_z())
KVC_COORDINATE(gridDim, kvc_block_count(0), kvc_block_count(1), kvc_block_count(2))
#undef KVC_COORDINATE

static constexpr __device__ int warpSize = KVC_WAVE_SIZE;

KVC_FN unsigned int __lane_id() { return __builtin_amdgcn_mbcnt_hi(-1, __builtin_amdgcn_mbcnt_lo(-1, 0)); }
KVC_FN long long clock64() { return (long long)__builtin_readcyclecounter(); }
KVC_FN long long wall_clock64() { return (long long)__builtin_readsteadycounter(); }

// ---- barriers and fences ------------------------------------------------------------------------------------------
KVC_FN void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
KVC_FN void __threadfence_block() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup"); }
KVC_FN void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
KVC_FN void __threadfence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }
KVC_FN void __syncwarp() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

// ---- bits ---------------------------------------------------------------------------------------------------------
template <class To, class From>
KVC_FN To kvc_bit_cast(From value) {
  static_assert(sizeof(To) == sizeof(From), "bit casts keep the size");
  return __builtin_bit_cast(To, value);
}
KVC_FN int __float_as_int(float v) { return kvc_bit_cast<int>(v); }
KVC_FN unsigned int __float_as_uint(float v) { return kvc_bit_cast<unsigned int>(v); }
KVC_FN float __int_as_float(int v) { return kvc_bit_cast<float>(v); }
KVC_FN float __uint_as_float(unsigned int v) { return kvc_bit_cast<float>(v); }
KVC_FN long long __double_as_longlong(double v) { return kvc_bit_cast<long long>(v); }
KVC_FN double __longlong_as_double(long long v) { return kvc_bit_cast<double>(v); }

KVC_FN int __popc(unsigned int v) { return __builtin_popcount(v); }
KVC_FN int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
KVC_FN int __clz(int v) { return v == 0 ? 32 : __builtin_clz((unsigned int)v); }
KVC_FN int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll((unsigned long long)v); }
// Position of the lowest set bit counted from 1; 0 where there is none.
KVC_FN int __ffs(unsigned int v) { return __builtin_ffs((int)v); }
KVC_FN int __ffs(int v) { return __builtin_ffs(v); }
KVC_FN int __ffsll(unsigned long long v) { return __builtin_ffsll((long long)v); }
KVC_FN int __ffsll(long long v) { return __builtin_ffsll(v); }
KVC_FN int __ffsll(unsigned long v) { return __builtin_ffsll((long long)v); }
KVC_FN unsigned int __brev(unsigned int v) { return __builtin_bitreverse32(v); }
KVC_FN unsigned long long __brevll(unsigned long long v) { return __builtin_bitreverse64(v); }
KVC_FN int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
KVC_FN int __mulhi(int a, int b) { return (int)(((long long)a * b) >> 32); }
KVC_FN unsigned int __umulhi(unsigned int a, unsigned int b) { return (unsigned int)(((unsigned long long)a * b) >> 32); }
KVC_FN unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
KVC_FN long long __mul64hi(long long a, long long b) { return (long long)(((__int128)a * b) >> 64); }

template <class T>
KVC_FN T __ldg(const T* address) { return *address; }

#include "kvc_hip_types.h"
#include "kvc_hip_lanes.h"
#include "kvc_hip_atomics.h"
#include "kvc_hip_math.h"

#endif
