// Every family against transformers (tests/golden/models/make*.py): hidden states, attention maps
// of some, logits, loss and every gradient of a batch with padding on the left, on the right and
// inside.
#include <algorithm>
#include <cmath>
#include <map>

#include "autograd/ops.h"
#include "tests/nn/io/model_dirs.h"
#include "tests/paths.h"

namespace brine::test {
namespace {

constexpr double kTolerance = 2e-5;
const std::string kFolder = brine::test::source_dir() + "/tests/golden/models/";

struct ExpectedModel {
  data::Safetensors file;
  Tensor ids, mask;
  explicit ExpectedModel(const std::string& path)
      : file(data::Path(path)), ids(file.tensor("ids")), mask(file.tensor("mask")) {}
  Tensor operator()(const std::string& name) const { return file.tensor(name); }
  bool has(const std::string& name) const { return file.contains(name); }

  nn::ModelCall call() const {
    nn::ModelCall c{.ids = ids, .attention_mask = mask};
    if (has("types")) c.type_ids = (*this)("types");
    return c;
  }
};

// The valid rows [B, T, ...].
std::vector<double> valid(const Tensor& x, const Tensor& mask) {
  std::vector<double> out;
  for (int64_t b = 0; b < x.dim(0); ++b) {
    for (int64_t t = 0; t < x.dim(1); ++t) {
      if (!mask.data<uint8_t>()[b * x.dim(1) + t]) continue;
      for (double v : x.detach().select(0, b).select(0, t).to_vector()) out.push_back(v);
    }
  }
  return out;
}

void check_rows(const Tensor& x, const Tensor& want, const Tensor& mask, const std::string& what) {
  std::vector<double> y = valid(want, mask);
  REQUIRE(valid(x, mask).size() == y.size());
  CHECK(close(valid(x, mask), y, kTolerance * largest(y), 0, what));
}

// A packed map [B, H, T, T] against one whose rows and keys are at the positions of the mask.
void check_map(const Tensor& map, const Tensor& want, const nn::ModelCall& call,
               const std::string& what) {
  int64_t B = map.dim(0), H = map.dim(1), T = map.dim(2);
  std::vector<double> got, expected;
  const int32_t* position = call.positions.data<int32_t>();
  Tensor ours = map.detach().contiguous();
  for (int64_t b = 0; b < B; ++b) {
    int64_t L = call.lengths.data<int64_t>()[b];
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t i = 0; i < L; ++i) {
        for (int64_t j = 0; j < L; ++j) {
          int64_t row = (b * H + h) * T, q = position[b * T + i], k = position[b * T + j];
          got.push_back(ours.dtype() == Dtype::f64 ? ours.data<double>()[(row + i) * T + j]
                                                   : double(ours.data<float>()[(row + i) * T + j]));
          expected.push_back(double(want.data<float>()[(row + q) * T + k]));
        }
      }
    }
  }
  CHECK(close(got, expected, kTolerance, 0, what));
}

// Mean over the rows with a target >= 0.
Tensor mean_loss(const Tensor& logits, const Tensor& target) {
  int64_t rows = 0;
  for (double t : target.to_vector()) rows += t >= 0;
  Tensor weight = Tensor::full({target.numel()}, 1 / double(rows), logits.dtype());
  Tensor flat = reshape(logits, {target.numel(), logits.dim(-1)});
  return dot(cross_entropy(flat, target.view({-1})), weight);
}

// The layers one by one: what enters each, and its map. `last` is what transformers calls the last
// hidden state.
void check_layers(nn::Model& model, const ExpectedModel& expected, int64_t stride) {
  NoGrad off;
  nn::ModelCall call = nn::pack_rows(expected.call());
  Tensor x = model.embed(call);
  auto compare = [&](const Tensor& packed, int64_t i) {
    Tensor rows = nn::unpack_rows(packed, call).detach();
    if (stride > 1) {
      Shape shape{rows.dim(0), rows.dim(1), rows.dim(2) / stride};
      rows = rows.as_strided(shape, {rows.stride(0), rows.stride(1), stride}).contiguous();
    }
    std::string name = "hidden/" + std::to_string(i);
    check_rows(rows, expected(name), expected.mask, name);
  };
  for (int64_t i = 0; i < model.shape().layers; ++i) {
    compare(x, i);
    nn::Tap tap(model.attention_name());
    x = model.layer(i, x, call, &tap);
    std::string name = "attention/" + std::to_string(i);
    // Flash attention makes no map; the resulting rows are compared instead.
    CHECK(tap.has("probabilities") == (model.attention_name() == "dense"));
    if (tap.has("probabilities") && expected.has(name))
      check_map(tap.get("probabilities"), expected(name), call, name);
  }
  compare(model.finish(x), model.shape().layers);
}

// Loss, logits and gradients of the head that the file is about; returns the loss.
Tensor run_head(nn::Model& model, const ExpectedModel& expected) {
  if (model.labels()) {
    Tensor logits = model.class_logits(model.hidden(nn::pack_rows(expected.call())));
    std::vector<double> want = expected("logits").to_vector();
    CHECK(close(logits.to_vector(), want, kTolerance * largest(want), 0, "class logits"));
    return mean_loss(logits, expected("labels"));
  }
  if (model.shape().causal) {
    nn::ModelCall call = nn::pack_rows(expected.call());
    Tensor logits = model.logits(model.hidden(call));
    check_rows(nn::unpack_rows(logits, call), expected("logits"), expected.mask, "logits");
    return mean_loss(logits, nn::next_tokens(call.ids, call.lengths));
  }
  Tensor logits = model.logits(model.hidden(expected.call()));
  check_rows(logits, expected("logits"), expected.mask, "masked-LM logits");
  return mean_loss(logits, expected("labels"));
}

// Numbers in [-1, 1) from a 32-bit hash of index and seed, as make.py has them.
double hashed(uint32_t index, uint32_t seed) {
  uint32_t x = index * 2654435761u + seed * 97u;
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return double(x >> 8) / (1 << 23) - 1;
}

// wide_weight() of make.py for every parameter, numbered in the order of the names.
void fill_wide(nn::Model& model) {
  std::map<std::string, Tensor> named;
  for (const auto& p : model.named_parameters()) named[p.path] = p.parameter->value.detach();
  uint32_t seed = 0;
  for (const auto& [name, t] : named) {
    bool gain = name.find("norm.weight") != std::string::npos;
    double size = t.rank() == 1 ? 0.25 : 1.5 / std::sqrt(double(t.dim(1)));
    for (int64_t i = 0; i < t.numel(); ++i) {
      t.data<float>()[i] = float(hashed(uint32_t(i), seed) * size + (gain ? 1 : 0));
    }
    ++seed;
  }
}

// A gradient of millions of numbers: its beginning, sum, sum of sizes and a product with hashes.
void check_wide_gradient(const std::string& name, const Tensor& gradient,
                         const ExpectedModel& expected, double floor) {
  Tensor g = gradient.detach();
  std::vector<double> want = expected("gradient/" + name).to_vector();
  std::vector<double> first(g.data<float>(), g.data<float>() + want.size());
  std::vector<double> sums = expected("sums/" + name).to_vector();
  double sum = 0, size = 0, product = 0;
  for (int64_t i = 0; i < g.numel(); ++i) {
    double v = double(g.data<float>()[i]);
    sum += v;
    size += std::fabs(v);
    product += v * hashed(uint32_t(i), 1000);
  }
  // A mean size scales what rounding may do to a single number.
  double mean = sums[1] / double(g.numel());
  CHECK(close(first, want, kTolerance * (largest(want) + mean) + floor, 0, name));
  double allowed = kTolerance * sums[1] + floor * double(g.numel());
  CHECK(std::fabs(sum - sums[0]) <= allowed);
  CHECK(std::fabs(size - sums[1]) <= allowed);
  CHECK(std::fabs(product - sums[2]) <= allowed);
}

// Everything of one file under one attention method.
void check_model(const nn::LoadedModel& loaded, const nn::ModelConfig& config, Dtype type,
                 const ExpectedModel& expected) {
  auto model = nn::make_model(config, 1, type);
  nn::load_state(*model, nn::state_of(*loaded.model), loaded.directory);
  nn::ParameterStore store(*model);
  check_layers(*model, expected, 1);
  store.zero_gradients();
  Tensor loss = run_head(*model, expected);
  CHECK(loss.item() == doctest::Approx(expected("loss").item()).epsilon(kTolerance));
  backward(loss);
  double largest_gradient = 0;
  for (const auto& e : store.entries()) {
    if (!expected.has("gradient/" + e.path)) continue;
    largest_gradient =
        std::max(largest_gradient, largest(expected("gradient/" + e.path).to_vector()));
  }
  for (const auto& e : store.entries()) {
    CAPTURE(e.path);
    REQUIRE(expected.has("gradient/" + e.path));
    // Gradients of key biases are 0 except for rounding: softmax does not see them.
    std::vector<double> want = expected("gradient/" + e.path).to_vector();
    CHECK(close(grad(e.parameter->value).to_vector(), want,
                kTolerance * largest(want) + 1e-7 * largest_gradient, 0, e.path));
  }
}

}  // namespace

TEST_CASE("models golden: transformers' models, in both types, with and without maps") {
  for (const char* name : {"opt", "opt_350m", "opt_untied", "bert_classifier", "bert_masked_lm",
                           "llama", "llama_linear", "mistral", "qwen2", "qwen3", "gpt2"}) {
    CAPTURE(name);
    ExpectedModel expected(kFolder + name + "/expected.safetensors");
    nn::LoadedModel loaded = nn::load_model(kFolder + name);
    CHECK(loaded.config.attention == "flash");  // of a directory that does not mention attention
    for (const char* attention : {"flash", "dense"}) {
      CAPTURE(attention);
      loaded.config.attention = attention;
      for (Dtype type : {Dtype::f64, Dtype::f32}) {
        check_model(loaded, loaded.config, type, expected);
      }
    }
  }
}

TEST_CASE("models golden: a layer of OPT-1.3B's width") {
  ExpectedModel expected(kFolder + "wide.safetensors");
  nn::ModelConfig config = nn::make_config("opt", {{"vocab_size", 100},
                                                   {"hidden_size", 2048},
                                                   {"num_hidden_layers", 1},
                                                   {"num_attention_heads", 32},
                                                   {"ffn_dim", 8192},
                                                   {"max_position_embeddings", 24}});
  for (const char* attention : {"flash", "dense"}) {
    CAPTURE(attention);
    config.attention = attention;
    auto model = nn::make_model(config, nn::Init{.random = {}, .device = Device::meta});
    nn::ParameterStore store(*model);
    fill_wide(*model);
    check_layers(*model, expected, 32);
    store.zero_gradients();
    Tensor loss = run_head(*model, expected);
    CHECK(loss.item() == doctest::Approx(expected("loss").item()).epsilon(kTolerance));
    backward(loss);
    double embedding = largest(expected("gradient/model.decoder.embed_tokens.weight").to_vector());
    for (const auto& e : store.entries()) {
      CAPTURE(e.path);
      double floor = 1e-7 * embedding;
      // A key's bias has the gradient 0, since softmax does not see it: the rest is the rounding of
      // the sum over rows, of which a query's bias is one, too.
      if (e.path.ends_with("k_proj.bias")) {
        std::string query = e.path.substr(0, e.path.size() - 11) + "q_proj.bias";
        floor = kTolerance * largest(expected("gradient/" + query).to_vector());
      }
      check_wide_gradient(e.path, grad(e.parameter->value), expected, floor);
    }
  }
}

}  // namespace brine::test
