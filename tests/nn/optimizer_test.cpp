// AdamW against a plain f64 oracle, with groups, decay and clipping; learning-rate schedules.
#include "nn/optim/optimizer.h"

#include <map>

#include "nn/layers/layers.h"
#include "tensor/kernels/dense.h"
#include "tests/gradcheck.h"
#include "tests/messages.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

struct Half : nn::Module {
  Half(nn::Init& init, std::optional<nn::ParameterGroup> group, int64_t in)
      : linear(child<nn::Linear>("linear", init, in, 5)), group_(group) {}
  std::optional<nn::ParameterGroup> group() const override { return group_; }
  nn::Linear& linear;
  std::optional<nn::ParameterGroup> group_;
};

struct Model : nn::Module {
  explicit Model(nn::Init& init)
      : a(child<Half>("a", init, std::nullopt, 7)),
        b(child<Half>("b", init, nn::ParameterGroup::attention, 9)),
        c(child<nn::LayerNorm>("c", init, 3)) {}
  Half& a;
  Half& b;
  nn::LayerNorm& c;
};

// What AdamW does to one number (Loshchilov and Hutter 2019), from the paper's text.
struct Oracle {
  double w, m = 0, v = 0;
  int t = 0;
  void step(double g, double rate, double decay, const nn::OptimizerConfig& c) {
    ++t;
    m = c.beta1 * m + (1 - c.beta1) * g;
    v = c.beta2 * v + (1 - c.beta2) * g * g;
    double m_hat = m / (1 - std::pow(c.beta1, t)), v_hat = v / (1 - std::pow(c.beta2, t));
    w = w - rate * (m_hat / (std::sqrt(v_hat) + c.eps) + decay * w);
  }
};

// The worst difference to the oracle after eight steps.
double worst_error(const nn::OptimizerConfig& config, Dtype dtype, double gradient_size) {
  nn::Init init{.random = {.seed = 3}, .dtype = dtype, .linear_std = 0.5};
  Model model(init);
  nn::ParameterStore store(model);
  nn::Adamw adamw(store, config);
  std::vector<Oracle> oracle;
  for (double w : store.values().to_vector()) oracle.push_back({w});
  for (uint64_t t = 1; t <= 8; ++t) {
    Tensor g = normal(store.values().shape(), 50 + t, dtype, 0, gradient_size);
    store.zero_gradients();
    double square = 0;
    for (const auto& e : store.entries()) {  // nothing between the entries
      Tensor to = store.gradients().slice(0, e.offset, e.size);
      Tensor from = g.slice(0, e.offset, e.size);
      BRINE_CALL(to, copy, to, from);
      for (double x : from.to_vector()) square += x * x;
    }
    double norm = std::sqrt(square);
    CHECK(adamw.gradient_norm() == doctest::Approx(norm).epsilon(1e-6));
    double factor = 1 / double(t), clip = 1;
    if (config.clip > 0 && norm > config.clip) clip = config.clip / norm;
    std::vector<double> values = g.to_vector();
    for (const auto& e : store.entries()) {
      bool attention = e.path.rfind("b.", 0) == 0;
      double rate = (attention ? config.attention_learning_rate : config.learning_rate) * factor;
      bool decays = e.path == "a.linear.weight" || e.path == "b.linear.weight";
      for (int64_t i = e.offset; i < e.offset + e.size; ++i) {
        oracle[size_t(i)].step(values[size_t(i)] * clip, rate, decays ? config.weight_decay : 0,
                               config);
      }
    }
    adamw.step(factor, adamw.gradient_norm());
  }
  CHECK(adamw.steps() == 8);
  std::vector<double> w = store.values().to_vector(), m = adamw.first_moment().to_vector();
  double worst = 0;
  for (const auto& e : store.entries()) {
    for (int64_t i = e.offset; i < e.offset + e.size; ++i) {
      worst = std::max({worst, std::abs(w[size_t(i)] - oracle[size_t(i)].w),
                        std::abs(m[size_t(i)] - oracle[size_t(i)].m)});
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("adamw: eight steps equal the oracle, with groups, decay, scale and clipping") {
  for (double decay : {0.0, 0.3}) {
    for (double clip : {0.0, 1.0}) {
      for (double size : {1e-3, 1.0}) {  // below and above the clip
        INFO("decay " << decay << ", clip " << clip << ", gradients of " << size);
        nn::OptimizerConfig config{.learning_rate = 0.02,
                                   .attention_learning_rate = 0.1,
                                   .beta1 = 0.8,
                                   .beta2 = 0.95,
                                   .eps = 1e-6,
                                   .weight_decay = decay,
                                   .clip = clip};
        CHECK(worst_error(config, Dtype::f64, size) < 1e-13);
        CHECK(worst_error(config, Dtype::f32, size) < 2e-5);
      }
    }
  }
}

TEST_CASE("adamw: parts are clipped by their own norms, with rates by parameter") {
  const nn::OptimizerConfig config{.weight_decay = 0, .clip = 1};
  // Of each entry the value after one step from 0: its rate times the sign of the gradient, unless
  // eps counts; so a large eps shows the clipped gradient.
  nn::OptimizerConfig shown = config;
  shown.eps = 1e6;
  auto stepped = [&](const nn::ParameterPlanner& plan, bool by_parts) {
    nn::Init init{.random = {.seed = 3}, .dtype = Dtype::f64};
    Model model(init);
    nn::ParameterStore store(model);
    nn::Adamw adamw(store, shown, plan);
    const Tensor before = store.values().clone();
    store.zero_gradients();
    for (const auto& e : store.entries()) {
      const bool large = e.path.rfind("b.", 0) == 0;
      const Tensor g = store.gradients().slice(0, e.offset, e.size);
      BRINE_CALL(g, fill, g, large ? 100.0 : 0.01);
    }
    std::vector<double> norms;
    for (const Tensor& s : adamw.part_squares()) norms.push_back(std::sqrt(s.item()));
    if (by_parts) {
      adamw.step(1, norms);
    } else {
      adamw.step(1, adamw.gradient_norm());
    }
    std::map<std::string, double> out;
    for (const auto& e : store.entries()) {
      const auto at = size_t(e.offset);
      out[e.path] = (before.to_vector()[at] - store.values().to_vector()[at]) * 1e6;
    }
    return out;
  };
  auto part_of = [](const nn::ParameterStore::Entry& e) {
    return nn::ParameterPlan{.rate = e.path == "c.weight" ? 3.0 : 1.0, .part = e.path[0] - 'a'};
  };
  const std::map<std::string, double> parts = stepped(part_of, true),
                                      whole = stepped(part_of, false);
  CHECK(parts.at("a.linear.weight") == doctest::Approx(0.01).epsilon(1e-5));  // below the clip
  CHECK(parts.at("c.weight") == doctest::Approx(0.03).epsilon(1e-5));
  CHECK(parts.at("b.linear.weight") == doctest::Approx(1 / std::sqrt(50.0)).epsilon(1e-5));
  CHECK(whole.at("a.linear.weight") < 1e-4);
  auto wrong = [](const nn::ParameterStore::Entry& e) {
    return nn::ParameterPlan{.rate = 1, .part = e.path[0] == 'b'};
  };
  CHECK_REFUSES(stepped(wrong, true), "AdamW", "c.weight", "part 0");
}

TEST_CASE("adamw: a gradient that is not finite makes the norm not finite") {
  nn::Init init{.random = {.seed = 3}};
  Model model(init);
  nn::ParameterStore store(model);
  nn::Adamw adamw(store, {});
  store.gradients().data<float>()[4] = NAN;
  CHECK(std::isnan(adamw.gradient_norm()));
  store.gradients().data<float>()[4] = INFINITY;
  CHECK_FALSE(std::isfinite(adamw.gradient_norm()));
}

TEST_CASE("schedules: warm-up, constant, linear and cosine") {
  nn::ScheduleConfig s{.schedule = nn::Decay::constant, .warmup_steps = 4, .final_ratio = 0.1};
  CHECK(s.factor(0, 0) == doctest::Approx(0.25));
  CHECK(s.factor(3, 0.03) == doctest::Approx(1));
  CHECK(s.factor(50, 0.5) == 1);
  s.schedule = nn::Decay::linear;
  CHECK(s.factor(1, 0.9) == doctest::Approx(0.5));  // the warm-up goes first
  CHECK(s.factor(50, 0) == doctest::Approx(1));
  CHECK(s.factor(50, 0.5) == doctest::Approx(0.55));
  CHECK(s.factor(50, 1) == doctest::Approx(0.1));
  CHECK(s.factor(50, 1.5) == doctest::Approx(0.1));  // a run by the clock overshoots
  s.schedule = nn::Decay::cosine;
  CHECK(s.factor(50, 0) == doctest::Approx(1));
  CHECK(s.factor(50, 0.5) == doctest::Approx(0.55));
  CHECK(s.factor(50, 0.25) == doctest::Approx(0.1 + 0.45 * (1 + std::sqrt(0.5))));
  CHECK(s.factor(50, 1) == doctest::Approx(0.1));
  s.warmup_steps = 0;
  CHECK(s.factor(0, 0) == doctest::Approx(1));
}

}  // namespace brine::test
