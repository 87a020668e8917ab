// Dynamic loss scaling: an overflow halves the factor, a number of finite steps doubles it.
#include "distill/losses/loss_scale.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "autograd/compute_type.h"

namespace brine::distill {
namespace {

constexpr int64_t kMost = int64_t(1) << 32;

}  // namespace

void LossScaleConfig::describe(data::Schema& s) {
  s.choice("enabled", enabled,
           {{LossScaling::automatic, "auto"}, {LossScaling::on, "on"}, {LossScaling::off, "off"}},
           "Scale gradients into the range of f16; auto: with compute f16");
  s.field("initial", initial,
          "First factor, a power of two; halved by a step whose gradient overflows", {.min = 1});
  s.field("growth_interval", growth_interval,
          "Steps without an overflow after which the factor doubles", {.min = 1});
}

bool LossScaleConfig::active() const {
  return enabled == LossScaling::on ||
         (enabled == LossScaling::automatic && compute_type() == Dtype::f16);
}

LossScale::LossScale(const LossScaleConfig& config)
    : active_(config.active()),
      value_(active_ ? config.initial : 1),
      growth_interval_(config.growth_interval) {
  check(std::has_single_bit(uint64_t(config.initial)) && config.initial <= kMost,
        "loss_scale.initial: ", config.initial, " is not a power of two up to ", kMost);
}

void LossScale::count_finite() {
  if (!active_ || ++finite_in_a_row_ < growth_interval_) return;
  value_ = std::min(2 * value_, kMost);
  finite_in_a_row_ = 0;
}

bool LossScale::back_off() {
  if (value_ == 1) return false;
  value_ /= 2;
  finite_in_a_row_ = 0;
  ++overflows_;
  return true;
}

data::Json LossScale::state() const {
  return {{"value", value_}, {"finite_in_a_row", finite_in_a_row_}, {"overflows", overflows_}};
}

void LossScale::restore(const data::Json& state) {
  value_ = state.at("value");
  finite_in_a_row_ = state.at("finite_in_a_row");
  overflows_ = state.at("overflows");
}

}  // namespace brine::distill
