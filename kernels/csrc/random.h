// Addressed random numbers (law 9). Philox4x32-10 (Salmon et al., SC 2011) with
//   key     = the low and the high 32 bits of the seed
//   counter = (token id / 2, position bits 0..31, position bits 32..55 | purpose << 24, sample_index)
// so no two of (seed, sample_index, position < 2^56, purpose, token id) share bits. Words 0, 1 of a block are for its even id and
// words 2, 3 for the odd one: 52 bits (low word first), u = (bits + 1/2) * 2^-52. 52 and not 53: so u is exact and below 1.
#pragma once

#include "elementary.h"

namespace lockstep {

struct Philox {
  uint32_t word[4];
};

LS_INLINE Philox philox(Philox counter, uint32_t key0, uint32_t key1) {
  auto [c0, c1, c2, c3] = counter.word;
  for (int round = 0; round < 10; round++) {
    const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ key0;
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ key1;
    c1 = static_cast<uint32_t>(b);
    c3 = static_cast<uint32_t>(a);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Where the draws of one row are.
struct DrawAddress {
  uint32_t key0, key1, c1, c2, c3;

  DrawAddress(int64_t seed, int32_t sample_index, int64_t position, int purpose)
      : key0(static_cast<uint32_t>(seed)),
        key1(static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32)),
        c1(static_cast<uint32_t>(position)),
        c2(static_cast<uint32_t>(position >> 32) | static_cast<uint32_t>(purpose) << 24),
        c3(static_cast<uint32_t>(sample_index)) {}

  LS_INLINE Philox block(uint32_t index) const { return philox({{index, c1, c2, c3}}, key0, key1); }
};

// The 52 bits as the fraction of a double in [1, 2).
LS_INLINE double unit_from_words(uint32_t low, uint32_t high) {
  return bit_cast<double>(((static_cast<uint64_t>(high) << 32 | low) >> 12) | 0x3ff0000000000000u);
}

LS_INLINE double gumbel_from_unit(double unit) {
  const double u = unit - (1.0 - 0x1p-53);  // exact
  return -log64(-log64(u));
}

}  // namespace lockstep
