// AdamW on the flat buffers of a ParameterStore, with two rates: "base" and "attention".
#pragma once

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

class Adamw {
 public:
  Adamw(ParameterStore& store, const OptimizerConfig& config);

  // The sum of the squares of all gradients, on their device: f64 [1].
  Tensor gradient_squares() const;
  // The global norm of the gradients times `scale`. Not finite when a gradient is not.
  double gradient_norm(double scale = 1) const;
  // One step with rates times `rate_factor`. The gradients are multiplied by `scale` and clipped to
  // config.clip by `norm`, which is gradient_norm(scale).
  void step(double rate_factor, double norm, double scale = 1);

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  const Tensor& first_moment() const { return m_; }  // [n], like the store's values
  const Tensor& second_moment() const { return v_; }

 private:
  struct Range {
    int64_t begin, size;
    double rate, decay;
  };
  ParameterStore& store_;
  OptimizerConfig config_;
  std::vector<Range> ranges_;
  Tensor m_, v_;
  int64_t steps_ = 0;
};

}  // namespace brine::nn
