// Row-wise operations: norms, rotary embedding, the gated activation, and writing the KV cache.
#include <algorithm>

#include "context.h"
#include "elementary.h"
#include "simd.h"

namespace lockstep {
namespace {

void norm_row(const float* x, const float* weight, float* out, int64_t d, float eps) {
  f32x8 squares = broadcast(0.0f);
  int64_t i = 0;
  for (; i + 8 <= d; i += 8) squares = fma(load(x + i), load(x + i), squares);
  squares = fma_tail(x + i, x + i, squares, d - i);
  const float scale = 1.0f / std::sqrt(lane_sum(squares) / static_cast<float>(d) + eps);
  for (i = 0; i < d; i++) out[i] = (x[i] * scale) * weight[i];
}

}  // namespace
}  // namespace lockstep

using namespace lockstep;

LS_API void ls_rms_norm(void* handle, const float* x, const float* weight, float* out, int64_t m, int64_t d, float eps) {
  Call call(handle);
  call.pool().parallel_for(m, row_grain(d), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) norm_row(x + i * d, weight, out + i * d, d, eps);
  });
}

LS_API void ls_add_rms_norm(void* handle, const float* x, float* residual, const float* weight, float* out, int64_t m, int64_t d,
                            float eps) {
  Call call(handle);
  call.pool().parallel_for(m, row_grain(d), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      for (int64_t j = i * d; j < (i + 1) * d; j++) residual[j] += x[j];
      norm_row(residual + i * d, weight, out + i * d, d, eps);
    }
  });
}

// Returns 0, or 1 + the first row whose position is outside of [0, max_positions); nothing is written then.
LS_API int64_t ls_rope(void* handle, float* x, int64_t row_stride, const int64_t* positions, const float* cos, const float* sin,
                       int64_t m, int64_t heads, int64_t d, int64_t max_positions) {
  Call call(handle);
  for (int64_t i = 0; i < m; i++)
    if (positions[i] < 0 || positions[i] >= max_positions) return i + 1;
  const int64_t half = d / 2;
  call.pool().parallel_for(m, row_grain(heads * d), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const float *c = cos + positions[i] * half, *s = sin + positions[i] * half;
      for (int64_t h = 0; h < heads; h++) {
        float* __restrict a = x + i * row_stride + h * d;
        float* __restrict b = a + half;
        for (int64_t j = 0; j < half; j++) {
          const float a_j = a[j], b_j = b[j];
          a[j] = std::fma(a_j, c[j], -(b_j * s[j]));
          b[j] = std::fma(b_j, c[j], a_j * s[j]);
        }
      }
    }
  });
  return 0;
}

LS_API void ls_silu_mul(void* handle, const float* gate_up, float* out, int64_t m, int64_t f) {
  Call call(handle);
  call.pool().parallel_for(m, row_grain(f), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const float *gate = gate_up + i * 2 * f, *up = gate + f;
      float* __restrict row = out + i * f;
      for (int64_t j = 0; j < f; j++) row[j] = (gate[j] / (1.0f + exp32(-gate[j]))) * up[j];
    }
  });
}

// Returns 0, or 1 + the first row whose slot is outside of [0, num_slots); nothing is written then. One thread, in row order, so
// that of two rows with the same slot the later one stays.
LS_API int64_t ls_store_kv(void* handle, const float* key, int64_t key_stride, const float* value, int64_t value_stride,
                           float* k_cache, float* v_cache, const int64_t* slots, int64_t m, int64_t width, int64_t num_slots) {
  Call call(handle);
  for (int64_t i = 0; i < m; i++)
    if (slots[i] < 0 || slots[i] >= num_slots) return i + 1;
  for (int64_t i = 0; i < m; i++) {
    std::copy_n(key + i * key_stride, width, k_cache + slots[i] * width);
    std::copy_n(value + i * value_stride, width, v_cache + slots[i] * width);
  }
  return 0;
}
