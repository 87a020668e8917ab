// AdamW on the flat buffers of a ParameterStore: rates by parameter group or by parameter, clipping
// of the whole gradient or by parts; and the schedule of the rates.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "data/config/schema.h"
#include "nn/optim/parameter_store.h"

namespace brine::nn {

struct OptimizerConfig {
  double learning_rate = 1e-5;            // everything except the attention methods
  double attention_learning_rate = 1e-4;  // parameters of the attention method
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.01;
  double clip = 1.0;  // global norm; 0 = off

  // The keys without the two rates, which depend on the run (distill/runs).
  void describe(data::Schema& schema);
};

// Of one parameter: its peak rate, and the part with which its gradient is clipped. Parts are
// numbered from 0 in the order of the store's entries.
struct ParameterPlan {
  double rate = 0;
  int64_t part = 0;
};
using ParameterPlanner = std::function<ParameterPlan(const ParameterStore::Entry&)>;

class Adamw {
 public:
  // Without a planner: the two rates of `config` by group, one part.
  Adamw(ParameterStore& store, const OptimizerConfig& config, const ParameterPlanner& plan = {});

  // The sum of the squares of all gradients, and those of each part, on their device: f64 [1].
  Tensor gradient_squares() const;
  std::vector<Tensor> part_squares() const;
  // The norm of all gradients. Not finite when a gradient is not.
  double gradient_norm() const;
  // One step with rates times `rate_factor`. The gradients are clipped to config.clip by `norm`,
  // which is gradient_norm().
  void step(double rate_factor, double norm);
  // The same with a norm for each part.
  void step(double rate_factor, const std::vector<double>& norms);

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  // [n], like the store's values.
  const Tensor& first_moment() const { return m_; }
  const Tensor& second_moment() const { return v_; }

 private:
  struct Range {
    int64_t begin, size;
    double rate, decay;
    int64_t part;
  };
  struct Part {
    int64_t begin, end;
  };
  ParameterStore& store_;
  OptimizerConfig config_;
  std::vector<Range> ranges_;
  std::vector<Part> parts_;
  Tensor m_, v_;
  int64_t steps_ = 0;
};

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
