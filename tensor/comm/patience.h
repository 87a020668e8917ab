// A wait with a limit: it yields its core, then sleeps, and reports when the limit has passed.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace brine {

class Patience {
 public:
  explicit Patience(double seconds) : seconds_(seconds) {}

  bool is_over() const {
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin_;
    return waited.count() > seconds_;
  }
  // Something has arrived: what is next may come soon.
  void renew() { round_ = 0; }
  // More ranks than cores: one that waits gives its core to those that compute.
  void rest() {
    if (++round_ < 200) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(
          std::chrono::microseconds(std::min<int64_t>(20 + round_ / 10, 500)));
    }
  }

 private:
  double seconds_;
  int64_t round_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace brine
