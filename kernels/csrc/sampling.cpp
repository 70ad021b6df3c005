// argmax, sampling and the logarithm of the sum of exp: rows of logits, each row by one thread.
#include <algorithm>
#include <vector>

#include "context.h"
#include "random.h"

namespace lockstep {
namespace {

constexpr int64_t kTile = 512;  // logits that are worked on at a time

// The first index of the largest value; -1 if the row holds a NaN or its largest value is not finite.
int64_t argmax_row(const float* x, int64_t v) {
  f32x8 nan = broadcast(0.0f);
  float best = -HUGE_VALF;
  int64_t best_tile = 0;
  for (int64_t t = 0; t < v; t += kTile) {
    const int64_t n = std::min(kTile, v - t);
    f32x8 top0 = broadcast(-HUGE_VALF), top1 = top0;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
      const f32x8 a = load(x + t + i), b = load(x + t + i + 8);
      top0 = max(a, top0);
      top1 = max(b, top1);
      nan = mark_nan(mark_nan(nan, a), b);
    }
    float lanes[8];
    store(lanes, max(top0, top1));
    float top = *std::max_element(lanes, lanes + 8);
    for (; i < n; i++) {
      if (x[t + i] != x[t + i]) return -1;
      top = std::max(top, x[t + i]);
    }
    if (top > best) {
      best = top;
      best_tile = t;
    }
  }
  if (any_nan(nan) || !(std::fabs(best) < HUGE_VALF)) return -1;
  return std::find(x + best_tile, x + v, best) - x;
}

struct Best {
  double value = -HUGE_VAL;
  int64_t id = -1;

  // Offers values in id order; the first of equal ones stays.
  void offer(const double* values, int64_t n, int64_t first_id) {
    double top[8];
    std::fill_n(top, 8, -HUGE_VAL);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
      for (int l = 0; l < 8; l++) top[l] = values[i + l] > top[l] ? values[i + l] : top[l];
    for (; i < n; i++) top[0] = values[i] > top[0] ? values[i] : top[0];
    const double most = *std::max_element(top, top + 8);
    if (most > value) {
      value = most;
      id = first_id + (std::find(values, values + n, most) - values);
    }
  }
};

// The noise of the ids [first, first + n), n <= kTile and first even.
void gumbel_tile(const DrawAddress& address, int64_t first, int64_t n, double* out) {
  double unit[kTile];
  const auto first_block = static_cast<uint32_t>(first / 2);
  const auto blocks = static_cast<uint32_t>((n + 1) / 2);
  for (uint32_t i = 0; i < blocks; i++) {
    const Philox p = address.block(first_block + i);
    unit[2 * i] = unit_from_words(p.word[0], p.word[1]);
    unit[2 * i + 1] = unit_from_words(p.word[2], p.word[3]);
  }
  for (int64_t i = 0; i < n; i++) out[i] = gumbel_from_unit(unit[i]);
}

double gumbel_one(const DrawAddress& address, uint32_t id) {
  const Philox p = address.block(id / 2);
  return gumbel_from_unit(id % 2 == 0 ? unit_from_words(p.word[0], p.word[1]) : unit_from_words(p.word[2], p.word[3]));
}

// A candidate as one integer whose order is the order of the filters: falling logit, then rising id.
using Key = uint64_t;

LS_INLINE uint32_t falling(float logit) {
  const auto bits = bit_cast<uint32_t>(logit + 0.0f);  // -0 ties with +0
  return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}
LS_INLINE Key make_key(float logit, int64_t id) { return static_cast<Key>(falling(logit)) << 32 | static_cast<Key>(id); }
LS_INLINE int64_t id_of(Key key) { return static_cast<int64_t>(key & 0xffffffffu); }

struct Row {
  const float* logits;
  int64_t v;
  double temperature;
  int64_t top_k;  // v or more: off
  double top_p;   // 1: off
  double min_p;   // 0: off
  DrawAddress address;
};

class Sampler {
 public:
  int64_t sample(const Row& row) {
    const int64_t largest = argmax_row(row.logits, row.v);
    if (largest < 0 || row.temperature == 0.0) return largest;
    const bool has_top_k = row.top_k < row.v;
    if (!has_top_k && row.top_p >= 1.0 && row.min_p <= 0.0) return sample_all(row);
    max_ = row.logits[largest] / row.temperature;
    if (exp_.size() < static_cast<size_t>(row.v)) exp_.resize(row.v);
    if (row.min_p > 0.0 || !has_top_k)
      for (int64_t i = 0; i < row.v; i++) exp_[i] = exp_of(row, i);
    if (has_top_k) keep_top_k(row);
    else keep_all(row);
    if (row.top_p < 1.0) keep_top_p(row);
    return choose(row);
  }

 private:
  // Every token is kept: nothing is listed, noise for all of them.
  int64_t sample_all(const Row& row) {
    Best best;
    double values[kTile];
    for (int64_t t = 0; t < row.v; t += kTile) {
      const int64_t n = std::min(kTile, row.v - t);
      gumbel_tile(row.address, t, n, values);
      for (int64_t i = 0; i < n; i++) values[i] = row.logits[t + i] / row.temperature + values[i];
      best.offer(values, n, t);
    }
    return best.id;
  }

  double exp_of(const Row& row, int64_t id) const { return exp64(row.logits[id] / row.temperature - max_); }

  void keep_all(const Row& row) {
    keys_.clear();
    for (int64_t i = 0; i < row.v; i++)
      if (exp_[i] >= row.min_p) keys_.push_back(make_key(row.logits[i], i));
  }

  // Keeps at most 2 k candidates at a time. They come in id order, so one that only ties with the k-th best so far is out.
  void keep_top_k(const Row& row) {
    const auto k = static_cast<size_t>(row.top_k);
    keys_.clear();
    bool full = false;
    uint32_t kth = 0;
    const auto shrink = [&] {
      std::nth_element(keys_.begin(), keys_.begin() + k - 1, keys_.end());
      keys_.resize(k);
      kth = static_cast<uint32_t>(keys_[k - 1] >> 32);
      full = true;
    };
    for (int64_t i = 0; i < row.v; i++) {
      if (full && falling(row.logits[i]) >= kth) continue;
      if (row.min_p > 0.0 && !(exp_[i] >= row.min_p)) continue;
      keys_.push_back(make_key(row.logits[i], i));
      if (keys_.size() == 2 * k || (!full && keys_.size() == k)) shrink();
    }
    if (keys_.size() > k) shrink();
    std::sort(keys_.begin(), keys_.end(), [](Key a, Key b) { return id_of(a) < id_of(b); });
    for (const Key key : keys_) exp_[id_of(key)] = exp_of(row, id_of(key));
  }

  // The mass of all kept ones is added in id order, the prefix in falling order, of which only as much is sorted as needed.
  void keep_top_p(const Row& row) {
    double total = 0.0;
    for (const Key key : keys_) total += exp_[id_of(key)];
    const double wanted = row.top_p * total;
    double mass = 0.0;
    size_t sorted = 0;
    for (size_t i = 0; i < keys_.size(); i++) {
      if (i == sorted) {
        sorted = std::min(keys_.size(), 4 * sorted + 64);
        std::nth_element(keys_.begin() + i, keys_.begin() + sorted - 1, keys_.end());
        std::sort(keys_.begin() + i, keys_.begin() + sorted);
      }
      mass += exp_[id_of(keys_[i])];
      if (mass >= wanted) {
        keys_.resize(i + 1);
        return;
      }
    }
  }

  int64_t choose(const Row& row) {
    double value = -HUGE_VAL;
    int64_t chosen = -1;
    for (const Key key : keys_) {
      const int64_t id = id_of(key);
      const double candidate = row.logits[id] / row.temperature + gumbel_one(row.address, static_cast<uint32_t>(id));
      if (candidate > value || (candidate == value && id < chosen)) {
        value = candidate;
        chosen = id;
      }
    }
    return chosen;
  }

  double max_ = 0.0;
  std::vector<double> exp_;  // exp(logit / temperature - max_) by id; for the kept ones at least
  std::vector<Key> keys_;    // the kept ones, in id order until keep_top_p
};

// m + log(sum(exp(logit - m))) with one chain of additions; a NaN where argmax_row is -1.
double log_sum_exp_row(const float* x, int64_t v) {
  const int64_t largest = argmax_row(x, v);
  if (largest < 0) return NAN;
  const double m = x[largest];
  double sum = 0.0, e[kTile];
  for (int64_t t = 0; t < v; t += kTile) {
    const int64_t n = std::min(kTile, v - t);
    for (int64_t i = 0; i < n; i++) e[i] = exp64(x[t + i] - m);
    for (int64_t i = 0; i < n; i++) sum += e[i];
  }
  return m + log64(sum);
}

}  // namespace
}  // namespace lockstep

using namespace lockstep;

LS_API void ls_argmax(void* handle, const float* logits, int64_t* out, int64_t r, int64_t v) {
  Call call(handle);
  call.pool().parallel_for(r, row_grain(v / 8), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) out[i] = argmax_row(logits + i * v, v);
  });
}

// Returns 0, or 1 + the first row with a parameter outside of its range; nothing is written then.
LS_API int64_t ls_sample(void* handle, const float* logits, const float* temperature, const int32_t* top_k, const float* top_p,
                         const float* min_p, const int64_t* seeds, const int32_t* sample_index, const int64_t* positions, int purpose,
                         int64_t* out, int64_t r, int64_t v) {
  Call call(handle);
  for (int64_t i = 0; i < r; i++) {
    const bool valid = temperature[i] >= 0.0f && temperature[i] < HUGE_VALF && top_k[i] >= 0 && top_p[i] > 0.0f && top_p[i] <= 1.0f &&
                       min_p[i] >= 0.0f && min_p[i] <= 1.0f && positions[i] >= 0 && positions[i] >> 56 == 0;
    if (!valid) return i + 1;
  }
  call.pool().parallel_for(r, row_grain(v), [&](int64_t begin, int64_t end) {
    thread_local Sampler sampler;
    for (int64_t i = begin; i < end; i++)
      out[i] = sampler.sample({logits + i * v, v, temperature[i], top_k[i] == 0 ? v : top_k[i], top_p[i], min_p[i],
                               DrawAddress(seeds[i], sample_index[i], positions[i], purpose)});
  });
  return 0;
}

// Returns 0, or 1 + the first row with a position outside of [0, 2^56).
LS_API int64_t ls_gumbel(void* handle, const int64_t* seeds, const int32_t* sample_index, const int64_t* positions, int purpose,
                         double* out, int64_t r, int64_t v) {
  Call call(handle);
  for (int64_t i = 0; i < r; i++)
    if (positions[i] < 0 || positions[i] >> 56 != 0) return i + 1;
  call.pool().parallel_for(r, row_grain(v), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const DrawAddress address(seeds[i], sample_index[i], positions[i], purpose);
      for (int64_t t = 0; t < v; t += kTile) gumbel_tile(address, t, std::min(kTile, v - t), out + i * v + t);
    }
  });
  return 0;
}

LS_API void ls_log_sum_exp(void* handle, const float* logits, double* out, int64_t r, int64_t v) {
  Call call(handle);
  call.pool().parallel_for(r, row_grain(v), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) out[i] = log_sum_exp_row(logits + i * v, v);
  });
}

// One Philox block, for the known answers.
LS_API void ls_philox(const uint32_t* counter, const uint32_t* key, uint32_t* out) {
  const Philox p = philox({{counter[0], counter[1], counter[2], counter[3]}}, key[0], key[1]);
  std::copy_n(p.word, 4, out);
}
