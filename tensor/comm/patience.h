// A wait that ends: it yields its core, then sleeps, and knows when its limit has passed.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace brine {

class Patience {
 public:
  // `nap`: the longest sleep, in microseconds.
  explicit Patience(double seconds, int64_t nap = 500) : seconds_(seconds), nap_(nap) {}

  bool is_over() const {
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin_;
    return waited.count() > seconds_;
  }
  // Another limit, from the same begin.
  void extend(double seconds) { seconds_ = seconds; }
  // Something has arrived: what is next may come soon.
  void renew() { round_ = 0; }
  // More ranks than cores: one that waits gives its core to those that compute. True once in a
  // while, for what is not worth asking every time.
  bool rest() {
    ++round_;
    if (round_ < 200) {
      ::sched_yield();
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(20 + round_ / 10, nap_)));
    return round_ % 20 == 0;
  }

 private:
  double seconds_;
  int64_t nap_, round_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace brine
