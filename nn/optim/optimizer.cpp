// AdamW: adjacent parameters with one rate and decay form one range, one kernel call.
#include "nn/optim/optimizer.h"

#include <cmath>

#include "autograd/ops.h"

namespace brine::nn {

void OptimizerConfig::describe(data::Schema& s) {
  s.field("beta1", beta1, "AdamW: decay of the first moment", {.min = 0, .below = 1});
  s.field("beta2", beta2, "AdamW: decay of the second moment", {.min = 0, .below = 1});
  s.field("eps", eps, "AdamW: added to the denominator", {.above = 0});
  s.field("weight_decay", weight_decay, "AdamW: decoupled weight decay", {.min = 0});
  s.field("clip", clip, "Largest global norm of the gradient; 0 = no clipping", {.min = 0});
}

Adamw::Adamw(ParameterStore& store, const OptimizerConfig& config)
    : store_(store),
      config_(config),
      m_(Tensor::zeros_like(store.values())),
      v_(Tensor::zeros_like(store.values())) {
  for (const ParameterStore::Entry& e : store.entries()) {
    double rate = e.group == ParameterGroup::attention ? config.attention_learning_rate
                                                       : config.learning_rate;
    double decay = e.parameter->decay ? config.weight_decay : 0;
    if (!ranges_.empty() && ranges_.back().rate == rate && ranges_.back().decay == decay) {
      ranges_.back().size = e.offset + e.size - ranges_.back().begin;
    } else {
      ranges_.push_back({e.offset, e.size, rate, decay});
    }
  }
}

Tensor Adamw::gradient_squares() const { return square_sum(store_.gradients()); }

double Adamw::gradient_norm(double scale) const {
  return std::sqrt(gradient_squares().item()) * std::fabs(scale);
}

void Adamw::step(double rate_factor, double norm, double scale) {
  ++steps_;
  if (config_.clip > 0 && norm > config_.clip) scale *= config_.clip / norm;
  for (const Range& r : ranges_) {
    AdamwStep s{.learning_rate = r.rate * rate_factor,
                .beta1 = config_.beta1,
                .beta2 = config_.beta2,
                .eps = config_.eps,
                .weight_decay = r.decay,
                .grad_scale = scale,
                .step = steps_};
    Tensor w = store_.values().slice(0, r.begin, r.size);
    Tensor m = m_.slice(0, r.begin, r.size), v = v_.slice(0, r.begin, r.size);
    Tensor g = store_.gradients().slice(0, r.begin, r.size);
    adamw(w, m, v, g, s);
  }
  store_.values().bump_version();
}

}  // namespace brine::nn
