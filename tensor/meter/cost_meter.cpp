// Cost accounting: a change of scope ends the account of the previous scope.
#include "tensor/meter/cost_meter.h"

#include <algorithm>

#include "tensor/base/error.h"
#include "tensor/device/accelerator.h"
#include "tensor/device/allocator.h"

namespace brine {
namespace {

constexpr const char* kRest = "rest";
thread_local const char* present = kRest;
thread_local bool in_backward = false;

Cost& account(std::map<std::string, Cost>& costs) {
  return costs[in_backward ? join("backward of ", present) : std::string(present)];
}

}  // namespace

CostMeter::CostMeter() {
  check(current_ == nullptr, "cost meter: one is running already");
  current_ = this;
  reset_peak();
  before_ = allocator_stats().live;
  since_ = Clock::now();
}

CostMeter::~CostMeter() { current_ = nullptr; }

void CostMeter::settle() {
  // A device may still execute work of the scope.
  if (default_device().is_cuda()) cuda::synchronize(default_device());
  const Clock::time_point now = Clock::now();
  Cost& cost = account(costs_);
  cost.ms += std::chrono::duration<double, std::milli>(now - since_).count();
  cost.peak = std::max(cost.peak, allocator_stats().peak_live - before_);
  reset_peak();
  since_ = Clock::now();
}

CostScope::CostScope(const char* name, bool backward)
    : outer_(present), outer_backward_(in_backward) {
  if (CostMeter* meter = CostMeter::current()) {
    meter->settle();
    outer_before_ = meter->before_;
    meter->before_ = allocator_stats().live;
  }
  present = name;
  in_backward = backward;
}

CostScope::~CostScope() {
  if (CostMeter* meter = CostMeter::current()) {
    meter->settle();
    meter->before_ = outer_before_;
  }
  present = outer_;
  in_backward = outer_backward_;
}

const char* CostScope::component() { return present; }

void CostMeter::add_macs(double macs) { account(costs_).macs += macs; }
void CostMeter::add_bytes(double bytes) { account(costs_).bytes += bytes; }

}  // namespace brine
