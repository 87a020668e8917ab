// Learning-rate schedules with linear warm-up.
#pragma once

#include <algorithm>
#include <cmath>

#include "data/config/schema.h"

namespace brine::nn {

// The shape of the learning rate after the warm-up.
enum class Decay { constant, linear, cosine };
inline constexpr data::Named<Decay> kDecayNames[] = {
    {Decay::constant, "constant"}, {Decay::linear, "linear"}, {Decay::cosine, "cosine"}};

struct ScheduleConfig {
  Decay schedule = Decay::constant;
  int64_t warmup_steps = 0;
  double final_ratio = 0;  // linear and cosine end at this share of the peak

  // The keys without schedule and warmup_steps, which depend on the run (distill/runs).
  void describe(data::Schema& s) {
    s.field("final_ratio", final_ratio, "Share of the peak rate at the last step",
            {.min = 0, .max = 1});
  }

  // The factor on the peak rate at `progress`, the finished share of the run (0..1), and `step`,
  // counted from 0.
  double factor(int64_t step, double progress) const {
    if (step < warmup_steps) return double(step + 1) / double(warmup_steps);
    double p = std::clamp(progress, 0.0, 1.0);
    if (schedule == Decay::linear) return 1 - (1 - final_ratio) * p;
    if (schedule == Decay::cosine) {
      return final_ratio + (1 - final_ratio) * 0.5 * (1 + std::cos(3.141592653589793 * p));
    }
    return 1;
  }
};

}  // namespace brine::nn
