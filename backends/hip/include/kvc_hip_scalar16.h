// What the 16-bit float classes share. Included by kvc_hip_half.h and kvc_hip_bf16.h.
#ifndef KVC_HIP_SCALAR16_H
#define KVC_HIP_SCALAR16_H

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

#endif
