// Learning-rate schedules with linear warm-up.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "data/config/schema.h"

namespace brine::nn {

struct ScheduleConfig {
  std::string schedule = "constant";
  int64_t warmup_steps = 0;
  double final_ratio = 0;  // linear and cosine end at this share of the peak

  void describe(data::Schema& s) {
    s.choice("schedule", schedule, {"constant", "linear", "cosine"},
             "Shape of the learning rate after the warm-up");
    s.field("warmup_steps", warmup_steps, "Steps of linear warm-up from 0", {.min = 0});
    s.field("final_ratio", final_ratio, "Share of the peak rate at the last step",
            {.min = 0, .max = 1});
  }

  // The factor on the peak rate at `progress`, the share of the run that is done (0..1), and
  // `step`, counted from 0.
  double factor(int64_t step, double progress) const {
    if (step < warmup_steps) return double(step + 1) / double(warmup_steps);
    double p = std::clamp(progress, 0.0, 1.0);
    if (schedule == "linear") return 1 - (1 - final_ratio) * p;
    if (schedule == "cosine") {
      return final_ratio + (1 - final_ratio) * 0.5 * (1 + std::cos(3.141592653589793 * p));
    }
    return 1;
  }
};

}  // namespace brine::nn
