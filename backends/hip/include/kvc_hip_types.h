// Vector types (float2 ... uint4) as HIP names them. Included by kvc_hip_device.h.
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

// The make_ functions are templates so that the classes which a kernel does not use cost it no compile time.
#define KVC_VECTORS(T, name)                                                                \
  typedef HIP_vector_type<T, 1> name##1;                                                    \
  typedef HIP_vector_type<T, 2> name##2;                                                    \
  typedef HIP_vector_type<T, 3> name##3;                                                    \
  typedef HIP_vector_type<T, 4> name##4;                                                    \
  template <class X>                                                                        \
  KVC_HD name##1 make_##name##1(X x) {                                                      \
    return name##1((T)x);                                                                   \
  }                                                                                         \
  template <class X, class Y>                                                               \
  KVC_HD name##2 make_##name##2(X x, Y y) {                                                 \
    return name##2((T)x, (T)y);                                                             \
  }                                                                                         \
  template <class X, class Y, class Z>                                                      \
  KVC_HD name##3 make_##name##3(X x, Y y, Z z) {                                            \
    return name##3((T)x, (T)y, (T)z);                                                       \
  }                                                                                         \
  template <class X, class Y, class Z, class W>                                             \
  KVC_HD name##4 make_##name##4(X x, Y y, Z z, W w) {                                       \
    return name##4((T)x, (T)y, (T)z, (T)w);                                                 \
  }
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

#endif
