// Cross-lane moves and votes on a 64-lane wave. Included by kvc_hip_device.h.
//
// The source lane is computed as HIP documents it; `width` is a power of two up to the wave size and cuts the wave into
// sections that do not see one another. A lane whose source is outside its section keeps its own value. Reading an
// inactive lane gives 0 from ds_bpermute, where HIP says "undefined": sources must not rely on either. Halves go through
// float: not every HIP has shuffles for 16-bit types.
#ifndef KVC_HIP_LANES_H
#define KVC_HIP_LANES_H

KVC_FN int kvc_read_lane(int value, int lane) { return __builtin_amdgcn_ds_bpermute(lane << 2, value); }

KVC_FN int kvc_lane_shfl(int source, int width) {
  int self = (int)__lane_id();
  return (source & (width - 1)) + (self & ~(width - 1));
}
KVC_FN int kvc_lane_up(unsigned int delta, int width) {
  int self = (int)__lane_id();
  int lane = self - (int)delta;
  return lane < (self & ~(width - 1)) ? self : lane;
}
KVC_FN int kvc_lane_down(unsigned int delta, int width) {
  int self = (int)__lane_id();
  return (int)((self & (width - 1)) + delta) >= width ? self : self + (int)delta;
}
KVC_FN int kvc_lane_xor(int mask, int width) {
  int self = (int)__lane_id();
  int lane = self ^ mask;
  return lane >= ((self + width) & ~(width - 1)) ? self : lane;
}

// A value of 1, 2, 4 or 8 bytes, moved by whole 32-bit words.
template <class T>
KVC_FN T kvc_move(T value, int lane) {
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 1 to 8 bytes");
  if constexpr (sizeof(T) == 8) {
    uint64_t bits = __builtin_bit_cast(uint64_t, value);
    uint32_t low = (uint32_t)kvc_read_lane((int)(uint32_t)bits, lane);
    uint32_t high = (uint32_t)kvc_read_lane((int)(uint32_t)(bits >> 32), lane);
    return __builtin_bit_cast(T, ((uint64_t)high << 32) | low);
  } else if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(T, kvc_read_lane(__builtin_bit_cast(int, value), lane));
  } else if constexpr (sizeof(T) == 2) {
    return __builtin_bit_cast(T, (uint16_t)kvc_read_lane(__builtin_bit_cast(uint16_t, value), lane));
  } else {
    return __builtin_bit_cast(T, (uint8_t)kvc_read_lane(__builtin_bit_cast(uint8_t, value), lane));
  }
}

#define KVC_SHUFFLES(T)                                                                                              \
  KVC_FN T __shfl(T value, int source, int width = warpSize) { return kvc_move(value, kvc_lane_shfl(source, width)); } \
  KVC_FN T __shfl_up(T value, unsigned int delta, int width = warpSize) {                                            \
    return kvc_move(value, kvc_lane_up(delta, width));                                                               \
  }                                                                                                                  \
  KVC_FN T __shfl_down(T value, unsigned int delta, int width = warpSize) {                                          \
    return kvc_move(value, kvc_lane_down(delta, width));                                                             \
  }                                                                                                                  \
  KVC_FN T __shfl_xor(T value, int mask, int width = warpSize) { return kvc_move(value, kvc_lane_xor(mask, width)); }

KVC_SHUFFLES(int)
KVC_SHUFFLES(unsigned int)
KVC_SHUFFLES(long)
KVC_SHUFFLES(unsigned long)
KVC_SHUFFLES(long long)
KVC_SHUFFLES(unsigned long long)
KVC_SHUFFLES(float)
KVC_SHUFFLES(double)
#undef KVC_SHUFFLES

KVC_FN unsigned long long __ballot(int predicate) { return __builtin_amdgcn_ballot_w64(predicate != 0); }
KVC_FN unsigned long long __ballot64(int predicate) { return __builtin_amdgcn_ballot_w64(predicate != 0); }
KVC_FN int __any(int predicate) { return __builtin_amdgcn_ballot_w64(predicate != 0) != 0; }
KVC_FN int __all(int predicate) { return __builtin_amdgcn_ballot_w64(predicate == 0) == 0; }
KVC_FN unsigned long long __activemask() { return __builtin_amdgcn_ballot_w64(true); }

#endif
