// The OPT decoder: names, causality, positions, recomputation, the tied head.
#include "nn/models/opt/opt.h"

#include <algorithm>

#include "nn/models/model_config.h"
#include "nn/optim/parameter_store.h"
#include "tests/gradcheck.h"
#include "tests/refusals.h"
#include "tests/small_models.h"

namespace brine::test {
namespace {

nn::ModelConfig opt_config(double dropout = 0) {
  nn::ModelConfig c;
  c.as<nn::OptConfig>() = small_opt(37, 20, 0.2);
  c.as<nn::OptConfig>().dropout = dropout;
  return c;
}

// The names of Hugging Face's OPT with tied embeddings.
std::vector<std::string> hugging_face_names(int layers) {
  std::vector<std::string> out = {"model.decoder.embed_tokens.weight",
                                  "model.decoder.embed_positions.weight"};
  auto both = [&](const std::string& name) {
    out.push_back(name + ".weight");
    out.push_back(name + ".bias");
  };
  both("model.decoder.final_layer_norm");
  for (int i = 0; i < layers; ++i) {
    std::string layer = "model.decoder.layers." + std::to_string(i) + ".";
    for (const char* p : {"k_proj", "v_proj", "q_proj", "out_proj"}) both(layer + "self_attn." + p);
    for (const char* p : {"self_attn_layer_norm", "fc1", "fc2", "final_layer_norm"})
      both(layer + p);
  }
  std::sort(out.begin(), out.end());
  return out;
}

// Loss of a layer: the square of its output; keeps the tap.
struct Watcher : nn::LayerObserver {
  Tensor observe(int64_t layer, const nn::Tap& tap, const Tensor& output) override {
    CHECK(tap.has("q"));
    CHECK(tap.has("attention_output"));
    ++calls;
    return scale(dot(output, output), 0.01 * double(layer + 1));
  }
  int calls = 0;
};

struct Stepped {
  Tensor hidden, gradients;
  uint64_t counter;
  int calls;
};

Stepped step(nn::Model& model, nn::ParameterStore& store, const Tensor& ids, bool recompute) {
  store.zero_gradients();
  RandomStream random{.seed = 9, .stream = 2};
  Watcher watcher;
  Tensor h =
      model.hidden({.ids = ids, .observer = &watcher, .random = &random, .recompute = recompute});
  backward(h, cotangent(h));
  return {h.detach(), store.gradients().clone(), random.counter, watcher.calls};
}

}  // namespace

TEST_CASE("opt: parameters bear exactly the names of Hugging Face's checkpoints") {
  nn::ModelConfig config = opt_config();
  auto model = nn::make_model(config, 1);
  std::vector<std::string> names;
  for (const auto& t : nn::state_of(*model)) names.push_back(t.name);
  std::sort(names.begin(), names.end());
  CHECK(names == hugging_face_names(2));
  for (const auto& p : model->named_parameters()) {
    if (p.path == "model.decoder.embed_positions.weight") {
      CHECK(p.parameter->value.shape() == Shape{22, 24});  // two rows more than positions
    }
  }
}

TEST_CASE("opt: logits do not depend on later tokens, bit for bit") {
  nn::ModelConfig config = opt_config();
  for (const char* method : {"dense", "flash", "recent"}) {
    config.attention = method;
    auto model = nn::make_model(config, 1);
    NoGrad off;
    Tensor a = ids({2, 17}, 5, 37), b = a.clone();
    for (int64_t t : {0, 7, 15}) {
      b = a.clone();
      for (int64_t i = t + 1; i < 17; ++i) {
        b.data<int32_t>()[17 + i] = (b.data<int32_t>()[17 + i] + 5) % 37;
      }
      Tensor x = model->logits(model->hidden({.ids = a}));
      Tensor y = model->logits(model->hidden({.ids = b}));
      CHECK(same_bits(x.slice(1, 0, t + 1).contiguous(), y.slice(1, 0, t + 1).contiguous()));
      CHECK_FALSE(same_bits(x, y));
    }
  }
}

TEST_CASE("opt: more tokens than positions are refused, as many are not") {
  nn::ModelConfig config = opt_config();
  auto model = nn::make_model(config, 1);
  NoGrad off;
  CHECK(model->hidden({.ids = ids({1, 20}, 5, 37)}).shape() == Shape{1, 20, 24});
  CHECK_THROWS_WITH_AS(model->hidden({.ids = ids({1, 21}, 5, 37)}),
                       "opt: 21 tokens, but the model has 20 positions", Error);
  config.as<nn::OptConfig>().num_attention_heads = 5;
  check_refuses([&] { nn::make_model(config, 1); },
                {"config", "hidden_size", "24", "num_attention_heads", "5"});
}

TEST_CASE(
    "opt: recomputation gives the bits of plain training, dropout and layer losses included") {
  nn::ModelConfig config = opt_config(0.3);
  auto model = nn::make_model(config, 1);
  nn::ParameterStore store(*model);
  Tensor tokens = ids({2, 17}, 5, 37);
  Stepped plain = step(*model, store, tokens, false), again = step(*model, store, tokens, true);
  CHECK(same_bits(plain.hidden, again.hidden));
  CHECK(same_bits(plain.gradients, again.gradients));
  CHECK(plain.counter == again.counter);
  CHECK(plain.calls == 2);
  CHECK(again.calls == 4);  // each layer ran twice
  NoGrad off;
  CHECK_FALSE(same_bits(plain.hidden, model->hidden({.ids = tokens})));  // dropout did something
}

TEST_CASE("opt: the packed projection of a store is that of three separate ones") {
  nn::ModelConfig config = opt_config();
  auto model = nn::make_model(config, 1, Dtype::f64);
  NoGrad off;
  Tensor tokens = ids({2, 9}, 5, 37), separate = model->hidden({.ids = tokens});
  nn::ParameterStore store(*model);
  CHECK(close_to_scale(model->hidden({.ids = tokens}), separate, 1e-13));
}

TEST_CASE("opt: the embedding's gradient has both parts, of the input and of the tied head") {
  nn::ModelConfig config = opt_config();
  auto model = nn::make_model(config, 1, Dtype::f64);
  nn::ParameterStore store(*model);
  Tensor tokens = ids({1, 6}, 5, 37), dy = normal({1, 6, 37}, 8, Dtype::f64);
  nn::Parameter* table = nullptr;
  for (const auto& p : model->named_parameters()) {
    if (p.path == "model.decoder.embed_tokens.weight") table = p.parameter;
  }
  REQUIRE(table);
  auto loss = [&] {
    NoGrad off;
    return dot(model->logits(model->hidden({.ids = tokens})), dy).item();
  };
  store.zero_gradients();
  backward(model->logits(model->hidden({.ids = tokens})), dy);
  std::vector<double> g = grad(table->value).to_vector();
  int used = tokens.data<int32_t>()[2], unused = 0;
  std::vector<double> seen = tokens.to_vector();
  while (std::count(seen.begin(), seen.end(), double(unused))) ++unused;
  for (int row : {used, unused}) {
    for (int64_t c : {0, 5, 23}) {
      double& w = table->value.data<double>()[row * 24 + c];
      double middle = w, h = 1e-6;
      w = middle + h;
      double high = loss();
      w = middle - h;
      double low = loss();
      w = middle;
      CHECK(g[size_t(row * 24 + c)] == doctest::Approx((high - low) / (2 * h)).epsilon(1e-6));
    }
  }
}

TEST_CASE("opt: targets are the next tokens of each sequence") {
  Tensor tokens = Tensor::from(std::vector<int32_t>{4, 5, 6, 7, 8, 9, 10, 11}, {2, 4});
  Tensor lengths = Tensor::from(std::vector<int64_t>{4, 2}, {2});
  CHECK(nn::next_tokens(tokens, {}).to_vector() == std::vector<double>{5, 6, 7, -1, 9, 10, 11, -1});
  CHECK(nn::next_tokens(tokens, lengths).to_vector() ==
        std::vector<double>{5, 6, 7, -1, 9, -1, -1, -1});
  CHECK(nn::next_tokens(tokens, {}, 2).to_vector() ==
        std::vector<double>{-1, 6, 7, -1, -1, 10, 11, -1});
}

}  // namespace brine::test
