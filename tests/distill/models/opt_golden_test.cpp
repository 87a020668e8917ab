// A tiny OPT against numbers that an independent program made (tests/golden/opt/make.py): hidden
// states, logits, loss and every gradient.
#include "autograd/ops.h"
#include "data/safetensors/safetensors.h"
#include "distill/losses/losses.h"
#include "nn/models/model_config.h"
#include "nn/models/opt/opt.h"
#include "nn/optim/parameter_store.h"
#include "tests/gradcheck.h"
#include "tests/paths.h"

namespace brine::test {
namespace {

constexpr double kOptTolerance = 2e-5;

nn::ModelConfig tiny() {
  nn::ModelConfig c;
  c.as<nn::OptConfig>() = {.vocab_size = 64,
                           .hidden_size = 32,
                           .num_hidden_layers = 2,
                           .num_attention_heads = 4,
                           .ffn_dim = 48,
                           .max_position_embeddings = 24};
  return c;
}

struct Golden {
  data::Safetensors file{brine::test::source_dir() + "/tests/golden/opt/tiny.safetensors"};
  Tensor operator()(const std::string& name) const { return file.tensor(name); }
  std::vector<NamedTensor> weights() const {
    std::vector<NamedTensor> out;
    for (const auto& e : file.entries()) {
      if (e.name.rfind("model/", 0) == 0) out.push_back({e.name.substr(6), file.tensor(e.name)});
    }
    return out;
  }
};

// The valid rows [B, T, ...] of a tensor.
std::vector<double> first_rows(const Tensor& x, const Tensor& lengths) {
  std::vector<double> out;
  for (int64_t b = 0; b < x.dim(0); ++b) {
    Tensor part = x.detach().select(0, b).slice(0, 0, lengths.data<int64_t>()[b]);
    for (double value : part.to_vector()) out.push_back(value);
  }
  return out;
}

void check_first_rows(const Tensor& x, const Tensor& want, const Tensor& lengths,
                      const char* what) {
  std::vector<double> y = first_rows(want, lengths);
  CHECK(close(first_rows(x, lengths), y, kOptTolerance * largest(y), 0, what));
}

}  // namespace

TEST_CASE("opt golden: hidden states, logits, loss and gradients, in both types") {
  Golden golden;
  Tensor ids = golden("ids"), lengths = golden("lengths");
  for (Dtype type : {Dtype::f64, Dtype::f32}) {
    nn::ModelConfig config = tiny();
    auto model = nn::make_model(config, 1, type);
    nn::load_state(*model, golden.weights(), "tiny.safetensors");
    nn::ParameterStore store(*model);
    nn::ModelCall call{.ids = ids, .lengths = lengths};
    {
      NoGrad off;
      Tensor x = model->embed(call);
      check_first_rows(x, golden("hidden/0"), lengths, "hidden/0");
      for (int64_t i = 0; i < 2; ++i) {
        x = model->layer(i, x, call, nullptr);
        check_first_rows(x, golden("hidden/" + std::to_string(i + 1)), lengths, "hidden");
      }
    }
    Tensor hidden = model->hidden(call);
    check_first_rows(hidden, golden("last"), lengths, "last");
    check_first_rows(model->logits(hidden), golden("logits"), lengths, "logits");
    distill::Objective objective(*model, nullptr, distill::task_only());
    distill::LossTerms terms;
    store.zero_gradients();
    objective.run({.ids = ids, .lengths = lengths, .windows = {}, .tokens = 28}, {}, terms);
    CHECK(terms.at("task_nll") == doctest::Approx(golden("loss").item()).epsilon(kOptTolerance));
    for (const auto& e : store.entries()) {
      // The gradient of k_proj.bias is 0 except for rounding: softmax does not see it.
      double floor = 1e-6;
      Tensor want = golden("gradient/" + e.path);
      CHECK(close(grad(e.parameter->value).to_vector(), want.to_vector(),
                  kOptTolerance * largest(want.to_vector()) + floor, 0, e.path));
    }
  }
}

}  // namespace brine::test
