// Causal attention over a paged KV cache. For a query: scores over 8 lanes, the largest score, exp, and one chain over the positions
// in order for the denominator and for each output. A work item is a few tokens of one sequence times the query heads of one KV
// head, so that they read each cached row while it is in the L1 cache; no chain crosses an item, so the grouping changes no bit.
#include <algorithm>
#include <vector>

#include "context.h"
#include "elementary.h"
#include "simd.h"

namespace lockstep {
namespace {

constexpr int64_t kTileTokens = 4;   // tokens of one sequence in a work item
constexpr int64_t kScoreRows = 8;    // cached rows whose scores are made together
constexpr int64_t kValueRows = 32;  // cached rows that all queries of an item use before the next ones

struct Attention {
  const float* query;  // [m, heads, d], rows `query_stride` apart
  int64_t query_stride;
  const float *k_cache, *v_cache;  // [num_blocks, block_size, kv_heads, d]
  const int32_t* block_tables;     // [num_rows, max_blocks]
  const int64_t *rows, *positions;
  float scale;
  float* out;  // [m, heads, d]
  int64_t m, heads, kv_heads, d, num_blocks, block_size, num_rows, max_blocks;
};

struct Item {
  int64_t token, tokens;  // all of the same row of the block table
  int64_t head, heads;    // query heads, all of one KV head
};

// 0, or 1 + the first token whose row, position or blocks lie outside.
int64_t find_bad_token(const Attention& a) {
  for (int64_t i = 0; i < a.m; i++) {
    if (a.rows[i] < 0 || a.rows[i] >= a.num_rows) return i + 1;
    if (a.positions[i] < 0 || a.positions[i] >= a.max_blocks * a.block_size) return i + 1;
    const int32_t* table = a.block_tables + a.rows[i] * a.max_blocks;
    for (int64_t b = 0; b <= a.positions[i] / a.block_size; b++)
      if (table[b] < 0 || table[b] >= a.num_blocks) return i + 1;
  }
  return 0;
}

std::vector<Item> split(const Attention& a, int num_threads) {
  const int64_t group = a.heads / a.kv_heads;
  // A few tokens over few KV heads do not fill the threads: then each query head is an item.
  const int64_t heads = num_threads > 1 && a.m * a.kv_heads < 8 * num_threads ? 1 : group;
  std::vector<Item> items;
  for (int64_t i = 0, tokens = 0; i < a.m; i += tokens) {
    tokens = 1;
    while (tokens < kTileTokens && i + tokens < a.m && a.rows[i + tokens] == a.rows[i]) tokens++;
    for (int64_t h = 0; h < a.heads; h += heads) items.push_back({i, tokens, h, heads});
  }
  return items;
}

// out[j] = q . k_j for eight rows, each over 8 lanes.
f32x8 dot_rows(const float* q, const float* const (&k)[kScoreRows], int64_t d) {
  f32x8 acc[kScoreRows];
  for (auto& a : acc) a = broadcast(0.0f);
  int64_t i = 0;
  for (; i + 8 <= d; i += 8) {
    const f32x8 part = load(q + i);
    acc[0] = fma(part, load(k[0] + i), acc[0]);
    acc[1] = fma(part, load(k[1] + i), acc[1]);
    acc[2] = fma(part, load(k[2] + i), acc[2]);
    acc[3] = fma(part, load(k[3] + i), acc[3]);
    acc[4] = fma(part, load(k[4] + i), acc[4]);
    acc[5] = fma(part, load(k[5] + i), acc[5]);
    acc[6] = fma(part, load(k[6] + i), acc[6]);
    acc[7] = fma(part, load(k[7] + i), acc[7]);
  }
  if (i < d)
    for (int64_t r = 0; r < kScoreRows; r++) acc[r] = fma_tail(q + i, k[r] + i, acc[r], d - i);
  return lane_sums(acc);
}

// acc[0 .. 8 * VECTORS) += e[j] * v[j] over the rows in order. Returns total + e[0] + e[1] + ..., a chain that hides behind the others.
template <int VECTORS>
float weigh(const float* e, const float* const* v, int64_t offset, int64_t n, float total, float* acc) {
  f32x8 sum[VECTORS];
  for (int i = 0; i < VECTORS; i++) sum[i] = load(acc + 8 * i);
  for (int64_t j = 0; j < n; j++) {
    const f32x8 weight = broadcast(e[j]);
    for (int i = 0; i < VECTORS; i++) sum[i] = fma(weight, load(v[j] + offset + 8 * i), sum[i]);
    total += e[j];
  }
  for (int i = 0; i < VECTORS; i++) store(acc + 8 * i, sum[i]);
  return total;
}

float weigh_rows(const float* e, const float* const* v, int64_t n, int64_t d, float total, float* acc) {
  float new_total = total;
  int64_t i = 0;
  for (; i + 64 <= d; i += 64) new_total = weigh<8>(e, v, i, n, total, acc + i);
  for (; i + 32 <= d; i += 32) new_total = weigh<4>(e, v, i, n, total, acc + i);
  for (; i + 8 <= d; i += 8) new_total = weigh<1>(e, v, i, n, total, acc + i);
  for (; i < d; i++) {
    new_total = total;
    for (int64_t j = 0; j < n; j++) {
      acc[i] = std::fma(e[j], v[j][i], acc[i]);
      new_total += e[j];
    }
  }
  return new_total;
}

void exp_scores(float* scores, int64_t n) {
  f32x8 largest = broadcast(-HUGE_VALF);
  int64_t j = 0;
  for (; j + 8 <= n; j += 8) largest = max(load(scores + j), largest);
  float lanes[8];
  store(lanes, largest);
  float m = *std::max_element(lanes, lanes + 8);
  for (; j < n; j++) m = std::max(m, scores[j]);
  // A NaN score makes its own exp a NaN, and so the denominator and the whole row, whatever m is.
  for (j = 0; j < n; j++) scores[j] = exp32(scores[j] - m);
}

// Works on one item.
class Worker {
 public:
  Worker(const Attention& a, const Item& item)
      : a_(a),
        item_(item),
        queries_(item.tokens * item.heads),
        table_(a.block_tables + a.rows[item.token] * a.max_blocks),
        offset_(item.head / (a.heads / a.kv_heads) * a.d) {
    for (int64_t t = 0; t < item.tokens; t++) visible_ = std::max(visible_, a.positions[item.token + t] + 1);
    stride_ = (visible_ + kScoreRows - 1) / kScoreRows * kScoreRows;
    thread_local std::vector<float> scratch;
    if (scratch.size() < static_cast<size_t>(queries_ * (stride_ + 1))) scratch.resize(queries_ * (stride_ + 1));
    scores_ = scratch.data();
    denominators_ = scores_ + queries_ * stride_;
  }

  void run() {
    score();
    for (int64_t q = 0; q < queries_; q++) {
      exp_scores(scores(q), length(q));
      denominators_[q] = 0.0f;
      std::fill_n(out(q), a_.d, 0.0f);
    }
    sum_values();
    for (int64_t q = 0; q < queries_; q++)
      for (int64_t i = 0; i < a_.d; i++) out(q)[i] /= denominators_[q];
  }

 private:
  void score() {
    for (int64_t j = 0; j < visible_; j += kScoreRows) {
      const float* k[kScoreRows];
      for (int64_t r = 0; r < kScoreRows; r++) k[r] = row(a_.k_cache, std::min(j + r, visible_ - 1));
      for (int64_t q = 0; q < queries_; q++)
        if (j < length(q)) store(scores(q) + j, mul(dot_rows(query(q), k, a_.d), broadcast(a_.scale)));
    }
  }

  void sum_values() {
    for (int64_t j = 0; j < visible_; j += kValueRows) {
      const float* v[kValueRows];
      for (int64_t r = 0; r < std::min(kValueRows, visible_ - j); r++) v[r] = row(a_.v_cache, j + r);
      for (int64_t q = 0; q < queries_; q++) {
        const int64_t n = std::min(kValueRows, length(q) - j);
        if (n > 0) denominators_[q] = weigh_rows(scores(q) + j, v, n, a_.d, denominators_[q], out(q));
      }
    }
  }

  const float* row(const float* cache, int64_t j) const {
    return cache + (table_[j / a_.block_size] * a_.block_size + j % a_.block_size) * a_.kv_heads * a_.d + offset_;
  }
  int64_t token(int64_t q) const { return item_.token + q / item_.heads; }
  int64_t head(int64_t q) const { return item_.head + q % item_.heads; }
  int64_t length(int64_t q) const { return a_.positions[token(q)] + 1; }
  const float* query(int64_t q) const { return a_.query + token(q) * a_.query_stride + head(q) * a_.d; }
  float* out(int64_t q) const { return a_.out + (token(q) * a_.heads + head(q)) * a_.d; }
  float* scores(int64_t q) const { return scores_ + q * stride_; }

  const Attention& a_;
  const Item item_;
  const int64_t queries_;
  const int32_t* const table_;
  const int64_t offset_;
  int64_t visible_ = 0;  // cached positions that any token of the item sees
  int64_t stride_;
  float *scores_, *denominators_;
};

}  // namespace
}  // namespace lockstep

using namespace lockstep;

// Returns 0, or 1 + the first token whose row, position or blocks lie outside; nothing is written then.
LS_API int64_t ls_paged_attention(void* handle, const float* query, int64_t query_stride, const float* k_cache, const float* v_cache,
                                  const int32_t* block_tables, const int64_t* rows, const int64_t* positions, float scale, float* out,
                                  int64_t m, int64_t heads, int64_t kv_heads, int64_t d, int64_t num_blocks, int64_t block_size,
                                  int64_t num_rows, int64_t max_blocks) {
  Call call(handle);
  const Attention a{query,     query_stride, k_cache, v_cache,    block_tables, rows,     positions,  scale, out, m, heads, kv_heads, d,
                    num_blocks, block_size,  num_rows, max_blocks};
  if (const int64_t bad = find_bad_token(a)) return bad;
  const std::vector<Item> items = split(a, call.pool().num_threads());
  int64_t work = 0;  // multiply-adds of all items
  for (int64_t i = 0; i < m; i++) work += 2 * (positions[i] + 1) * heads * d;
  const auto count = static_cast<int64_t>(items.size());
  call.pool().parallel_for(count, work < 50000 ? count : 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) Worker(a, items[i]).run();
  });
  return 0;
}
