/* What the forms of ALU opcodes call. No C library: the object is linked by itself. */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;

#define LANES 64
#define INLINE static inline __attribute__((always_inline))

void *memcpy(void *, const void *, __SIZE_TYPE__);
void *memset(void *, int, __SIZE_TYPE__);

INLINE float float_of(u32 x) { float f; __builtin_memcpy(&f, &x, 4); return f; }
INLINE u32 bits_of(float f) { u32 x; __builtin_memcpy(&x, &f, 4); return x; }
INLINE double double_of(u64 x) { double f; __builtin_memcpy(&f, &x, 8); return f; }
INLINE u64 bits64_of(double f) { u64 x; __builtin_memcpy(&x, &f, 8); return x; }
INLINE float from_half(u32 x) { u16 h = (u16)x; _Float16 f; __builtin_memcpy(&f, &h, 2); return (float)f; }
INLINE u32 half(float f) { _Float16 h = (_Float16)f; u16 x; __builtin_memcpy(&x, &h, 2); return x; }

/* double to float rounded to odd: a further rounding to a narrower format is then right */
INLINE float to_odd(double d) {
  float f = (float)d;
  u32 x = bits_of(f);
  double back = (double)f;
  i32 inexact = back != d && d == d && !(x & 1);
  i32 away = (d > back) == (back > 0 || (back == 0 && d > 0));
  return float_of(x + (u32)(inexact ? (away ? 1 : -1) : 0));
}
/* a double beyond float's range rounds to an infinity either way; within it the odd float decides */
INLINE u32 half64(double d) { return half(__builtin_fabs(d) > 3e38 ? (float)d : to_odd(d)); }
INLINE float fma16(float a, float b, float c) { return from_half(half64((double)a * (double)b + (double)c)); }
INLINE float fma32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

INLINE float flush(float x) {
  u32 b = bits_of(x);
  return __builtin_fabsf(x) < 0x1p-126f ? float_of(b & 0x80000000u) : x;
}

INLINE int signalling32(float a) { return a != a && !(bits_of(a) & 0x400000u); }
INLINE float quiet32(float a) { return float_of(bits_of(a) | 0x400000u); }
INLINE float pick32(float a, float b, float r) {
  r = a != a ? b : b != b ? a : r;
  r = signalling32(b) ? quiet32(b) : r;
  return signalling32(a) ? quiet32(a) : r;
}
INLINE float min32(float a, float b) {
  return pick32(a, b, a < b ? a : b < a ? b : float_of(bits_of(a) | bits_of(b)));
}
INLINE float max32(float a, float b) {
  return pick32(a, b, a > b ? a : b > a ? b : float_of(bits_of(a) & bits_of(b)));
}
INLINE float med32(float a, float b, float c) {
  float top = max32(max32(a, b), c);
  float among = top == b ? max32(a, c) : max32(a, b);
  among = top == a ? max32(b, c) : among;
  return a != a || b != b || c != c ? min32(min32(a, b), c) : among;
}
INLINE int signalling64(double a) { return a != a && !(bits64_of(a) & 0x8000000000000ull); }
INLINE double quiet64(double a) { return double_of(bits64_of(a) | 0x8000000000000ull); }
INLINE double pick64(double a, double b, double r) {
  r = a != a ? b : b != b ? a : r;
  r = signalling64(b) ? quiet64(b) : r;
  return signalling64(a) ? quiet64(a) : r;
}
INLINE double min64(double a, double b) {
  return pick64(a, b, a < b ? a : b < a ? b : double_of(bits64_of(a) | bits64_of(b)));
}
INLINE double max64(double a, double b) {
  return pick64(a, b, a > b ? a : b > a ? b : double_of(bits64_of(a) & bits64_of(b)));
}
/* halves as integers in the order of the numbers, -0 below +0 */
INLINE i32 order16(u32 x) { i32 v = (i16)x; return v ^ (v >> 15 & 0x7fff); }
INLINE int nan16(u32 x) { return (x & 0x7fff) > 0x7c00; }
INLINE u32 pick16(u32 a, u32 b, u32 r) {
  r = nan16(a) ? b : nan16(b) ? a : r;
  r = nan16(b) && !(b & 0x200) ? b | 0x200 : r;
  return nan16(a) && !(a & 0x200) ? a | 0x200 : r;
}
INLINE u32 min16(u32 a, u32 b) { return pick16(a, b, order16(a) < order16(b) ? a : b); }
INLINE u32 max16(u32 a, u32 b) { return pick16(a, b, order16(a) > order16(b) ? a : b); }

INLINE float fract32(float x) {
  float r = x - __builtin_floorf(x);
  return r > 0x1.fffffep-1f ? 0x1.fffffep-1f : r;
}
INLINE double power2(i32 n) { return double_of((u64)(n + 1023) << 52); }
/* x 2^n without loss where x has at most 24 bits: the double holds every result that matters */
INLINE double scale2(double x, i32 n) {
  n = n > 400 ? 400 : n < -400 ? -400 : n;
  return x * power2(n);
}
INLINE i32 frexp_exponent32(float x) {
  double d = (double)x;
  i32 e = (i32)(bits64_of(d) >> 52 & 2047);
  return x == 0 || __builtin_fabsf(x) > 0x1.fffffep127f || x != x ? 0 : e - 1022;
}
INLINE float frexp_mantissa32(float x) {
  i32 e = frexp_exponent32(x);
  return x == 0 || __builtin_fabsf(x) > 0x1.fffffep127f || x != x ? x : (float)((double)x * power2(-e));
}

/* 2^x to about a unit in the last place of a double; the exponential series on |t| <= ln(2) / 2 */
INLINE double exp2_64(double x) {
  double y = x > 1000 ? 1000 : x < -1000 ? -1000 : x;
  y = x != x ? 0 : y;
  double n = __builtin_rint(y), t = (y - n) * 0x1.62e42fefa39efp-1;
  double p = 1.0 / 87178291200;
  p = p * t + 1.0 / 6227020800; p = p * t + 1.0 / 479001600; p = p * t + 1.0 / 39916800;
  p = p * t + 1.0 / 3628800; p = p * t + 1.0 / 362880; p = p * t + 1.0 / 40320; p = p * t + 1.0 / 5040;
  p = p * t + 1.0 / 720; p = p * t + 1.0 / 120; p = p * t + 1.0 / 24; p = p * t + 1.0 / 6; p = p * t + 0.5;
  p = p * t + 1; p = p * t + 1;
  double r = p * power2((i32)n);
  return x != x ? x : r;
}
/* log2 x of a normal double: the series of artanh on m in [sqrt(1/2), sqrt(2)) */
INLINE double log2_64(double x) {
  u64 b = bits64_of(x);
  i32 e = (i32)(b >> 52 & 2047) - 1023;
  double m = double_of((b & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  int big = m > 0x1.6a09e667f3bcdp0;
  m = big ? m * 0.5 : m;
  e += big;
  double s = (m - 1) / (m + 1), z = s * s, p = 1.0 / 23;
  p = p * z + 1.0 / 21; p = p * z + 1.0 / 19; p = p * z + 1.0 / 17; p = p * z + 1.0 / 15; p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11; p = p * z + 1.0 / 9; p = p * z + 1.0 / 7; p = p * z + 1.0 / 5; p = p * z + 1.0 / 3;
  p = p * z + 1;
  double r = (double)e + 2 * s * p * 0x1.71547652b82fep0;
  r = x == 0 ? -__builtin_inf() : x < 0 ? __builtin_nan("") : r;
  return x > 0x1.fffffffffffffp1023 || x != x ? x : r;
}
INLINE double sine_series(double y) {
  double z = y * y, p = 1.0 / 51090942171709440000.0;
  p = -1.0 / 121645100408832000.0 + p * z; p = 1.0 / 355687428096000.0 + p * z; p = -1.0 / 1307674368000.0 + p * z;
  p = 1.0 / 6227020800.0 + p * z; p = -1.0 / 39916800.0 + p * z; p = 1.0 / 362880.0 + p * z; p = -1.0 / 5040.0 + p * z;
  p = 1.0 / 120.0 + p * z; p = -1.0 / 6.0 + p * z;
  return y + y * z * p;
}
INLINE double sine_folded(double x) {
  double f = x - __builtin_rint(x);
  f = __builtin_fabs(f) > 0.25 ? __builtin_copysign(0.5, f) - f : f;
  return sine_series(2 * 3.141592653589793 * f);
}
INLINE double within(double x) { return __builtin_fabs(x) <= 256 ? x : x * 0; }
INLINE double sin_turns(double x) { return sine_folded(within(x)); }
INLINE double cos_turns(double x) {
  double t = within(x);
  return sine_folded(0.25 - __builtin_fabs(t - __builtin_rint(t)));
}

INLINE i64 truncated(double x, double low, double high) {
  x = x != x ? 0 : x > low ? x : low;
  return (i64)(x < high ? x : high);
}
INLINE i32 clamped(i32 x, i32 low, i32 high) { return x < low ? low : x > high ? high : x; }
INLINE u32 half_toward_zero(float x) {
  u32 h = half(x);
  return h - (__builtin_fabsf(from_half(h)) > __builtin_fabsf(x));
}
INLINE u32 bf16(float x) {
  u32 b = bits_of(x);
  return x != x ? b >> 16 | 0x40 : (b + (b >> 16 & 1) + 0x7fff) >> 16;
}

INLINE float div_fixup32(float q, float den, float num) {
  u32 sign = (bits_of(den) ^ bits_of(num)) & 0x80000000u;
  float size = __builtin_fabsf(q), inf = __builtin_inff();
  int den_inf = __builtin_fabsf(den) == inf, num_inf = __builtin_fabsf(num) == inf;
  i32 gap = (i32)(bits_of(num) >> 23 & 255) - (i32)(bits_of(den) >> 23 & 255);
  int ordinary = den == den && num == num && !den_inf && !num_inf && den != 0 && num != 0;
  int below = ordinary && gap < -150;
  int above = ordinary && !(size < inf) && !below;
  size = den_inf || num == 0 ? 0 : size;
  size = den == 0 || num_inf ? inf : size;
  size = below ? 0 : above ? inf : size;
  float r = float_of((bits_of(size) & 0x7fffffffu) | sign);
  r = (den == 0 && num == 0) || (den_inf && num_inf) ? float_of(0xffc00000u) : r;
  r = den != den ? quiet32(den) : r;
  return num != num ? quiet32(num) : r;
}

INLINE u32 below(i32 lane) { return lane <= 0 ? 0 : lane >= 32 ? 0xffffffffu : (1u << lane) - 1; }
INLINE i32 signed24(i32 x) { return (i32)((u32)x << 8) >> 8; }
INLINE i32 bfe_signed(i32 a, u32 at, u32 width) {
  u32 mask = (1u << width) - 1, field = (u32)(a >> at) & mask, sign = (mask >> 1) + (width != 0);
  return (i32)((field ^ sign) - sign);
}
INLINE u32 field_mask(u32 width) { return width >= 32 ? 0xffffffffu : (1u << width) - 1; }
INLINE i32 scalar_bfe_signed(i32 a, u32 b) {
  u32 width = b >> 16 & 127, field = (u32)(a >> (b & 31)) & field_mask(width);
  u32 sign = width ? 1u << ((width - 1) & 31) : 0;
  return (i32)(width >= 32 ? field : (field ^ sign) - sign);
}
INLINE u32 bitop3(u32 a, u32 b, u32 c, u32 table) {
  u32 r = 0;
  for (int row = 0; row < 8; row++)
    r |= (table >> row & 1 ? ~0u : 0u) & (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
  return r;
}
INLINE u32 perm_byte(u64 data, u32 s) {
  u32 moved = (u32)(data >> ((s & 7) * 8)) & 255, sign = (u32)(data >> ((s & 3) * 16 + 15) & 1) * 255;
  return s >= 13 ? 255 : s >= 12 ? 0 : s >= 8 ? sign : moved;
}
INLINE u32 perm(u32 a, u32 b, u32 s) {
  u64 data = (u64)a << 32 | b;
  return perm_byte(data, s & 255) | perm_byte(data, s >> 8 & 255) << 8 | perm_byte(data, s >> 16 & 255) << 16 |
         perm_byte(data, s >> 24) << 24;
}
INLINE u32 dot4_signed(u32 a, u32 b) {
  u32 r = 0;
  for (int i = 0; i < 32; i += 8) r += (u32)((i8)(a >> i) * (i8)(b >> i));
  return r;
}
/* the class of a float as one bit: sNaN, qNaN, -inf, -normal, -denormal, -0, +0, +denormal, +normal, +inf */
INLINE u32 classes32(u32 x) {
  u32 size = x & 0x7fffffffu, negative = x >> 31;
  u32 plain = size == 0 ? 6 : size < 0x800000u ? 7 : size < 0x7f800000u ? 8 : 9;
  u32 place = negative ? 11 - plain : plain;
  return size > 0x7f800000u ? (size & 0x400000u ? 2u : 1u) : 1u << place;
}

/* a * b + c as a double rounded to odd: ready to be scaled by a power of two and rounded once more */
INLINE double fma_odd(float a, float b, float c) {
  double product = (double)a * (double)b, wide = (double)c, total = product + wide, added = total - product;
  double error = (product - (total - added)) + (wide - added);
  i64 inexact = error != 0 && error == error && !(bits64_of(total) & 1);
  i64 away = (error > 0) == (total > 0);
  return double_of(bits64_of(total) + (u64)(inexact ? (away ? 1 : -1) : 0));
}
INLINE float div_fmas32(float a, float b, float c, u32 scaled) {
  i32 shift = (i32)(bits_of(c) >> 23 & 255) > 127 ? 64 : -64;
  return scaled ? (float)(fma_odd(a, b, c) * power2(shift)) : fma32(a, b, c);
}
/* the scaled operand; bit 0 of `mask` says that v_div_fmas has to undo it */
INLINE float div_scale32(float x, float den, float num, u32 *mask) {
  i32 e_num = (i32)(bits_of(num) >> 23 & 255), e_den = (i32)(bits_of(den) >> 23 & 255);
  double quotient = __builtin_fabs((double)num / (double)den);
  int den_inf = __builtin_fabsf(den) == __builtin_inff();
  int no_quotient = quotient < 0x1p-126 && num != 0 && !den_inf, no_inverse = __builtin_fabsf(den) > 0x1p126f;
  i32 shift = 0, is_den = x == den, is_num = x == num;
  *mask = 0;
  if (num == 0 || den == 0) return float_of(0x7fc00000u);
  if (e_num - e_den >= 96) { shift = 64 * is_den; *mask = 1; }
  else if (e_den == 0) shift = 64;
  else if (no_inverse && no_quotient) { shift = -64 * is_den; *mask = 1; }
  else if (no_inverse) shift = -64;
  else if (no_quotient) { shift = 64 * is_num; *mask = 1; }
  else if (e_num <= 23) shift = 64;
  return shift ? (float)((double)x * power2(shift)) : x;
}
INLINE i64 clamped64(i64 x, i64 low, i64 high) { return x < low ? low : x > high ? high : x; }

typedef struct { i32 bits, mantissa, bias, largest, overflow, nan, fnuz; } Small;

/* a small float to nearest even, or (noise >= 0) up where the fraction of a unit and the noise reach one */
INLINE u32 encoded(const Small *f, float x, double noise) {
  double size = __builtin_fabs((double)x);
  int infinite = size > 3.5e38;
  double finite = infinite || x != x ? 0 : size;
  i32 lowest = 1 - f->bias, e = (i32)(bits64_of(finite) >> 52) - 1023;
  e = finite > 0 && e > lowest ? e : lowest;
  double units = finite * power2(f->mantissa - e);
  units = noise < 0 ? __builtin_rint(units) : __builtin_floor(units + noise);
  i64 code = (i64)units + ((i64)(e - lowest) << f->mantissa);
  code = code > f->largest || infinite ? f->overflow : code;
  code = x != x ? f->nan : code;
  u32 negative = bits_of(x) >> 31;
  if (f->fnuz) negative &= code != 0 && code != 0x80;
  return (u32)code | negative << (f->bits - 1);
}
INLINE double noise_of(u32 random, i32 bits) { return (double)(random >> (32 - bits)) * power2(-bits); }
