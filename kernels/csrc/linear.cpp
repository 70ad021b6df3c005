// Linear layers on packed weights. A weight [N, K] is stored in panels of 16 outputs, [ceil(N / 16)][K][16], the last one padded
// with zeros. Each output is a sum of segments: for every 128 k one chain of fused multiply-adds from +0, and the chains are added
// in k order. (One chain over all k has twice the rounding error.) Blocks of k hold whole segments, so no blocking changes a bit.
//
// A quantized weight has a byte for each value, and scales. A block of it is dequantized (value * scale, rounded once to fp32) and
// then goes the way of an fp32 weight, so the result is that of the dequantized weight, bit for bit.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "context.h"
#include "simd.h"

namespace lockstep {
namespace {

constexpr int64_t kWidth = 16;      // outputs of a panel
constexpr int64_t kMaxRows = 6;     // rows of a tile: 12 accumulators of the 16 vector registers
constexpr int64_t kRowBlock = 120;  // with a block of k: 138 KB of x, for the L2 cache
constexpr int64_t kSegment = 128;   // k of one chain; part of what the bits are
constexpr int64_t kBlock = 256;     // whole segments; with a panel: 16 KB of weights, for the L1 cache
constexpr int64_t kScaleBlock = 128;  // k that share a scale, where all of them do not
constexpr int64_t kMaxPanels = 4;     // of a tile

struct Shape {
  int64_t m, n, k;
};

// Where output `j` of a panel's row is stored. bf16 rows interleave the halves: widening 8 pairs is a shift and a mask.
template <class Weight>
LS_INLINE int64_t place(int64_t j) {
  return std::is_same_v<Weight, uint16_t> ? 2 * (j % 8) + j / 8 : j;
}

// The storage of a weight, as `native.py` numbers it.
enum Storage : int { kFloat32, kBFloat16, kInt8, kFloat8 };

struct Float8 {  // e4m3 without infinities; a NaN is refused when a weight is packed
  uint8_t bits;
};

template <class Weight>
constexpr bool is_quantized = sizeof(Weight) == 1;

LS_INLINE float widen_one(float w) { return w; }
LS_INLINE float widen_one(uint16_t w) { return bit_cast<float>(static_cast<uint32_t>(w) << 16); }
LS_INLINE float widen_one(int8_t w) { return w; }
LS_INLINE float widen_one(Float8 w) {
  // Exponent and mantissa in the places of a float's are the value times 2^-120, also where the value is subnormal.
  const uint32_t bits = w.bits;
  return bit_cast<float>((bits & 0x80u) << 24 | (bits & 0x7fu) << 20) * 0x1p120f;
}

// [panels][num_blocks][16]: for each output one scale, or one for every `kScaleBlock` k. Null where nothing is quantized.
struct Scales {
  const float* data;
  int64_t num_blocks;
  const float* at(int64_t panel, int64_t k) const {
    return data + (panel * num_blocks + (num_blocks == 1 ? 0 : k / kScaleBlock)) * kWidth;
  }
};

LS_INLINE void load_row(const float* p, f32x8& low, f32x8& high) {
  low = load(p);
  high = load(p + 8);
}
LS_INLINE void load_row(const uint16_t* p, f32x8& low, f32x8& high) { widen(p, low, high); }

// f(0), f(1), ... as compile-time constants: GCC keeps an array in registers only if each index is one from the start.
template <size_t... I, class F>
LS_INLINE void unroll(std::index_sequence<I...>, F&& f) {
  (f(std::integral_constant<size_t, I>{}), ...);
}
template <size_t N, class F>
LS_INLINE void unroll(F&& f) {
  unroll(std::make_index_sequence<N>{}, f);
}

// c[ROWS, 16 * PANELS] += x[ROWS, depth] * panels, for one segment, then + bias if there is one. `ldx`, `ldc`, `ldp`: distances
// between rows of x, rows of c, and panels.
template <size_t ROWS, size_t PANELS, class Weight>
void tile(const float* __restrict x, int64_t ldx, const Weight* __restrict panel, int64_t ldp, float* __restrict c, int64_t ldc,
          int64_t depth, bool first, const float* bias) {
  f32x8 acc[ROWS * PANELS * 2];
  unroll<ROWS * PANELS * 2>([&](auto i) { acc[i] = broadcast(0.0f); });
  for (int64_t k = 0; k < depth; k++) {
    f32x8 w[PANELS * 2];
    unroll<PANELS>([&](auto p) { load_row(panel + static_cast<int64_t>(p) * ldp + k * kWidth, w[p * 2], w[p * 2 + 1]); });
    unroll<ROWS>([&](auto r) {
      const f32x8 value = broadcast(x[static_cast<int64_t>(r) * ldx + k]);
      unroll<PANELS * 2>([&](auto j) { acc[r * PANELS * 2 + j] = fma(value, w[j], acc[r * PANELS * 2 + j]); });
    });
  }
  unroll<ROWS * PANELS * 2>([&](auto i) {
    float* place = c + static_cast<int64_t>(i / (PANELS * 2)) * ldc + i % (PANELS * 2) * 8;
    const f32x8 sum = first ? acc[i] : add(load(place), acc[i]);
    store(place, bias == nullptr ? sum : add(sum, load(bias + i % (PANELS * 2) * 8)));
  });
}

// How many panels a tile of so many rows takes at once: enough independent chains to hide the latency of the multiply-add, and no
// more than the registers hold (a bf16 panel needs two more while it is widened).
template <class Weight>
constexpr int64_t panels_of(int64_t rows) {
  return rows == 1 ? kMaxPanels : rows == 2 ? 2 : rows == 3 && std::is_same_v<Weight, float> ? 2 : 1;
}

template <class Weight>
using Tile = void (*)(const float*, int64_t, const Weight*, int64_t, float*, int64_t, int64_t, bool, const float*);

template <class Weight>
Tile<Weight> find_tile(int64_t rows, int64_t panels) {
  static constexpr Tile<Weight> wide[] = {tile<1, panels_of<Weight>(1), Weight>, tile<2, panels_of<Weight>(2), Weight>,
                                          tile<3, panels_of<Weight>(3), Weight>};
  static constexpr Tile<Weight> single[] = {tile<1, 1, Weight>, tile<2, 1, Weight>, tile<3, 1, Weight>,
                                            tile<4, 1, Weight>, tile<5, 1, Weight>, tile<6, 1, Weight>};
  return panels > 1 ? wide[rows - 1] : single[rows - 1];
}

template <class Weight>
struct Linear {
  using Tiled = std::conditional_t<is_quantized<Weight>, float, Weight>;
  struct Panels {
    const Tiled* data;  // the first row of a block of k of the first panel
    int64_t stride;     // to the next panel
  };

  const float* x;
  const Weight* packed;
  Scales scales;
  const float* bias;  // or null
  float* out;
  Shape shape;

  // Panels [p0, p0 + panels), for a block of k; `scratch` has room for them.
  Panels block(int64_t p0, int64_t panels, int64_t k0, int64_t depth, float* scratch) const {
    const int64_t k = shape.k;
    if constexpr (!is_quantized<Weight>) {
      return {packed + (p0 * k + k0) * kWidth, k * kWidth};
    } else {
      float* row = scratch;
      for (int64_t p = p0; p < p0 + panels; p++) {
        const Weight* source = packed + (p * k + k0) * kWidth;
        for (int64_t i = 0; i < depth; i++, row += kWidth, source += kWidth) {
          const float* scale = scales.at(p, k0 + i);
          for (int64_t j = 0; j < kWidth; j++) row[j] = widen_one(source[j]) * scale[j];
        }
      }
      return {scratch, depth * kWidth};
    }
  }

  // Rows [m0, m0 + rows) of panels [p0, p0 + panels), for the segments of one block.
  void run_block(int64_t m0, int64_t rows, int64_t p0, int64_t panels, int64_t k0, int64_t depth, Panels weights) const {
    int64_t done = 0;
    do {  // at least once: with k = 0 the outputs are +0 or the bias
      const int64_t segment = std::min(kSegment, depth - done);
      run_tile(m0, rows, p0, panels, k0 + done, segment, {weights.data + done * kWidth, weights.stride});
      done += segment;
    } while (done < depth);
  }

  // The same for one segment.
  void run_tile(int64_t m0, int64_t rows, int64_t p0, int64_t panels, int64_t k0, int64_t depth, Panels weights) const {
    const auto [m, n, k] = shape;
    const float* x_tile = x + m0 * k + k0;
    float* c = out + m0 * n + p0 * kWidth;
    const float* last_bias = bias != nullptr && k0 + depth == k ? bias + p0 * kWidth : nullptr;
    const Tile<Tiled> run = find_tile<Tiled>(rows, panels);
    const int64_t width = std::min(n - p0 * kWidth, panels * kWidth);
    if (width == panels * kWidth) {
      run(x_tile, k, weights.data, weights.stride, c, n, depth, k0 == 0, last_bias);
      return;
    }
    // The padded panel: through a buffer of whole rows.
    float buffer[kMaxRows * kWidth] = {}, bias_buffer[kWidth] = {};
    for (int64_t r = 0; r < rows && k0 > 0; r++) std::copy_n(c + r * n, width, buffer + r * kWidth);
    if (last_bias != nullptr) std::copy_n(last_bias, width, bias_buffer);
    const float* own_bias = last_bias == nullptr ? nullptr : bias_buffer;
    run(x_tile, k, weights.data, weights.stride, buffer, kWidth, depth, k0 == 0, own_bias);
    for (int64_t r = 0; r < rows; r++) std::copy_n(buffer + r * kWidth, width, c + r * n);
  }

  void run_panels(int64_t p0, int64_t p1) const {
    const auto [m, n, k] = shape;
    const int64_t full_panels = n / kWidth;
    alignas(32) float scratch[is_quantized<Weight> ? kMaxPanels * kSegment * kWidth : 1];
    static_assert(kBlock <= kMaxPanels * kSegment);
    for (int64_t m0 = 0; m0 < m; m0 += kRowBlock) {
      const int64_t block_rows = std::min(kRowBlock, m - m0);
      const int64_t groups = (block_rows + kMaxRows - 1) / kMaxRows;  // of nearly equal size: 7 rows are 4 + 3, not 6 + 1
      // Weights that are used once need no block, unless they are dequantized.
      const int64_t k_step = groups > 1 ? kBlock : is_quantized<Weight> ? kSegment : k;
      const int64_t p_step = groups == 1 ? panels_of<Tiled>(block_rows) : 1;
      int64_t k0 = 0;
      do {
        const int64_t depth = std::min(k_step, k - k0);
        for (int64_t p = p0; p < p1;) {
          const int64_t panels = p + p_step <= std::min(p1, full_panels) ? p_step : 1;
          const Panels weights = block(p, panels, k0, depth, scratch);
          for (int64_t g = 0; g < groups; g++) {
            const int64_t begin = block_rows * g / groups, end = block_rows * (g + 1) / groups;
            run_block(m0 + begin, end - begin, p, panels, k0, depth, weights);
          }
          p += panels;
        }
        k0 += depth;
      } while (k0 < k);
    }
  }

  void run(ThreadPool& pool) const {
    const int64_t panels = (shape.n + kWidth - 1) / kWidth;
    const int64_t work = shape.m * shape.k * kWidth;  // multiply-adds of one panel; some 20 of them take a nanosecond
    const int64_t fair = panels / (8 * pool.num_threads());
    const int64_t worth = 1 + 100000 / (work + 1);
    const int64_t step = shape.m <= kMaxRows ? panels_of<Tiled>(shape.m) : 1;
    const int64_t grain = (std::max(fair, worth) + step - 1) / step * step;
    pool.parallel_for(shape.m == 0 ? 0 : panels, grain, [&](int64_t begin, int64_t end) { run_panels(begin, end); });
  }
};

template <class Weight>
void pack(ThreadPool& pool, const Weight* source, int64_t n, int64_t k, int64_t stride_n, int64_t stride_k, Weight* packed) {
  pool.parallel_for((n + kWidth - 1) / kWidth, 1 + 16384 / (k * kWidth + 1), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; p++) {
      Weight* row = packed + p * k * kWidth;
      const int64_t width = std::min(kWidth, n - p * kWidth);
      for (int64_t i = 0; i < k; i++, row += kWidth)
        for (int64_t j = 0; j < kWidth; j++)
          row[place<Weight>(j)] = j < width ? source[(p * kWidth + j) * stride_n + i * stride_k] : Weight{};
    }
  });
}

template <class Weight>
void gather(ThreadPool& pool, const Weight* packed, Scales scales, int64_t k, const int64_t* ids, int64_t m, float* out) {
  pool.parallel_for(m, row_grain(8 * k), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const int64_t panel = ids[i] / kWidth, column = ids[i] % kWidth;
      const Weight* source = packed + panel * k * kWidth + place<Weight>(column);
      for (int64_t j = 0; j < k; j++) {
        const float value = widen_one(source[j * kWidth]);
        out[i * k + j] = is_quantized<Weight> ? value * scales.at(panel, j)[column] : value;
      }
    }
  });
}

// f(packed), with `packed` as a pointer to what it holds.
template <class Pointer, class F>
void with_storage(int storage, Pointer packed, F&& f) {
  const auto as = [&](auto weight) {
    using Weight = std::conditional_t<std::is_same_v<Pointer, const void*>, const decltype(weight), decltype(weight)>;
    f(static_cast<Weight*>(packed));
  };
  switch (storage) {
    case kFloat32: return as(float{});
    case kBFloat16: return as(uint16_t{});
    case kInt8: return as(int8_t{});
    case kFloat8: return as(Float8{});
  }
}

}  // namespace
}  // namespace lockstep

using namespace lockstep;

LS_API void ls_pack(void* handle, const void* source, int storage, int64_t n, int64_t k, int64_t stride_n, int64_t stride_k,
                    void* packed) {
  Call call(handle);
  with_storage(storage, packed, [&](auto* typed) {
    pack(call.pool(), static_cast<decltype(typed)>(const_cast<void*>(source)), n, k, stride_n, stride_k, typed);
  });
}

// `scales`: see `Scales`.
LS_API void ls_linear(void* handle, const float* x, const void* packed, int storage, const float* scales, int64_t num_blocks,
                      const float* bias, float* out, int64_t m, int64_t n, int64_t k) {
  Call call(handle);
  with_storage(storage, packed, [&](const auto* typed) {
    Linear<std::remove_const_t<std::remove_pointer_t<decltype(typed)>>>{x, typed, {scales, num_blocks}, bias, out, {m, n, k}}.run(
        call.pool());
  });
}

// Returns 0, or 1 + the first row whose id is outside of [0, n); nothing is written then.
LS_API int64_t ls_embedding(void* handle, const void* packed, int storage, const float* scales, int64_t num_blocks,
                            const int64_t* ids, float* out, int64_t m, int64_t n, int64_t k) {
  Call call(handle);
  for (int64_t i = 0; i < m; i++)
    if (ids[i] < 0 || ids[i] >= n) return i + 1;
  with_storage(storage, packed,
               [&](const auto* typed) { gather(call.pool(), typed, {scales, num_blocks}, k, ids, m, out); });
  return 0;
}
