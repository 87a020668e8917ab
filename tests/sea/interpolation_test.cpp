// The two choices of interpolation: V_I of encoders by nearest rows, and estimates whose
// probabilities are widened, against their definitions.
#include <nlohmann/json.hpp>

#include "nn/models/model_config.h"
#include "sea/paper/paper_estimator.h"
#include "tests/messages.h"
#include "tests/nn/attention/contract/contract.h"
#include "tests/refusals.h"
#include "tests/sea/estimators.h"

namespace brine::test {
namespace {

using sea::Interpolation;

constexpr nn::AttentionShape kEncoderShape{
    .heads = 2, .head_size = 8, .max_positions = 64, .causal = false};

// Row p of L has its 1 in the column whose span of L / d rows contains p.
std::vector<double> nearest_rows(const std::vector<int64_t>& lengths, int64_t T, int64_t d) {
  std::vector<double> y;
  for (int64_t L : lengths) {
    for (int64_t p = 0; p < T; ++p) {
      for (int64_t c = 0; c < d; ++c) {
        y.push_back(p < L && c * L <= p * d && p * d < (c + 1) * L ? 1 : 0);
      }
    }
  }
  return y;
}

sea::SeaConfig nearest_config() {
  return {.keys = 4,
          .columns = 8,
          .prior = sea::Prior::none,
          .identity_interpolation = Interpolation::nearest};
}

}  // namespace

TEST_CASE("V_I by nearest rows: every row has a single 1, at the column that its position is in") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    for (int64_t d : {1, 4, 8}) {
      const std::vector<int64_t> lengths = {0, 1, 2, 7, 8, 9, 16, 37};
      const Shape shape{int64_t(lengths.size()), 37, d};
      const Tensor y = resampled_identity(shape, true, lengths_of(lengths), dtype, Device{});
      CHECK(y.to_vector() == nearest_rows(lengths, 37, d));
      CHECK(resampled_identity({1, 9, d}, true, {}, dtype, Device{}).to_vector() ==
            nearest_rows({9}, 9, d));
    }
  }
  // With as many tokens as columns both are the identity.
  const Tensor both[] = {resampled_identity({1, 8, 8}, true, {}, Dtype::f64, Device{}),
                         resampled_identity({1, 8, 8}, false, {}, Dtype::f64, Device{})};
  CHECK(same_bits(both[0], both[1]));
}

TEST_CASE("V_I by nearest rows: C_perf is the linear attention to it and to the values") {
  NoGrad off;
  const std::vector<int64_t> lengths = {13, 6};
  const int64_t H = 2, T = 13, d = 8;
  nn::Init init{.random = {.seed = 7}, .dtype = Dtype::f64};
  const auto owner = sea::make_estimator(init, kEncoderShape, nearest_config());
  sea::Estimator& block = *owner;
  const Tensor q = normal({2, H, T, d}, 1, Dtype::f64), k = normal({2, H, T, d}, 2, Dtype::f64),
               v = normal({2, H, T, d}, 3, Dtype::f64);
  const sea::Estimate e =
      block({.q = q, .k = k, .v = v}, {.causal = false, .lengths = lengths_of(lengths)});
  const std::vector<double> id = nearest_rows(lengths, T, d), values = v.to_vector(),
                            fq = e.phi_q.to_vector(), fk = e.phi_k.to_vector();
  const int64_t m = e.phi_q.dim(3);
  std::vector<double> wanted(size_t(e.performer_context.numel()), 0);
  for (int64_t n = 0; n < 2 * H; ++n) {
    const int64_t L = lengths[size_t(n / H)];
    for (int64_t t = 0; t < L; ++t) {
      const double* query = fq.data() + (n * T + t) * m;
      double sum = 0;
      double* y = wanted.data() + (n * T + t) * 2 * d;
      for (int64_t i = 0; i < m; ++i) sum += query[i] * 1e-6;
      for (int64_t j = 0; j < L; ++j) {
        double weight = 0;
        for (int64_t i = 0; i < m; ++i) weight += query[i] * fk[size_t((n * T + j) * m + i)];
        sum += weight;
        for (int64_t c = 0; c < d; ++c) {
          y[c] += weight * id[size_t((n / H * T + j) * d + c)];
          y[d + c] += weight * values[size_t((n * T + j) * d + c)];
        }
      }
      for (int64_t c = 0; c < 2 * d; ++c) y[c] /= sum;
    }
  }
  CHECK(close(e.performer_context.to_vector(), wanted, 1e-12, 1e-12));
}

TEST_CASE("V_I by nearest rows: gradients of inputs and weights by finite differences") {
  auto f = [&](In x) {
    nn::Init init{.random = {.seed = 7}, .dtype = Dtype::f64, .linear_std = 0.3};
    const auto owner = sea::make_estimator(init, kEncoderShape, nearest_config());
    sea::Estimator& block = *owner;
    parameter_of(block, "mu.linear.weight") = x[3];
    parameter_of(block, "nu.weight") = x[4];
    return reshape(block({x[0], x[1], x[2]}, {.causal = false}).estimate, {-1});
  };
  nn::Init init{.random = {.seed = 7}, .dtype = Dtype::f64, .linear_std = 0.3};
  const auto start = sea::make_estimator(init, kEncoderShape, nearest_config());
  CHECK(gradcheck(f,
                  {normal({1, 2, 11, 8}, 1), normal({1, 2, 11, 8}, 2), normal({1, 2, 11, 8}, 3),
                   parameter_of(*start, "mu.linear.weight").detach(),
                   parameter_of(*start, "nu.weight").detach()},
                  {.step = 1e-6, .probes = 24}) < 2e-5);
}

TEST_CASE("identity_interpolation and widen are stored with a model, and refused where idle") {
  nn::ModelConfig config = nn::make_config("bert", data::Json::object());
  config.attention = "sea";
  data::Schema keys;
  config.method().describe(keys);
  CHECK(nn::to_hf_config(config)["brine"]["attention"]["identity_interpolation"] == "bilinear");
  CHECK(nn::to_hf_config(config)["brine"]["attention"]["widen"] == "scores");
  keys.set_text("identity_interpolation", {"nearest"});
  keys.set_text("widen", {"probabilities"});
  nn::ModelConfig again = nn::from_hf_config(nn::to_hf_config(config), "config.json");
  data::Schema stored;
  again.method().describe(stored);
  CHECK(stored.to_json()["identity_interpolation"] == "nearest");
  CHECK(stored.to_json()["widen"] == "probabilities");
  CHECK_REFUSES(stored.set_text("identity_interpolation", {"cubic"}), "identity_interpolation",
                "bilinear", "nearest", "cubic");
  CHECK_REFUSES(stored.set_text("widen", {"logits"}), "widen", "scores", "probabilities", "logits");
  auto refusal = [](bool causal, std::map<std::string, std::string> settings) {
    settings["identity_interpolation"] = "nearest";
    return message([&] { make_block("sea", causal, Dtype::f32, 5, 64, settings); });
  };
  CHECK(refusal(false, {}) == "no error");
  check_says(refusal(true, {}), {"sea", "identity_interpolation", "nearest", "encoder", "causal"});
  check_says(refusal(false, {{"preset", "light"}}),
             {"sea", "identity_interpolation", "nearest", "V_I", "gates", "head"});
  CHECK(refusal(false, {{"decoder", "none"}, {"gates", "token"}}) == "no error");
}

TEST_CASE("widen = probabilities gives losses the estimate's logarithm and changes no output") {
  for (bool causal : {true, false}) {
    CAPTURE(causal);
    Block scores = make_block("sea", causal, Dtype::f32),
          block = make_block("sea", causal, Dtype::f32, 5, 300, {{"widen", "probabilities"}});
    const Inputs in = inputs(2, 29, Dtype::f32);
    const Tensor lengths = lengths_of({29, 17});
    nn::Tap plain("sea"), tap("sea");
    check_same_bits(pass(scores, in, lengths, {}, {}, &plain),
                    pass(block, in, lengths, {}, {}, &tap), "widen");
    CHECK_FALSE(plain.has("log_estimate"));
    const Tensor& p = tap.get("estimate");
    const Tensor& logs = tap.get("log_estimate");
    REQUIRE(logs.shape() == p.shape());
    for (int64_t i = 0; i < p.numel(); ++i) {
      const double value = double(p.data<float>()[i]), log = double(logs.data<float>()[i]);
      REQUIRE((value > 0 ? std::abs(std::exp(log) - value) < 1e-6 : log == 0));
    }
    // Rows of padding are 0.
    CHECK(largest(logs.detach().slice(0, 1, 1).slice(2, 17, 12).to_vector()) == 0);
  }
}

TEST_CASE("widen = probabilities: no loss of a row reaches later tokens") {
  Block block = make_block("sea", true, Dtype::f32, 5, 300, {{"widen", "probabilities"}});
  const int64_t T = 23, cut = 9;
  auto run = [&](uint64_t seed) {
    Inputs in = inputs(1, T, Dtype::f32);
    const Inputs other = inputs(1, T, Dtype::f32, seed);
    for (auto [to, from] : {std::pair(&in.q, &other.q), {&in.k, &other.k}, {&in.v, &other.v}}) {
      *to = to->clone();
      assign(to->slice(2, cut, T - cut), from->slice(2, cut, T - cut));
    }
    const Tensor q = require_grad(in.q), k = require_grad(in.k), v = require_grad(in.v);
    nn::Tap tap("sea");
    block.module->forward({.q = q, .k = k, .v = v, .hidden = in.hidden, .tap = &tap});
    const Tensor& logs = tap.get("log_estimate");
    const Tensor past = rows(logs, 2, 0, cut);
    Tensor dy = Tensor::zeros_like(logs.detach());
    assign(dy.slice(2, 0, cut), cotangent(past));
    backward(logs, dy);
    std::vector<Tensor> out = {past};
    for (const Tensor& x : {q, k, v}) out.push_back(grad(x));
    return out;
  };
  const std::vector<Tensor> a = run(70), b = run(90);
  CHECK(same_bits(a[0], b[0]));
  for (size_t i = 1; i < 4; ++i) {
    CHECK(largest(rows(a[i], 2, 0, cut).to_vector()) > 0);
    CHECK(largest(rows(a[i], 2, cut, T - cut).to_vector()) == 0);
    CHECK(close_to_scale(rows(a[i], 2, 0, cut), rows(b[i], 2, 0, cut), 1e-6));
  }
}

}  // namespace brine::test
