// AdamW: adjacent parameters with one rate and decay form one range, one kernel call.
#include "nn/optim/optimizer.h"

#include "autograd/ops.h"

namespace brine::nn {

void OptimizerConfig::describe(data::Schema& s) {
  s.field("beta1", beta1, "AdamW: decay of the first moment", {.min = 0, .below = 1});
  s.field("beta2", beta2, "AdamW: decay of the second moment", {.min = 0, .below = 1});
  s.field("eps", eps, "AdamW: added to the denominator", {.above = 0});
  s.field("weight_decay", weight_decay, "AdamW: decoupled weight decay", {.min = 0});
  s.field("clip", clip, "Largest global norm of the gradient; 0 = no clipping", {.min = 0});
}

Adamw::Adamw(ParameterStore& store, const OptimizerConfig& config, const ParameterPlanner& plan)
    : store_(store),
      config_(config),
      m_(Tensor::zeros_like(store.values())),
      v_(Tensor::zeros_like(m_)) {
  for (const ParameterStore::Entry& e : store.entries()) {
    const ParameterPlan p = plan ? plan(e)
                                 : ParameterPlan{.rate = e.group == ParameterGroup::attention
                                                             ? config.attention_learning_rate
                                                             : config.learning_rate};
    if (p.part == int64_t(parts_.size())) parts_.push_back({parts_.empty() ? 0 : e.offset, 0});
    check(p.part + 1 == int64_t(parts_.size()), "AdamW: ", e.path, " is in part ", p.part,
          ", wanted ", parts_.size() - 1, " or the next one");
    parts_.back().end = e.offset + e.size;
    double decay = e.parameter->decay ? config.weight_decay : 0;
    if (!ranges_.empty() && ranges_.back().rate == p.rate && ranges_.back().decay == decay &&
        ranges_.back().part == p.part) {
      ranges_.back().size = e.offset + e.size - ranges_.back().begin;
    } else {
      ranges_.push_back({e.offset, e.size, p.rate, decay, p.part});
    }
  }
}

Tensor Adamw::gradient_squares() const { return square_sum(store_.gradients()); }

std::vector<Tensor> Adamw::part_squares() const {
  std::vector<Tensor> out;
  out.reserve(parts_.size());
  for (const Part& p : parts_) {
    out.push_back(square_sum(store_.gradients().slice(0, p.begin, p.end - p.begin)));
  }
  return out;
}

double Adamw::gradient_norm() const { return std::sqrt(gradient_squares().item()); }

void Adamw::step(double rate_factor, double norm) {
  step(rate_factor, std::vector<double>(parts_.size(), norm));
}

void Adamw::step(double rate_factor, const std::vector<double>& norms) {
  check(norms.size() == parts_.size(), "AdamW: ", norms.size(), " norms for ", parts_.size(),
        " parts");
  ++steps_;
  for (const Range& r : ranges_) {
    const double norm = norms[size_t(r.part)];
    const double scale = config_.clip > 0 && norm > config_.clip ? config_.clip / norm : 1;
    AdamwStep s{.learning_rate = r.rate * rate_factor,
                .beta1 = config_.beta1,
                .beta2 = config_.beta2,
                .eps = config_.eps,
                .weight_decay = r.decay,
                .grad_scale = scale,
                .step = steps_};
    auto part = [&](const Tensor& of_all) { return of_all.slice(0, r.begin, r.size); };
    adamw(part(store_.values()), part(m_), part(v_), part(store_.gradients()), s);
  }
  store_.values().bump_version();
}

}  // namespace brine::nn
