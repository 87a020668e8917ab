// Dynamic loss scaling: f16 loses what is below 2^-24, and gradients are often that small.
#pragma once

#include <cstdint>

#include "data/config/schema.h"

namespace brine::distill {

// automatic: with compute f16.
enum class LossScaling { automatic, on, off };

struct LossScaleConfig {
  LossScaling enabled = LossScaling::automatic;
  int64_t initial = 65536, growth_interval = 2000;

  void describe(data::Schema& schema);
  // Whether runs of this thread scale the loss; auto: under ComputeType(f16).
  bool active() const;
};

// The factor of every gradient of a step, removed again before norm, clipping and optimizer. As in
// PyTorch's GradScaler, a step with a gradient that is not finite halves it and is skipped, and
// growth_interval finite steps in a row double it. It is a power of two: gradients that stay in
// range have the same bits as without it.
class LossScale {
 public:
  explicit LossScale(const LossScaleConfig& config);  // throws unless initial is 1, 2, 4 .. 2^32

  bool active() const { return active_; }
  int64_t value() const { return value_; }          // 1 when not active
  int64_t overflows() const { return overflows_; }  // steps skipped

  void count_finite();  // a step with finite gradients
  // A step with other gradients. False, with nothing done, when the factor is already 1.
  bool back_off();

  // The complete state, for the checkpoint.
  data::Json state() const;
  void restore(const data::Json& state);

 private:
  bool active_;
  int64_t value_, growth_interval_, finite_in_a_row_ = 0, overflows_ = 0;
};

}  // namespace brine::distill
