// AdamW on the flat buffers of a ParameterStore: rates by parameter group or by parameter, clipping
// of the whole gradient or by parts.
#pragma once

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

}  // namespace brine::nn
