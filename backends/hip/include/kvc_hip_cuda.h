// HIP device code on NVIDIA: the names of <hip/hip_runtime.h> over CUDA's own. Takes the place of the include line.
//
// The wave is 32 lanes here, so a source that is to run on both reads KVC_WAVE_SIZE (or `warpSize`) and never a literal 64.
// KVC_HAS_MFMA is 0: the scalar path of a kernel is what runs. Shuffles and votes name all 32 lanes, so they belong where
// no lane has branched away; that is where HIP's own are well defined too.
#ifndef KVC_HIP_CUDA_H
#define KVC_HIP_CUDA_H

#define KVC_WAVE_SIZE 32
#define KVC_HAS_MFMA 0
#define KVC_ALL_LANES 0xffffffffu

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The second figure means waves per SIMD in HIP and blocks per SM in CUDA: only the first carries over.
#undef __launch_bounds__
#define __launch_bounds__(threads, ...) __attribute__((launch_bounds(threads)))
#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ type name[];
#define KVC_FN static __device__ __forceinline__

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
typedef long long intptr_t;
#ifndef INFINITY
#define INFINITY (__int_as_float(0x7f800000))
#endif
#ifndef NAN
#define NAN (__int_as_float(0x7fffffff))
#endif
#else
#include <math.h>
#include <stdint.h>
#endif
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

// clang's arithmetic 16-bit types, under CUDA's names for them.
typedef __nv_bfloat16 __hip_bfloat16;
typedef __nv_bfloat162 __hip_bfloat162;
typedef __nv_bfloat16 hip_bfloat16;
#define _Float16 __half
#define __bf16 __nv_bfloat16

// ---- lanes ----------------------------------------------------------------------------------------------------------
KVC_FN unsigned int __lane_id() {
  unsigned int lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
template <class T>
KVC_FN T kvc_shfl(T value, int source, int width = KVC_WAVE_SIZE) {
  return __shfl_sync(KVC_ALL_LANES, value, source, width);
}
template <class T>
KVC_FN T kvc_shfl_up(T value, unsigned int delta, int width = KVC_WAVE_SIZE) {
  return __shfl_up_sync(KVC_ALL_LANES, value, delta, width);
}
template <class T>
KVC_FN T kvc_shfl_down(T value, unsigned int delta, int width = KVC_WAVE_SIZE) {
  return __shfl_down_sync(KVC_ALL_LANES, value, delta, width);
}
template <class T>
KVC_FN T kvc_shfl_xor(T value, int mask, int width = KVC_WAVE_SIZE) {
  return __shfl_xor_sync(KVC_ALL_LANES, value, mask, width);
}
KVC_FN unsigned long long kvc_ballot(int predicate) { return __ballot_sync(KVC_ALL_LANES, predicate); }
KVC_FN unsigned long long kvc_ballot64(int predicate) { return __ballot_sync(KVC_ALL_LANES, predicate); }
KVC_FN int kvc_any(int predicate) { return __any_sync(KVC_ALL_LANES, predicate); }
KVC_FN int kvc_all(int predicate) { return __all_sync(KVC_ALL_LANES, predicate); }
// CUDA still declares some of these names for old chips, so they are macros over functions of our own.
#define __shfl kvc_shfl
#define __shfl_up kvc_shfl_up
#define __shfl_down kvc_shfl_down
#define __shfl_xor kvc_shfl_xor
#define __ballot kvc_ballot
#define __ballot64 kvc_ballot64
#define __any kvc_any
#define __all kvc_all

// ---- what CUDA lacks or calls by another name ---------------------------------------------------------------------------
KVC_FN long long wall_clock64() {
  long long nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}
#define __exp2f exp2f  // a macro, since the host's libm has a function of this name
template <class T>
KVC_FN T unsafeAtomicAdd(T* address, T value) {
  return atomicAdd(address, value);
}
// Ordered as integers, non-negative floats ascend and negative ones descend. NaN is not ordered, as in HIP.
KVC_FN float atomicMax(float* address, float value) {
  int bits = __float_as_int(value);
  return bits >= 0 ? __int_as_float(atomicMax((int*)address, bits))
                   : __uint_as_float(atomicMin((unsigned int*)address, (unsigned int)bits));
}
KVC_FN float atomicMin(float* address, float value) {
  int bits = __float_as_int(value);
  return bits >= 0 ? __int_as_float(atomicMin((int*)address, bits))
                   : __uint_as_float(atomicMax((unsigned int*)address, (unsigned int)bits));
}
template <class T>
KVC_FN T __builtin_nontemporal_load(const T* address) {
  return __ldcs(address);
}
template <class T>
KVC_FN void __builtin_nontemporal_store(T value, T* address) {
  __stcs(address, value);
}

// ---- element-wise arithmetic on vectors, which HIP's classes have and CUDA's plain structs lack ---------------------------
#define KVC_VECTOR_OP(V2, V4, T, op)                                                                                  \
  KVC_FN V2 operator op(V2 a, V2 b) { return make_##V2(a.x op b.x, a.y op b.y); }                                     \
  KVC_FN V2 operator op(V2 a, T s) { return make_##V2(a.x op s, a.y op s); }                                          \
  KVC_FN V2 operator op(T s, V2 b) { return make_##V2(s op b.x, s op b.y); }                                          \
  KVC_FN V2& operator op##=(V2& a, V2 b) { return a = a op b; }                                                       \
  KVC_FN V2& operator op##=(V2& a, T s) { return a = a op s; }                                                        \
  KVC_FN V4 operator op(V4 a, V4 b) { return make_##V4(a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w); }             \
  KVC_FN V4 operator op(V4 a, T s) { return make_##V4(a.x op s, a.y op s, a.z op s, a.w op s); }                      \
  KVC_FN V4 operator op(T s, V4 b) { return make_##V4(s op b.x, s op b.y, s op b.z, s op b.w); }                      \
  KVC_FN V4& operator op##=(V4& a, V4 b) { return a = a op b; }                                                       \
  KVC_FN V4& operator op##=(V4& a, T s) { return a = a op s; }
#define KVC_VECTOR(V2, V4, T) \
  KVC_VECTOR_OP(V2, V4, T, +) KVC_VECTOR_OP(V2, V4, T, -) KVC_VECTOR_OP(V2, V4, T, *) KVC_VECTOR_OP(V2, V4, T, /)
KVC_VECTOR(float2, float4, float)
KVC_VECTOR(int2, int4, int)
KVC_VECTOR(uint2, uint4, unsigned int)
#undef KVC_VECTOR
#undef KVC_VECTOR_OP

#endif
