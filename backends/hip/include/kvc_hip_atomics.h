// Atomics: relaxed, device scope, returning the old value, as HIP's. Included by kvc_hip_device.h.
//
// Floating-point adds come in two kinds. `atomicAdd` is right for any memory, host-visible fine-grained buffers
// included; where the hardware's own add would not be, the compiler writes a compare-and-swap loop. `unsafeAtomicAdd`
// promises that the address is ordinary device memory (hipMalloc) or LDS and always uses the hardware instruction.
#ifndef KVC_HIP_ATOMICS_H
#define KVC_HIP_ATOMICS_H

#define KVC_ATOMIC_ARGS __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT

#define KVC_ATOMIC_INTEGER(T)                                                                                        \
  KVC_FN T atomicAdd(T* p, T v) { return __hip_atomic_fetch_add(p, v, KVC_ATOMIC_ARGS); }                            \
  KVC_FN T atomicSub(T* p, T v) { return __hip_atomic_fetch_add(p, (T)(0 - v), KVC_ATOMIC_ARGS); }                   \
  KVC_FN T atomicMax(T* p, T v) { return __hip_atomic_fetch_max(p, v, KVC_ATOMIC_ARGS); }                            \
  KVC_FN T atomicMin(T* p, T v) { return __hip_atomic_fetch_min(p, v, KVC_ATOMIC_ARGS); }                            \
  KVC_FN T atomicAnd(T* p, T v) { return __hip_atomic_fetch_and(p, v, KVC_ATOMIC_ARGS); }                            \
  KVC_FN T atomicOr(T* p, T v) { return __hip_atomic_fetch_or(p, v, KVC_ATOMIC_ARGS); }                              \
  KVC_FN T atomicXor(T* p, T v) { return __hip_atomic_fetch_xor(p, v, KVC_ATOMIC_ARGS); }                            \
  KVC_FN T atomicExch(T* p, T v) { return __hip_atomic_exchange(p, v, KVC_ATOMIC_ARGS); }                            \
  KVC_FN T atomicCAS(T* p, T compare, T v) {                                                                         \
    __hip_atomic_compare_exchange_strong(p, &compare, v, __ATOMIC_RELAXED, __ATOMIC_RELAXED,                         \
                                         __HIP_MEMORY_SCOPE_AGENT);                                                  \
    return compare;                                                                                                  \
  }

KVC_ATOMIC_INTEGER(int)
KVC_ATOMIC_INTEGER(unsigned int)
KVC_ATOMIC_INTEGER(unsigned long)
KVC_ATOMIC_INTEGER(long long)
KVC_ATOMIC_INTEGER(unsigned long long)
#undef KVC_ATOMIC_INTEGER

KVC_FN unsigned int atomicInc(unsigned int* p, unsigned int limit) {
  return __builtin_amdgcn_atomic_inc32(p, limit, __ATOMIC_RELAXED, "agent");
}
KVC_FN unsigned int atomicDec(unsigned int* p, unsigned int limit) {
  return __builtin_amdgcn_atomic_dec32(p, limit, __ATOMIC_RELAXED, "agent");
}

// clang before 20 has neither the statement attribute nor the function attribute's fine-grained promise.
#if __has_extension(clang_atomic_attributes)
#define KVC_DEVICE_MEMORY_ONLY [[clang::atomic(no_remote_memory, no_fine_grained_memory, ignore_denormal_mode)]]
#else
#define KVC_DEVICE_MEMORY_ONLY
#endif

#define KVC_ATOMIC_FLOAT(T)                                                                                          \
  KVC_FN T atomicAdd(T* p, T v) { return __hip_atomic_fetch_add(p, v, KVC_ATOMIC_ARGS); }                            \
  KVC_FN T atomicMax(T* p, T v) { return __hip_atomic_fetch_max(p, v, KVC_ATOMIC_ARGS); }                            \
  KVC_FN T atomicMin(T* p, T v) { return __hip_atomic_fetch_min(p, v, KVC_ATOMIC_ARGS); }                            \
  KVC_FN T atomicExch(T* p, T v) { return __hip_atomic_exchange(p, v, KVC_ATOMIC_ARGS); }                            \
  KVC_FN T unsafeAtomicAdd(T* p, T v) {                                                                              \
    T old;                                                                                                           \
    KVC_DEVICE_MEMORY_ONLY { old = __hip_atomic_fetch_add(p, v, KVC_ATOMIC_ARGS); }                                  \
    return old;                                                                                                      \
  }

KVC_ATOMIC_FLOAT(float)
KVC_ATOMIC_FLOAT(double)
#undef KVC_ATOMIC_FLOAT

#endif
