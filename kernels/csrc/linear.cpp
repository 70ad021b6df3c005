// Linear layers on packed weights. A weight [N, K] is stored in panels of 16 outputs, [ceil(N / 16)][K][16], the last one padded
// with zeros. Each output is a sum of segments: for every 128 k one chain of fused multiply-adds from +0, and the chains are added
// in k order. (One chain over all k has twice the rounding error.) Blocks of k hold whole segments, so no blocking changes a bit.
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

struct Shape {
  int64_t m, n, k;
};

// Where output `j` of a panel's row is stored. bf16 rows interleave the halves: widening 8 pairs is a shift and a mask.
template <class Weight>
LS_INLINE int64_t place(int64_t j) {
  return std::is_same_v<Weight, float> ? j : 2 * (j % 8) + j / 8;
}

LS_INLINE float widen_one(float w) { return w; }
LS_INLINE float widen_one(uint16_t w) { return bit_cast<float>(static_cast<uint32_t>(w) << 16); }

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
  return rows == 1 ? 4 : rows == 2 ? 2 : rows == 3 && std::is_same_v<Weight, float> ? 2 : 1;
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
  const float* x;
  const Weight* packed;
  const float* bias;  // or null
  float* out;
  Shape shape;

  // Rows [m0, m0 + rows) of panels [p0, p0 + panels), for the segments of one block.
  void run_block(int64_t m0, int64_t rows, int64_t p0, int64_t panels, int64_t k0, int64_t depth) const {
    int64_t done = 0;
    do {  // at least once: with k = 0 the outputs are +0 or the bias
      const int64_t segment = std::min(kSegment, depth - done);
      run_tile(m0, rows, p0, panels, k0 + done, segment);
      done += segment;
    } while (done < depth);
  }

  // The same for one segment.
  void run_tile(int64_t m0, int64_t rows, int64_t p0, int64_t panels, int64_t k0, int64_t depth) const {
    const auto [m, n, k] = shape;
    const Weight* panel = packed + p0 * k * kWidth + k0 * kWidth;
    const float* x_tile = x + m0 * k + k0;
    float* c = out + m0 * n + p0 * kWidth;
    const float* last_bias = bias != nullptr && k0 + depth == k ? bias + p0 * kWidth : nullptr;
    const Tile<Weight> run = find_tile<Weight>(rows, panels);
    const int64_t width = std::min(n - p0 * kWidth, panels * kWidth);
    if (width == panels * kWidth) {
      run(x_tile, k, panel, k * kWidth, c, n, depth, k0 == 0, last_bias);
      return;
    }
    // The padded panel: through a buffer of whole rows.
    float buffer[kMaxRows * kWidth] = {}, bias_buffer[kWidth] = {};
    for (int64_t r = 0; r < rows && k0 > 0; r++) std::copy_n(c + r * n, width, buffer + r * kWidth);
    if (last_bias != nullptr) std::copy_n(last_bias, width, bias_buffer);
    run(x_tile, k, panel, k * kWidth, buffer, kWidth, depth, k0 == 0, last_bias == nullptr ? nullptr : bias_buffer);
    for (int64_t r = 0; r < rows; r++) std::copy_n(buffer + r * kWidth, width, c + r * n);
  }

  void run_panels(int64_t p0, int64_t p1) const {
    const auto [m, n, k] = shape;
    const int64_t full_panels = n / kWidth;
    for (int64_t m0 = 0; m0 < m; m0 += kRowBlock) {
      const int64_t block_rows = std::min(kRowBlock, m - m0);
      const int64_t groups = (block_rows + kMaxRows - 1) / kMaxRows;  // of nearly equal size: 7 rows are 4 + 3, not 6 + 1
      const int64_t k_step = groups == 1 ? k : kBlock;                // weights that are used once need no block
      const int64_t p_step = groups == 1 ? panels_of<Weight>(block_rows) : 1;
      int64_t k0 = 0;
      do {
        const int64_t depth = std::min(k_step, k - k0);
        for (int64_t p = p0; p < p1;) {
          const int64_t panels = p + p_step <= std::min(p1, full_panels) ? p_step : 1;
          for (int64_t g = 0; g < groups; g++) {
            const int64_t begin = block_rows * g / groups, end = block_rows * (g + 1) / groups;
            run_block(m0 + begin, end - begin, p, panels, k0, depth);
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
    const int64_t step = shape.m <= kMaxRows ? panels_of<Weight>(shape.m) : 1;
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
void gather(ThreadPool& pool, const Weight* packed, int64_t k, const int64_t* ids, int64_t m, float* out) {
  pool.parallel_for(m, row_grain(8 * k), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const Weight* column = packed + ids[i] / kWidth * k * kWidth + place<Weight>(ids[i] % kWidth);
      for (int64_t j = 0; j < k; j++) out[i * k + j] = widen_one(column[j * kWidth]);
    }
  });
}

}  // namespace
}  // namespace lockstep

using namespace lockstep;

LS_API void ls_pack(void* handle, const void* source, int is_bf16, int64_t n, int64_t k, int64_t stride_n, int64_t stride_k,
                    void* packed) {
  Call call(handle);
  if (is_bf16)
    pack(call.pool(), static_cast<const uint16_t*>(source), n, k, stride_n, stride_k, static_cast<uint16_t*>(packed));
  else
    pack(call.pool(), static_cast<const float*>(source), n, k, stride_n, stride_k, static_cast<float*>(packed));
}

LS_API void ls_linear(void* handle, const float* x, const void* packed, int is_bf16, const float* bias, float* out, int64_t m,
                      int64_t n, int64_t k) {
  Call call(handle);
  if (is_bf16)
    Linear<uint16_t>{x, static_cast<const uint16_t*>(packed), bias, out, {m, n, k}}.run(call.pool());
  else
    Linear<float>{x, static_cast<const float*>(packed), bias, out, {m, n, k}}.run(call.pool());
}

// Returns 0, or 1 + the first row whose id is outside of [0, n); nothing is written then.
LS_API int64_t ls_embedding(void* handle, const void* packed, int is_bf16, const int64_t* ids, float* out, int64_t m, int64_t n,
                            int64_t k) {
  Call call(handle);
  for (int64_t i = 0; i < m; i++)
    if (ids[i] < 0 || ids[i] >= n) return i + 1;
  if (is_bf16)
    gather(call.pool(), static_cast<const uint16_t*>(packed), k, ids, m, out);
  else
    gather(call.pool(), static_cast<const float*>(packed), k, ids, m, out);
  return 0;
}
