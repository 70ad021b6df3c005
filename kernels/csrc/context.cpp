#include "context.h"

#include <chrono>
#include <exception>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace lockstep {
namespace {

constexpr uint64_t kOpen = uint64_t{1} << 31;
// A decode step makes calls a few microseconds apart; waking a sleeping thread costs about as much as this.
constexpr auto kSpin = std::chrono::microseconds(40);

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  try {
    for (int i = 1; i < num_threads; i++) workers_.emplace_back([this] { work(); });
  } catch (...) {  // the system gives no more threads
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t count, int64_t grain, Chunk chunk, const void* body) {
  chunk_ = chunk;
  body_ = body;
  count_ = count;
  grain_ = grain;
  next_.store(0, std::memory_order_relaxed);
  const uint64_t epoch = (gate_.load(std::memory_order_relaxed) >> 32) + 1;
  gate_.store(epoch << 32 | kOpen);
  // Sequentially consistent on both sides: either we see the sleeper or it sees the open gate before it sleeps.
  if (sleepers_.load() > 0) {
    { std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
  }
  take_chunks();
  gate_.fetch_and(~kOpen);
  for (int spins = 0; (gate_.load(std::memory_order_acquire) & (kOpen - 1)) != 0; spins++) {
    if (spins < 2000) pause();
    else std::this_thread::yield();
  }
}

void ThreadPool::take_chunks() {
  for (;;) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return;
    chunk_(body_, begin, begin + grain_ < count_ ? begin + grain_ : count_);
  }
}

// Enters a job that this worker has not seen, if there is one.
bool ThreadPool::enter(uint64_t& last_epoch) {
  uint64_t gate = gate_.load(std::memory_order_acquire);
  while ((gate & kOpen) != 0 && (gate >> 32) != last_epoch) {
    if (gate_.compare_exchange_weak(gate, gate + 1)) {
      last_epoch = gate >> 32;
      return true;
    }
  }
  return false;
}

void ThreadPool::work() {
  fesetenv(FE_DFL_ENV);  // a new thread inherits its creator's mode
  uint64_t last_epoch = 0;
  while (!stop_) {
    bool inside = enter(last_epoch);
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    while (!inside && std::chrono::steady_clock::now() < deadline) {
      for (int i = 0; i < 16 && !inside; i++) {
        pause();
        inside = enter(last_epoch);
      }
    }
    if (!inside) {
      std::unique_lock<std::mutex> lock(mutex_);
      sleepers_++;
      wake_.wait(lock, [&] { return stop_ || (inside = enter(last_epoch)); });
      sleepers_--;
    }
    if (inside) {
      take_chunks();
      gate_.fetch_sub(1, std::memory_order_release);
    }
  }
}

}  // namespace lockstep

// Null where the system does not give that many threads.
LS_API void* ls_create(int num_threads) {
  try {
    return new lockstep::Context(num_threads);
  } catch (const std::exception&) {
    return nullptr;
  }
}

LS_API void ls_destroy(void* handle) {
  auto* context = static_cast<lockstep::Context*>(handle);
  if (!context->pool.has_lost_its_threads()) delete context;  // else there is nothing to join: leave the memory
}

// The digest of the sources (`kernels/source_digest.py`), from the build.
LS_API const char* ls_source_digest() { return LS_SOURCE_DIGEST; }

// Asked of the portable library before the AVX2 one is used.
LS_API int ls_cpu_has_avx2() {
#if defined(__x86_64__) || defined(__i386__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 0;
#endif
}
