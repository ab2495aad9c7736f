// Vector types (float2 ... uint4), half and bfloat16, as HIP names them. Included by kvc_hip_device.h.
#ifndef KVC_HIP_TYPES_H
#define KVC_HIP_TYPES_H

// ---- vectors: alignment is the size of the vector (float3: 4 bytes), as in HIP -----------------------------------------
#define KVC_HD inline __attribute__((host, device, always_inline))

template <class T, unsigned int n>
struct HIP_vector_type;
template <class T>
struct HIP_vector_type<T, 1> {
  T x;
  HIP_vector_type() = default;
  constexpr KVC_HD explicit HIP_vector_type(T x) : x(x) {}
};
template <class T>
struct alignas(2 * sizeof(T)) HIP_vector_type<T, 2> {
  T x, y;
  HIP_vector_type() = default;
  constexpr KVC_HD explicit HIP_vector_type(T s) : x(s), y(s) {}
  constexpr KVC_HD HIP_vector_type(T x, T y) : x(x), y(y) {}
};
template <class T>
struct HIP_vector_type<T, 3> {
  T x, y, z;
  HIP_vector_type() = default;
  constexpr KVC_HD explicit HIP_vector_type(T s) : x(s), y(s), z(s) {}
  constexpr KVC_HD HIP_vector_type(T x, T y, T z) : x(x), y(y), z(z) {}
};
template <class T>
struct alignas(4 * sizeof(T)) HIP_vector_type<T, 4> {
  T x, y, z, w;
  HIP_vector_type() = default;
  constexpr KVC_HD explicit HIP_vector_type(T s) : x(s), y(s), z(s), w(s) {}
  constexpr KVC_HD HIP_vector_type(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}
};

// The scalar of a mixed expression converts to the element type and does not take part in deduction.
template <class T>
struct kvc_same {
  typedef T type;
};
#define KVC_VECTOR_OP(op)                                                                                             \
  template <class T, unsigned int n>                                                                                  \
  KVC_HD HIP_vector_type<T, n> operator op(const HIP_vector_type<T, n>& a, const HIP_vector_type<T, n>& b) {          \
    if constexpr (n == 1) return HIP_vector_type<T, n>(T(a.x op b.x));                                                \
    if constexpr (n == 2) return HIP_vector_type<T, n>(T(a.x op b.x), T(a.y op b.y));                                 \
    if constexpr (n == 3) return HIP_vector_type<T, n>(T(a.x op b.x), T(a.y op b.y), T(a.z op b.z));                  \
    if constexpr (n == 4) return HIP_vector_type<T, n>(T(a.x op b.x), T(a.y op b.y), T(a.z op b.z), T(a.w op b.w));   \
  }                                                                                                                   \
  template <class T, unsigned int n>                                                                                  \
  KVC_HD HIP_vector_type<T, n> operator op(const HIP_vector_type<T, n>& a, typename kvc_same<T>::type s) {            \
    return a op HIP_vector_type<T, n>(s);                                                                             \
  }                                                                                                                   \
  template <class T, unsigned int n>                                                                                  \
  KVC_HD HIP_vector_type<T, n> operator op(typename kvc_same<T>::type s, const HIP_vector_type<T, n>& b) {            \
    return HIP_vector_type<T, n>(s) op b;                                                                             \
  }                                                                                                                   \
  template <class T, unsigned int n, class Right>                                                                     \
  KVC_HD HIP_vector_type<T, n>& operator op##=(HIP_vector_type<T, n>& a, const Right& b) {                            \
    return a = a op b;                                                                                                \
  }
KVC_VECTOR_OP(+)
KVC_VECTOR_OP(-)
KVC_VECTOR_OP(*)
KVC_VECTOR_OP(/)
#undef KVC_VECTOR_OP

template <class T>
KVC_HD bool operator==(const HIP_vector_type<T, 2>& a, const HIP_vector_type<T, 2>& b) {
  return a.x == b.x && a.y == b.y;
}
template <class T>
KVC_HD bool operator==(const HIP_vector_type<T, 4>& a, const HIP_vector_type<T, 4>& b) {
  return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w;
}

#define KVC_VECTORS(T, name)                                                                \
  typedef HIP_vector_type<T, 1> name##1;                                                    \
  typedef HIP_vector_type<T, 2> name##2;                                                    \
  typedef HIP_vector_type<T, 3> name##3;                                                    \
  typedef HIP_vector_type<T, 4> name##4;                                                    \
  KVC_HD name##1 make_##name##1(T x) { return name##1(x); }                                 \
  KVC_HD name##2 make_##name##2(T x, T y) { return name##2(x, y); }                         \
  KVC_HD name##3 make_##name##3(T x, T y, T z) { return name##3(x, y, z); }                 \
  KVC_HD name##4 make_##name##4(T x, T y, T z, T w) { return name##4(x, y, z, w); }
KVC_VECTORS(signed char, char)
KVC_VECTORS(unsigned char, uchar)
KVC_VECTORS(short, short)
KVC_VECTORS(unsigned short, ushort)
KVC_VECTORS(int, int)
KVC_VECTORS(unsigned int, uint)
KVC_VECTORS(long, long)
KVC_VECTORS(unsigned long, ulong)
KVC_VECTORS(long long, longlong)
KVC_VECTORS(unsigned long long, ulonglong)
KVC_VECTORS(float, float)
KVC_VECTORS(double, double)
#undef KVC_VECTORS

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

// Arithmetic on a storage type S whose value type is V: one rounding an operation, as HIP's own operators do.
#define KVC_SCALAR_OPS(S, V)                                                              \
  KVC_HD S operator+(S a, S b) { return S((V)((V)a.data + (V)b.data)); }                  \
  KVC_HD S operator-(S a, S b) { return S((V)((V)a.data - (V)b.data)); }                  \
  KVC_HD S operator*(S a, S b) { return S((V)((V)a.data * (V)b.data)); }                  \
  KVC_HD S operator/(S a, S b) { return S((V)((V)a.data / (V)b.data)); }                  \
  KVC_HD S operator-(S a) { return S((V)(-(V)a.data)); }                                  \
  KVC_HD S& operator+=(S& a, S b) { return a = a + b; }                                   \
  KVC_HD S& operator-=(S& a, S b) { return a = a - b; }                                   \
  KVC_HD S& operator*=(S& a, S b) { return a = a * b; }                                   \
  KVC_HD S& operator/=(S& a, S b) { return a = a / b; }                                   \
  KVC_HD bool operator==(S a, S b) { return a.data == b.data; }                           \
  KVC_HD bool operator!=(S a, S b) { return a.data != b.data; }                           \
  KVC_HD bool operator<(S a, S b) { return a.data < b.data; }                             \
  KVC_HD bool operator<=(S a, S b) { return a.data <= b.data; }                           \
  KVC_HD bool operator>(S a, S b) { return a.data > b.data; }                             \
  KVC_HD bool operator>=(S a, S b) { return a.data >= b.data; }                           \
  KVC_HD S __hadd(S a, S b) { return a + b; }                                             \
  KVC_HD S __hsub(S a, S b) { return a - b; }                                             \
  KVC_HD S __hmul(S a, S b) { return a * b; }                                             \
  KVC_HD S __hdiv(S a, S b) { return a / b; }                                             \
  KVC_HD S __hneg(S a) { return -a; }                                                     \
  KVC_HD bool __heq(S a, S b) { return a == b; }                                          \
  KVC_HD bool __hne(S a, S b) { return a != b; }                                          \
  KVC_HD bool __hlt(S a, S b) { return a < b; }                                           \
  KVC_HD bool __hle(S a, S b) { return a <= b; }                                          \
  KVC_HD bool __hgt(S a, S b) { return a > b; }                                           \
  KVC_HD bool __hge(S a, S b) { return a >= b; }                                          \
  KVC_HD bool __hisnan(S a) { return a.data != a.data; }                                  \
  KVC_HD S __hmax(S a, S b) { return S((V)__builtin_fmaxf((float)a.data, (float)b.data)); } \
  KVC_HD S __hmin(S a, S b) { return S((V)__builtin_fminf((float)a.data, (float)b.data)); } \
  KVC_HD S __habs(S a) { return S((V)__builtin_fabsf((float)a.data)); }

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

// ---- bfloat16: clang's __bf16 rounds to nearest even and keeps NaN a NaN ----------------------------------------------
struct __hip_bfloat16 {
  __bf16 data;
  __hip_bfloat16() = default;
  KVC_HD __hip_bfloat16(float v) : data((__bf16)v) {}
  KVC_HD explicit __hip_bfloat16(__bf16 v) : data(v) {}
  KVC_HD __hip_bfloat16(double v) : data((__bf16)v) {}
  KVC_HD __hip_bfloat16(int v) : data((__bf16)(float)v) {}
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
KVC_HD float __bfloat162float(__hip_bfloat16 v) { return (float)v.data; }
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
#undef KVC_SCALAR_OPS

#endif
