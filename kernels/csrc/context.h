// One backend instance: its threads, and what every call into it does first.
#pragma once

#include <fenv.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#define LS_API extern "C" __attribute__((visibility("default")))

namespace lockstep {

// Threads that share the chunks of one loop at a time. The caller works too and never waits for a thread that has not begun:
// a worker that wakes late finds the gate closed. So a busy machine costs speed, not latency.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();

  // In a forked child the object is there, but its threads are not.
  bool has_lost_its_threads() const { return getpid() != owner_; }

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // body(begin, end) for chunks of at most `grain` that cover [0, count). Chunks are taken dynamically, so a result must not
  // depend on who computes it: threads split outputs, never a reduction.
  template <class Body>
  void parallel_for(int64_t count, int64_t grain, const Body& body) {
    if (workers_.empty() || count <= grain) {
      if (count > 0) body(0, count);
      return;
    }
    run(count, grain, [](const void* b, int64_t begin, int64_t end) { (*static_cast<const Body*>(b))(begin, end); }, &body);
  }

 private:
  using Chunk = void (*)(const void*, int64_t, int64_t);

  void stop();  // end and join the workers
  void run(int64_t count, int64_t grain, Chunk chunk, const void* body);
  void take_chunks();
  void work();
  bool enter(uint64_t& last_epoch);

  // The job; written only while the gate is closed and nobody is inside.
  Chunk chunk_ = nullptr;
  const void* body_ = nullptr;
  int64_t count_ = 0, grain_ = 1;
  std::atomic<int64_t> next_{0};

  // epoch (32 bits) | open (1 bit) | number of workers inside (31 bits)
  std::atomic<uint64_t> gate_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
  const pid_t owner_ = getpid();
};

struct Context {
  explicit Context(int num_threads) : pool(num_threads) {}
  ThreadPool pool;
  std::mutex calls;  // calls on one instance run one after the other
};

// Held for the length of a call: the instance, and the default floating-point mode (round to nearest, subnormals kept) instead of
// the calling thread's, which torch.set_flush_denormal may have changed.
class Call {
 public:
  explicit Call(void* handle) : context_(static_cast<Context*>(handle)), lock_(context_->calls) {
    fegetenv(&saved_);
    fesetenv(FE_DFL_ENV);
  }
  ~Call() { fesetenv(&saved_); }
  ThreadPool& pool() { return context_->pool; }

 private:
  Context* context_;
  std::lock_guard<std::mutex> lock_;
  fenv_t saved_;
};

// Rows for each chunk so that a chunk is worth handing to a thread (some 10 microseconds of work at ~1 ns an element).
inline int64_t row_grain(int64_t elements_per_row) { return 1 + 16384 / (elements_per_row + 1); }

}  // namespace lockstep
