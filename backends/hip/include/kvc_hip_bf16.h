// bfloat16, as <hip/hip_bf16.h> and the older <hip/hip_bfloat16.h> have it.
#ifndef KVC_HIP_BF16_H
#define KVC_HIP_BF16_H

#include "kvc_hip_device.h"
#include "kvc_hip_scalar16.h"

// ---- bfloat16: clang's __bf16 rounds to nearest even and keeps NaN a NaN ----------------------------------------------
struct __hip_bfloat16 {
  __bf16 data;
  __hip_bfloat16() = default;
  KVC_HD __hip_bfloat16(float v) : data((__bf16)v) {}
  KVC_HD explicit __hip_bfloat16(__bf16 v) : data(v) {}
  KVC_HD __hip_bfloat16(double v) : data((__bf16)v) {}
  KVC_HD __hip_bfloat16(int v) : data((__bf16)v) {}
  KVC_HD operator float() const { return (float)data; }
  KVC_HD explicit operator bool() const { return (float)data != 0.0f; }
};
struct alignas(4) __hip_bfloat162 {
  __hip_bfloat16 x, y;
  __hip_bfloat162() = default;
  KVC_HD __hip_bfloat162(__hip_bfloat16 x, __hip_bfloat16 y) : x(x), y(y) {}
};
KVC_SCALAR_OPS(__hip_bfloat16, __bf16)
KVC_HD __hip_bfloat16 __float2bfloat16(float v) { return __hip_bfloat16(v); }
KVC_HD __hip_bfloat16 __float2bfloat16_rn(float v) { return __hip_bfloat16(v); }
// By its bits: LLVM 22 cannot select the bf16 copysign that it makes of a rounded one whose sign comes from an fpext.
KVC_HD float __bfloat162float(__hip_bfloat16 v) {
  return __builtin_bit_cast(float, (unsigned)__builtin_bit_cast(unsigned short, v.data) << 16);
}
KVC_HD unsigned short __bfloat16_as_ushort(__hip_bfloat16 v) { return __builtin_bit_cast(unsigned short, v.data); }
KVC_HD __hip_bfloat16 __ushort_as_bfloat16(unsigned short v) { return __hip_bfloat16(__builtin_bit_cast(__bf16, v)); }
KVC_HD __hip_bfloat16 __hfma(__hip_bfloat16 a, __hip_bfloat16 b, __hip_bfloat16 c) {
  return __hip_bfloat16(__builtin_fmaf((float)a.data, (float)b.data, (float)c.data));
}
KVC_HD float2 __bfloat1622float2(__hip_bfloat162 v) { return float2((float)v.x.data, (float)v.y.data); }
KVC_HD __hip_bfloat162 __float22bfloat162_rn(float2 v) { return __hip_bfloat162(__hip_bfloat16(v.x), __hip_bfloat16(v.y)); }

// The older class of <hip/hip_bfloat16.h>: its bits are a plain uint16_t, and conversion from float is explicit.
struct hip_bfloat16 {
  uint16_t data;
  hip_bfloat16() = default;
  KVC_HD explicit hip_bfloat16(float v) : data(__builtin_bit_cast(uint16_t, (__bf16)v)) {}
  static KVC_HD hip_bfloat16 round_to_bfloat16(float v) { return hip_bfloat16(v); }
  KVC_HD operator float() const { return __builtin_bit_cast(float, (uint32_t)data << 16); }
};

// Not every gfx9 chip adds bfloat16 pairs in memory: a compare-and-swap loop.
KVC_FN __hip_bfloat162 unsafeAtomicAdd(__hip_bfloat162* p, __hip_bfloat162 v) {
  uint32_t* word = (uint32_t*)p;
  uint32_t seen = __hip_atomic_load(word, KVC_ATOMIC_ARGS);
  while (true) {
    __hip_bfloat162 old = __builtin_bit_cast(__hip_bfloat162, seen);
    uint32_t sum = __builtin_bit_cast(uint32_t, __hip_bfloat162(old.x + v.x, old.y + v.y));
    uint32_t found = atomicCAS(word, seen, sum);
    if (found == seen) return old;
    seen = found;
  }
}

#endif
