// half and half2, as <hip/hip_fp16.h> has them.
#ifndef KVC_HIP_HALF_H
#define KVC_HIP_HALF_H

#include "kvc_hip_device.h"
#include "kvc_hip_scalar16.h"

// ---- half: every conversion from a wider type rounds to nearest even --------------------------------------------------
struct __half {
  _Float16 data;
  __half() = default;
  KVC_HD __half(_Float16 v) : data(v) {}
  KVC_HD __half(float v) : data((_Float16)v) {}
  KVC_HD __half(double v) : data((_Float16)v) {}
  KVC_HD __half(int v) : data((_Float16)v) {}
  KVC_HD __half(unsigned int v) : data((_Float16)v) {}
  KVC_HD operator _Float16() const { return data; }
  KVC_HD operator float() const { return (float)data; }
  KVC_HD explicit operator bool() const { return data != (_Float16)0; }
};
typedef __half half;

struct __half_raw {
  unsigned short x;
};

struct alignas(4) __half2 {
  __half x, y;
  __half2() = default;
  KVC_HD __half2(__half x, __half y) : x(x), y(y) {}
};
typedef __half2 half2;

KVC_SCALAR_OPS(__half, _Float16)
KVC_HD __half __hfma(__half a, __half b, __half c) { return __half(__builtin_fmaf16(a.data, b.data, c.data)); }

KVC_HD __half __float2half(float v) { return __half(v); }
KVC_HD __half __float2half_rn(float v) { return __half(v); }
KVC_HD float __half2float(__half v) { return (float)v.data; }
KVC_HD __half __int2half_rn(int v) { return __half(v); }
KVC_HD int __half2int_rz(__half v) { return (int)(float)v.data; }
KVC_HD unsigned short __half_as_ushort(__half v) { return __builtin_bit_cast(unsigned short, v.data); }
KVC_HD __half __ushort_as_half(unsigned short v) { return __half(__builtin_bit_cast(_Float16, v)); }
KVC_HD __half2 make_half2(__half x, __half y) { return __half2(x, y); }
KVC_HD __half2 __halves2half2(__half x, __half y) { return __half2(x, y); }
KVC_HD __half2 __half2half2(__half x) { return __half2(x, x); }
KVC_HD __half2 __float2half2_rn(float v) { return __half2(__half(v), __half(v)); }
KVC_HD __half2 __floats2half2_rn(float x, float y) { return __half2(__half(x), __half(y)); }
KVC_HD __half2 __float22half2_rn(float2 v) { return __half2(__half(v.x), __half(v.y)); }
KVC_HD float2 __half22float2(__half2 v) { return float2((float)v.x.data, (float)v.y.data); }
KVC_HD __half __low2half(__half2 v) { return v.x; }
KVC_HD __half __high2half(__half2 v) { return v.y; }
KVC_HD float __low2float(__half2 v) { return (float)v.x.data; }
KVC_HD float __high2float(__half2 v) { return (float)v.y.data; }
KVC_HD __half2 __hadd2(__half2 a, __half2 b) { return __half2(a.x + b.x, a.y + b.y); }
KVC_HD __half2 __hsub2(__half2 a, __half2 b) { return __half2(a.x - b.x, a.y - b.y); }
KVC_HD __half2 __hmul2(__half2 a, __half2 b) { return __half2(a.x * b.x, a.y * b.y); }
KVC_HD __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return __half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }

// ---- half: one rounding, from the value in fp32 -------------------------------------------------------------------------
KVC_FN __half hexp(__half x) { return __half(expf((float)x)); }
KVC_FN __half hexp2(__half x) { return __half(exp2f((float)x)); }
KVC_FN __half hlog(__half x) { return __half(logf((float)x)); }
KVC_FN __half hlog2(__half x) { return __half(log2f((float)x)); }
KVC_FN __half hsqrt(__half x) { return __half(sqrtf((float)x)); }
KVC_FN __half hrsqrt(__half x) { return __half(rsqrtf((float)x)); }
KVC_FN __half hrcp(__half x) { return __half(1.0f / (float)x); }
KVC_FN __half hsin(__half x) { return __half(sinf((float)x)); }
KVC_FN __half hcos(__half x) { return __half(cosf((float)x)); }
KVC_FN __half htanh(__half x) { return __half(tanhf((float)x)); }
KVC_FN __half hfloor(__half x) { return __half(floorf((float)x)); }
KVC_FN __half hceil(__half x) { return __half(ceilf((float)x)); }
KVC_FN __half hrint(__half x) { return __half(rintf((float)x)); }
KVC_FN __half htrunc(__half x) { return __half(truncf((float)x)); }

// ---- two adds in one 32-bit access: the hardware's own, for addresses in global memory alone ----------------------
typedef _Float16 kvc_half2_t __attribute__((ext_vector_type(2)));
KVC_FN __half2 unsafeAtomicAdd(__half2* p, __half2 v) {
  typedef __attribute__((address_space(1))) kvc_half2_t* global_pointer;
  kvc_half2_t old;
  KVC_DEVICE_MEMORY_ONLY {
    old = __builtin_amdgcn_global_atomic_fadd_v2f16((global_pointer)(kvc_half2_t*)p, __builtin_bit_cast(kvc_half2_t, v));
  }
  return __builtin_bit_cast(__half2, old);
}

#endif
