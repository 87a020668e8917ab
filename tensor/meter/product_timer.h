// The time of matrix products and convolutions: off unless a bench enables it.
#pragma once

#include <omp.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace brine {

// While an object lives, its thread works on a product. In a parallel loop a thread's time is
// divided by the threads of the loop, so that the sum compares with wall time. Must not be nested.
class ProductTimer {
 public:
  ProductTimer() : running_(enabled_.load(std::memory_order_relaxed)) {
    if (running_) start_ = Clock::now();
  }
  ~ProductTimer() {
    if (!running_) return;
    const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_);
    nanoseconds_.fetch_add(time.count() / omp_get_num_threads(), std::memory_order_relaxed);
  }
  ProductTimer(const ProductTimer&) = delete;
  ProductTimer& operator=(const ProductTimer&) = delete;

  static void enable(bool on) { enabled_ = on; }
  // Milliseconds since the start of the program, counted while it was enabled.
  static double total_ms() { return double(nanoseconds_.load()) * 1e-6; }

 private:
  using Clock = std::chrono::steady_clock;
  static inline std::atomic<bool> enabled_ = false;
  static inline std::atomic<int64_t> nanoseconds_ = 0;

  bool running_;
  Clock::time_point start_;
};

}  // namespace brine
