// libm for device code: names of <math.h> and of CUDA/HIP's own additions, over AMD's device library (__ocml_*) and over
// clang's builtins where one instruction does it. Included by kvc_hip_device.h.
//
// fp32 division and sqrtf are correctly rounded (hipcc's default, -fhip-fp32-correctly-rounded-divide-sqrt); the
// functions of the device library keep its published bounds. The __name (fast) forms are one hardware instruction with
// its approximation error, and never what a strict translation uses.
#ifndef KVC_HIP_MATH_H
#define KVC_HIP_MATH_H

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#define HUGE_VALF (__builtin_huge_valf())
#define HUGE_VAL (__builtin_huge_val())
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440

#define KVC_OCML extern "C" __attribute__((device, const))

// ---- one argument: namef(float), name(double), and the C++ overloads of name -------------------------------------------
#define KVC_OCML_1(name, ocml)                                             \
  KVC_OCML float __ocml_##ocml##_f32(float);                               \
  KVC_OCML double __ocml_##ocml##_f64(double);                             \
  KVC_FN float name##f(float x) { return __ocml_##ocml##_f32(x); }         \
  KVC_FN double name(double x) { return __ocml_##ocml##_f64(x); }          \
  KVC_OVERLOAD_1(name)

#define KVC_BUILTIN_1(name)                                                \
  KVC_FN float name##f(float x) { return __builtin_##name##f(x); }         \
  KVC_FN double name(double x) { return __builtin_##name(x); }             \
  KVC_OVERLOAD_1(name)

template <bool, class T>
struct kvc_enable_if {};
template <class T>
struct kvc_enable_if<true, T> {
  typedef T type;
};
template <class T>
using kvc_integer_to_double = typename kvc_enable_if<__is_integral(T), double>::type;

#define KVC_OVERLOAD_1(name)                                               \
  KVC_FN float name(float x) { return name##f(x); }                        \
  template <class T>                                                       \
  KVC_FN kvc_integer_to_double<T> name(T x) {                              \
    return name((double)x);                                                \
  }                                                                        \
  namespace std {                                                          \
  using ::name;                                                            \
  using ::name##f;                                                         \
  }

KVC_OCML_1(acos, acos)
KVC_OCML_1(acosh, acosh)
KVC_OCML_1(asin, asin)
KVC_OCML_1(asinh, asinh)
KVC_OCML_1(atan, atan)
KVC_OCML_1(atanh, atanh)
KVC_OCML_1(cbrt, cbrt)
KVC_OCML_1(cos, cos)
KVC_OCML_1(cosh, cosh)
KVC_OCML_1(erf, erf)
KVC_OCML_1(erfc, erfc)
KVC_OCML_1(exp, exp)
KVC_OCML_1(exp2, exp2)
KVC_OCML_1(expm1, expm1)
KVC_OCML_1(lgamma, lgamma)
KVC_OCML_1(log, log)
KVC_OCML_1(log10, log10)
KVC_OCML_1(log1p, log1p)
KVC_OCML_1(log2, log2)
KVC_OCML_1(logb, logb)
KVC_OCML_1(sin, sin)
KVC_OCML_1(sinh, sinh)
KVC_OCML_1(tan, tan)
KVC_OCML_1(tanh, tanh)
KVC_OCML_1(tgamma, tgamma)
KVC_BUILTIN_1(ceil)
KVC_BUILTIN_1(fabs)
KVC_BUILTIN_1(floor)
KVC_BUILTIN_1(nearbyint)
KVC_BUILTIN_1(rint)
KVC_BUILTIN_1(round)
KVC_BUILTIN_1(sqrt)
KVC_BUILTIN_1(trunc)

// CUDA's and HIP's additions to libm: no C++ overloads, no std.
#define KVC_EXTRA_1(name, ocml)                                            \
  KVC_OCML float __ocml_##ocml##_f32(float);                               \
  KVC_OCML double __ocml_##ocml##_f64(double);                             \
  KVC_FN float name##f(float x) { return __ocml_##ocml##_f32(x); }         \
  KVC_FN double name(double x) { return __ocml_##ocml##_f64(x); }

KVC_EXTRA_1(cospi, cospi)
KVC_EXTRA_1(cyl_bessel_i0, i0)
KVC_EXTRA_1(cyl_bessel_i1, i1)
KVC_EXTRA_1(erfcinv, erfcinv)
KVC_EXTRA_1(erfcx, erfcx)
KVC_EXTRA_1(erfinv, erfinv)
KVC_EXTRA_1(exp10, exp10)
KVC_EXTRA_1(j0, j0)
KVC_EXTRA_1(j1, j1)
KVC_EXTRA_1(normcdf, ncdf)
KVC_EXTRA_1(normcdfinv, ncdfinv)
KVC_EXTRA_1(rcbrt, rcbrt)
KVC_EXTRA_1(rsqrt, rsqrt)
KVC_EXTRA_1(sinpi, sinpi)
KVC_EXTRA_1(y0, y0)
KVC_EXTRA_1(y1, y1)
#undef KVC_EXTRA_1

// ---- two and three arguments ----------------------------------------------------------------------------------------
#define KVC_OVERLOAD_2(name)                                               \
  KVC_FN float name(float x, float y) { return name##f(x, y); }            \
  KVC_FN double name(float x, double y) { return name((double)x, y); }     \
  KVC_FN double name(double x, float y) { return name(x, (double)y); }     \
  KVC_FN float name(float x, int y) { return name##f(x, (float)y); }       \
  KVC_FN double name(double x, int y) { return name(x, (double)y); }       \
  namespace std {                                                          \
  using ::name;                                                            \
  using ::name##f;                                                         \
  }

#define KVC_OCML_2(name, ocml)                                                         \
  KVC_OCML float __ocml_##ocml##_f32(float, float);                                    \
  KVC_OCML double __ocml_##ocml##_f64(double, double);                                 \
  KVC_FN float name##f(float x, float y) { return __ocml_##ocml##_f32(x, y); }         \
  KVC_FN double name(double x, double y) { return __ocml_##ocml##_f64(x, y); }         \
  KVC_OVERLOAD_2(name)

#define KVC_BUILTIN_2(name)                                                            \
  KVC_FN float name##f(float x, float y) { return __builtin_##name##f(x, y); }         \
  KVC_FN double name(double x, double y) { return __builtin_##name(x, y); }            \
  KVC_OVERLOAD_2(name)

KVC_OCML_2(atan2, atan2)
KVC_OCML_2(fdim, fdim)
KVC_OCML_2(fmod, fmod)
KVC_OCML_2(hypot, hypot)
KVC_OCML_2(nextafter, nextafter)
KVC_OCML_2(pow, pow)
KVC_OCML_2(remainder, remainder)
KVC_BUILTIN_2(copysign)
KVC_BUILTIN_2(fmax)
KVC_BUILTIN_2(fmin)

KVC_FN float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
KVC_FN double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
KVC_FN float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
KVC_FN float ldexpf(float x, int e) { return __builtin_ldexpf(x, e); }
KVC_FN double ldexp(double x, int e) { return __builtin_ldexp(x, e); }
KVC_FN float ldexp(float x, int e) { return __builtin_ldexpf(x, e); }
KVC_FN float scalbnf(float x, int e) { return __builtin_ldexpf(x, e); }
KVC_FN double scalbn(double x, int e) { return __builtin_ldexp(x, e); }
KVC_FN float frexpf(float x, int* e) { return __builtin_frexpf(x, e); }
KVC_FN double frexp(double x, int* e) { return __builtin_frexp(x, e); }
KVC_FN float modff(float x, float* whole) {
  *whole = __builtin_truncf(x);
  return __builtin_copysignf(__builtin_isinf(x) ? 0.0f : x - *whole, x);
}
KVC_FN double modf(double x, double* whole) {
  *whole = __builtin_trunc(x);
  return __builtin_copysign(__builtin_isinf(x) ? 0.0 : x - *whole, x);
}
KVC_FN void sincosf(float x, float* s, float* c) {
  *s = sinf(x);
  *c = cosf(x);
}
KVC_FN void sincos(double x, double* s, double* c) {
  *s = sin(x);
  *c = cos(x);
}
KVC_OCML float __ocml_pown_f32(float, int);
KVC_OCML double __ocml_pown_f64(double, int);
KVC_FN float powif(float x, int n) { return __ocml_pown_f32(x, n); }
KVC_FN double powi(double x, int n) { return __ocml_pown_f64(x, n); }
KVC_FN float fdividef(float x, float y) { return x / y; }

KVC_FN int ilogbf(float x) { return (int)__ocml_logb_f32(x); }
KVC_FN int ilogb(double x) { return (int)__ocml_logb_f64(x); }
KVC_FN long lrintf(float x) { return (long)__builtin_rintf(x); }
KVC_FN long lrint(double x) { return (long)__builtin_rint(x); }
KVC_FN long lroundf(float x) { return (long)__builtin_roundf(x); }
KVC_FN long lround(double x) { return (long)__builtin_round(x); }
KVC_FN long long llrintf(float x) { return (long long)__builtin_rintf(x); }
KVC_FN long long llrint(double x) { return (long long)__builtin_rint(x); }
KVC_FN long long llroundf(float x) { return (long long)__builtin_roundf(x); }
KVC_FN long long llround(double x) { return (long long)__builtin_round(x); }

// ---- classification, absolute value, min and max -----------------------------------------------------------------------
KVC_FN bool isnan(float x) { return __builtin_isnan(x); }
KVC_FN bool isnan(double x) { return __builtin_isnan(x); }
KVC_FN bool isinf(float x) { return __builtin_isinf(x); }
KVC_FN bool isinf(double x) { return __builtin_isinf(x); }
KVC_FN bool isfinite(float x) { return __builtin_isfinite(x); }
KVC_FN bool isfinite(double x) { return __builtin_isfinite(x); }
KVC_FN bool signbit(float x) { return __builtin_signbit(x); }
KVC_FN bool signbit(double x) { return __builtin_signbit(x); }
KVC_FN int abs(int x) { return x < 0 ? -x : x; }
KVC_FN long abs(long x) { return x < 0 ? -x : x; }
KVC_FN long long abs(long long x) { return x < 0 ? -x : x; }
KVC_FN float abs(float x) { return __builtin_fabsf(x); }
KVC_FN double abs(double x) { return __builtin_fabs(x); }
KVC_FN long labs(long x) { return x < 0 ? -x : x; }
KVC_FN long long llabs(long long x) { return x < 0 ? -x : x; }

#define KVC_MIN_MAX(T)                                          \
  KVC_FN T max(T a, T b) { return a > b ? a : b; }              \
  KVC_FN T min(T a, T b) { return a < b ? a : b; }
KVC_MIN_MAX(int)
KVC_MIN_MAX(unsigned int)
KVC_MIN_MAX(long)
KVC_MIN_MAX(unsigned long)
KVC_MIN_MAX(long long)
KVC_MIN_MAX(unsigned long long)
#undef KVC_MIN_MAX
// fmaxf semantics: the operand that is a number wins over a NaN.
KVC_FN float max(float a, float b) { return __builtin_fmaxf(a, b); }
KVC_FN float min(float a, float b) { return __builtin_fminf(a, b); }
KVC_FN double max(double a, double b) { return __builtin_fmax(a, b); }
KVC_FN double min(double a, double b) { return __builtin_fmin(a, b); }
KVC_FN double max(float a, double b) { return __builtin_fmax((double)a, b); }
KVC_FN double min(float a, double b) { return __builtin_fmin((double)a, b); }
KVC_FN double max(double a, float b) { return __builtin_fmax(a, (double)b); }
KVC_FN double min(double a, float b) { return __builtin_fmin(a, (double)b); }

namespace std {
using ::abs;
using ::fma;
using ::fmaf;
using ::frexp;
using ::isfinite;
using ::isinf;
using ::isnan;
using ::ldexp;
using ::lrint;
using ::lround;
using ::max;
using ::min;
using ::signbit;
}  // namespace std

// ---- rounding spelled out -------------------------------------------------------------------------------------------
// Each is rounded on its own: contraction into an fma with a neighbour is off inside.
#define KVC_ROUNDED(suffix, T, prefix)                          \
  KVC_FN T __##prefix##add_rn(T a, T b) {                       \
    _Pragma("clang fp contract(off)") return a + b;             \
  }                                                             \
  KVC_FN T __##prefix##sub_rn(T a, T b) {                       \
    _Pragma("clang fp contract(off)") return a - b;             \
  }                                                             \
  KVC_FN T __##prefix##mul_rn(T a, T b) {                       \
    _Pragma("clang fp contract(off)") return a * b;             \
  }                                                             \
  KVC_FN T __##prefix##div_rn(T a, T b) { return a / b; }       \
  KVC_FN T __##prefix##rcp_rn(T a) { return (T)1 / a; }         \
  KVC_FN T __##prefix##sqrt_rn(T a) { return __builtin_sqrt##suffix(a); }
KVC_ROUNDED(f, float, f)
KVC_ROUNDED(, double, d)
#undef KVC_ROUNDED
KVC_FN float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
KVC_FN double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
KVC_FN int __float2int_rn(float x) { return (int)__builtin_rintf(x); }
KVC_FN int __float2int_rz(float x) { return (int)x; }
KVC_FN int __float2int_rd(float x) { return (int)__builtin_floorf(x); }
KVC_FN int __float2int_ru(float x) { return (int)__builtin_ceilf(x); }
KVC_FN unsigned int __float2uint_rn(float x) { return (unsigned int)__builtin_rintf(x); }
KVC_FN unsigned int __float2uint_rz(float x) { return (unsigned int)x; }
KVC_FN float __int2float_rn(int x) { return (float)x; }
KVC_FN float __uint2float_rn(unsigned int x) { return (float)x; }
KVC_FN float __double2float_rn(double x) { return (float)x; }

// ---- one instruction each, approximate ---------------------------------------------------------------------------------
KVC_FN float __exp2f(float x) { return __builtin_amdgcn_exp2f(x); }
KVC_FN float __expf(float x) { return __builtin_amdgcn_exp2f(x * 1.44269504088896340736f); }
KVC_FN float __exp10f(float x) { return __builtin_amdgcn_exp2f(x * 3.32192809488736234787f); }
KVC_FN float __log2f(float x) { return __builtin_amdgcn_logf(x); }
KVC_FN float __logf(float x) { return __builtin_amdgcn_logf(x) * 0.693147180559945309417f; }
KVC_FN float __log10f(float x) { return __builtin_amdgcn_logf(x) * 0.301029995663981195214f; }
KVC_FN float __sinf(float x) { return __builtin_amdgcn_sinf(x * 0.159154943091895335769f); }
KVC_FN float __cosf(float x) { return __builtin_amdgcn_cosf(x * 0.159154943091895335769f); }
KVC_FN float __powf(float x, float y) { return __exp2f(y * __log2f(x)); }
KVC_FN float __fdividef(float x, float y) { return x * __builtin_amdgcn_rcpf(y); }
KVC_FN float __frsqrt_rn(float x) { return __builtin_amdgcn_rsqf(x); }
KVC_FN float __saturatef(float x) { return __builtin_amdgcn_fmed3f(x, 0.0f, 1.0f); }

#undef KVC_OCML_1
#undef KVC_OCML_2
#undef KVC_BUILTIN_1
#undef KVC_BUILTIN_2
#undef KVC_OVERLOAD_1
#undef KVC_OVERLOAD_2

#endif
