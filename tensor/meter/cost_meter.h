// The cost of a pass through a model, by component: multiply-adds, bytes, time and memory. Costs
// are recorded only while a CostMeter lives; then ops add theirs to the innermost CostScope.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "tensor/base/error.h"

namespace brine {

struct Cost {
  double macs = 0;   // multiply-adds of products, convolutions and sparse rows
  double bytes = 0;  // every op's inputs read once and its output written once; views are free
  double ms = 0;     // wall time, without that of nested scopes
  int64_t peak = 0;  // peak bytes beyond those alive when the scope was entered
};

// The meter of the process. One at a time, used by the thread that calls the ops.
class CostMeter : NonCopyable {
 public:
  CostMeter();
  ~CostMeter();

  // By component; the work of the backward pass is under "backward of <component>".
  const std::map<std::string, Cost>& costs() const { return costs_; }
  static CostMeter* current() { return current_; }
  void add_macs(double macs);
  void add_bytes(double bytes);

 private:
  friend class CostScope;
  using Clock = std::chrono::steady_clock;
  void settle();  // records time and memory since the last change of scope

  static inline CostMeter* current_ = nullptr;
  std::map<std::string, Cost> costs_;
  Clock::time_point since_;
  int64_t before_ = 0;  // bytes alive when the present scope was entered
};

// While an object lives, costs belong to that component.
class CostScope : NonCopyable {
 public:
  explicit CostScope(const char* component, bool backward = false);
  ~CostScope();

  // The innermost one of this thread, "rest" outside of all scopes.
  static const char* component();

 private:
  const char* outer_;
  bool outer_backward_;
  int64_t outer_before_ = 0;
};

inline void count_macs(double macs) {
  if (CostMeter* meter = CostMeter::current()) meter->add_macs(macs);
}
inline void count_bytes(double bytes) {
  if (CostMeter* meter = CostMeter::current()) meter->add_bytes(bytes);
}

}  // namespace brine
