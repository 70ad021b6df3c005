// The 8-lane vector over which the contract defines every reduction: AVX2 where the compiler may use it, else plain arrays.
// Both give the same bits: each function is one correctly rounded operation for each lane.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

#define LS_INLINE inline __attribute__((always_inline))

namespace lockstep {

template <class To, class From>
LS_INLINE To bit_cast(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To out;
  std::memcpy(&out, &value, sizeof out);
  return out;
}

#if defined(__AVX2__) && defined(__FMA__)

using f32x8 = __m256;

LS_INLINE f32x8 broadcast(float a) { return _mm256_set1_ps(a); }
LS_INLINE f32x8 load(const float* p) { return _mm256_loadu_ps(p); }
LS_INLINE void store(float* p, f32x8 a) { _mm256_storeu_ps(p, a); }
LS_INLINE f32x8 add(f32x8 a, f32x8 b) { return _mm256_add_ps(a, b); }
LS_INLINE f32x8 mul(f32x8 a, f32x8 b) { return _mm256_mul_ps(a, b); }
LS_INLINE f32x8 fma(f32x8 a, f32x8 b, f32x8 c) { return _mm256_fmadd_ps(a, b, c); }
// a > b ? a : b, so b if one of them is a NaN.
LS_INLINE f32x8 max(f32x8 a, f32x8 b) { return _mm256_max_ps(a, b); }
// A lane of the result is a NaN if that lane of a or of b is one; else its value means nothing.
LS_INLINE f32x8 mark_nan(f32x8 a, f32x8 b) { return _mm256_or_ps(a, _mm256_cmp_ps(b, b, _CMP_UNORD_Q)); }

// One row of a bf16 panel: 16-bit element 2j is output j, element 2j + 1 is output j + 8 (see `linear.cpp`).
LS_INLINE void widen(const uint16_t* p, f32x8& low, f32x8& high) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  low = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
  high = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Lane r of the result is the lane sum of v[r], by the tree of `lane_sum`.
LS_INLINE f32x8 lane_sums(const f32x8 (&v)[8]) {
  const auto halves = [](f32x8 a, f32x8 b) { return add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)); };
  const auto pairs = [](f32x8 a, f32x8 b) { return add(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee)); };
  const f32x8 even_rows = pairs(halves(v[0], v[4]), halves(v[1], v[5]));
  const f32x8 odd_rows = pairs(halves(v[2], v[6]), halves(v[3], v[7]));
  return add(_mm256_shuffle_ps(even_rows, odd_rows, 0x88), _mm256_shuffle_ps(even_rows, odd_rows, 0xdd));
}

#else

struct f32x8 {
  float lane[8];
};

template <class F>
LS_INLINE f32x8 each_lane(F&& f) {
  f32x8 out;
  for (int i = 0; i < 8; i++) out.lane[i] = f(i);
  return out;
}

LS_INLINE f32x8 broadcast(float a) { return each_lane([&](int) { return a; }); }
LS_INLINE f32x8 load(const float* p) { return each_lane([&](int i) { return p[i]; }); }
LS_INLINE void store(float* p, f32x8 a) { std::memcpy(p, a.lane, sizeof a.lane); }
LS_INLINE f32x8 add(f32x8 a, f32x8 b) { return each_lane([&](int i) { return a.lane[i] + b.lane[i]; }); }
LS_INLINE f32x8 mul(f32x8 a, f32x8 b) { return each_lane([&](int i) { return a.lane[i] * b.lane[i]; }); }
LS_INLINE f32x8 fma(f32x8 a, f32x8 b, f32x8 c) {
  return each_lane([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
}
LS_INLINE f32x8 max(f32x8 a, f32x8 b) { return each_lane([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; }); }
LS_INLINE f32x8 mark_nan(f32x8 a, f32x8 b) {
  return each_lane([&](int i) { return b.lane[i] != b.lane[i] ? b.lane[i] : a.lane[i]; });
}

LS_INLINE void widen(const uint16_t* p, f32x8& low, f32x8& high) {
  low = each_lane([&](int i) { return bit_cast<float>(static_cast<uint32_t>(p[2 * i]) << 16); });
  high = each_lane([&](int i) { return bit_cast<float>(static_cast<uint32_t>(p[2 * i + 1]) << 16); });
}

#endif

LS_INLINE float lane_sum(f32x8 v) {
  float l[8];
  store(l, v);
  return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

#if !(defined(__AVX2__) && defined(__FMA__))
LS_INLINE f32x8 lane_sums(const f32x8 (&v)[8]) { return each_lane([&](int i) { return lane_sum(v[i]); }); }
#endif

LS_INLINE bool any_nan(f32x8 v) {
  float l[8];
  store(l, v);
  bool any = false;
  for (float x : l) any |= x != x;
  return any;
}

// The tail of a lane-wise chain: n < 8 elements. A lane without an element keeps its value (even a -0, which + 0 would lose).
inline f32x8 fma_tail(const float* a, const float* b, f32x8 acc, int64_t n) {
  float l[8];
  store(l, acc);
  for (int64_t i = 0; i < n; i++) l[i] = std::fma(a[i], b[i], l[i]);
  return load(l);
}

}  // namespace lockstep
