// exp and log of our own. Written for one element without branches, so that the compiler can vectorise a loop over them; they
// consist of correctly rounded operations only, so vectorising changes no bit. `kernels/reference.py` states the same in torch.
#pragma once

#include "simd.h"

namespace lockstep {

// fp32 exp, error below 1 ulp; 0 below -87 (so never a subnormal), infinity above 88.72; exp(0) == 1.
// Polynomial and the two parts of ln 2: Cephes `expf`.
LS_INLINE float exp32(float x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which then sits in the low bits
  const float low = -87.0f, high = 88.72f;
  const float clamped = x < low ? low : (x > high ? high : x);
  const float shifted = std::fma(clamped, 1.44269504088896341f, magic);
  const float n = shifted - magic;
  float r = std::fma(n, -0.693359375f, clamped);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  p = std::fma(p, r * r, r) + 1.0f;
  // p is in [0.7, 1.42): adding n to its exponent is exact. The magic constant's own bits leave by the shift.
  const float y = bit_cast<float>(bit_cast<uint32_t>(p) + (bit_cast<uint32_t>(shifted) << 23));
  const float cut = x < low ? 0.0f : (x > high ? HUGE_VALF : y);
  return x != x ? x : cut;
}

// float64 exp for x <= 0, error below 1 ulp; 0 below -708. Method and coefficients: FDLIBM (Sun Microsystems, 1993) `e_exp`.
LS_INLINE double exp64(double x) {
  const double magic = 6755399441055744.0;  // 1.5 * 2^52
  const double low = -708.0;
  const double clamped = x < low ? low : x;
  const double shifted = clamped * 1.44269504088896338700 + magic;
  const double n = shifted - magic;
  const double hi = clamped - n * 6.93147180369123816490e-01;  // the product is exact
  const double lo = n * 1.90821492927058770002e-10;
  const double r = hi - lo;
  const double t = r * r;
  const double p3 = 6.61375632143793436117e-05 + t * (-1.65339022054652515390e-06 + t * 4.13813679705723846039e-08);
  const double c = r - t * (1.66666666666666019037e-01 + t * (-2.77777777770155933842e-03 + t * p3));
  const double p = 1.0 - ((lo - (r * c) / (2.0 - c)) - hi);
  const double y = bit_cast<double>(bit_cast<uint64_t>(p) + (bit_cast<uint64_t>(shifted) << 52));
  const double cut = x < low ? 0.0 : y;
  return x != x ? x : cut;
}

// float64 log of a positive normal number, error below 1 ulp. Method and coefficients: FDLIBM `e_log`.
LS_INLINE double log64(double x) {
  const uint64_t sqrt_half = 0x3fe6a09e00000000u, one = 0x3ff0000000000000u;
  const uint64_t u = bit_cast<uint64_t>(x) + (one - sqrt_half);
  // x = 2^k * m with m in [sqrt(1/2), sqrt(2)). k as a double by the bits of 2^52 + (k + 1023).
  const double k = bit_cast<double>((u >> 52) | 0x4330000000000000u) - (4503599627370496.0 + 1023.0);
  const double f = bit_cast<double>((u & 0x000fffffffffffffu) + sqrt_half) - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s, w = z * z;
  const double even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double odd = z * (6.666666666666735130e-01 +
                          w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  const double half_square = 0.5 * f * f;
  const double tail = s * (half_square + (odd + even)) + k * 1.90821492927058770002e-10;
  return k * 6.93147180369123816490e-01 - ((half_square - tail) - f);
}

}  // namespace lockstep
