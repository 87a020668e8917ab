// OPT and BERT against transformers (tests/golden/models/make.py): hidden states, attention maps,
// logits, loss and every gradient of a batch with padding on the left, on the right and inside.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "autograd/ops.h"
#include "data/safetensors.h"
#include "nn/model_config.h"
#include "nn/parameter_store.h"
#include "tests/gradcheck.h"

namespace brine::test {
namespace {

constexpr double kTolerance = 2e-5;
const std::string kFolder = BRINE_SOURCE_DIR "/tests/golden/models/";

struct Expected {
  data::Safetensors file;
  Tensor ids, mask;
  explicit Expected(const std::string& path)
      : file(data::Path(path)), ids(file.tensor("ids")), mask(file.tensor("mask")) {}
  Tensor operator()(const std::string& name) const { return file.tensor(name); }
  bool has(const std::string& name) const { return file.contains(name); }

  nn::ModelCall call() const {
    nn::ModelCall c{.ids = ids, .attention_mask = mask};
    if (has("types")) c.type_ids = (*this)("types");
    return c;
  }
};

// The rows [B, T, ...] that are no padding.
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

// A packed map [B, H, T, T] against one whose rows and keys lie where the mask has them.
void check_map(const Tensor& map, const Tensor& want, const nn::ModelCall& call,
               const std::string& what) {
  int64_t B = map.dim(0), H = map.dim(1), T = map.dim(2);
  std::vector<double> got, expected;
  const int32_t* place = call.places.data<int32_t>();
  Tensor ours = map.detach().contiguous();
  for (int64_t b = 0; b < B; ++b) {
    int64_t L = call.lengths.data<int64_t>()[b];
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t i = 0; i < L; ++i) {
        for (int64_t j = 0; j < L; ++j) {
          int64_t row = (b * H + h) * T, q = place[b * T + i], k = place[b * T + j];
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
void check_layers(nn::Model& model, const Expected& expected, int64_t stride) {
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
    check_map(tap.get("probabilities"), expected(name), call, name);
  }
  compare(model.finish(x), model.shape().layers);
}

// Loss, logits and gradients of the head that the file is about; returns the loss.
Tensor run_head(nn::Model& model, const Expected& expected) {
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

struct Loaded {
  nn::ModelConfig config;
  std::vector<nn::NamedTensor> tensors;
};

Loaded read(const std::string& name) {
  Loaded out;
  out.config = nn::from_hf_config(nn::Json::parse(data::read_file(kFolder + name + "/config.json")),
                                  name + "/config.json");
  for (const auto& f : std::filesystem::directory_iterator(kFolder + name)) {
    std::string file = f.path().filename().string();
    if (file.rfind("model", 0) != 0 || f.path().extension() != ".safetensors") continue;
    data::Safetensors in(f.path());
    for (const auto& e : in.entries()) out.tensors.push_back({e.name, in.tensor(e.name)});
  }
  return out;
}

}  // namespace

TEST_CASE("models golden: transformers' OPT and BERT, in both types") {
  for (const char* name : {"opt", "opt_350m", "opt_untied", "bert_classifier", "bert_masked_lm"}) {
    CAPTURE(name);
    Expected expected(kFolder + name + "/expected.safetensors");
    Loaded loaded = read(name);
    for (Dtype type : {Dtype::f64, Dtype::f32}) {
      auto model = nn::make_model(loaded.config, 1, type);
      nn::load_state(*model, loaded.tensors, name);
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
        // Gradients of key biases are 0 but for rounding: softmax does not see them.
        std::vector<double> want = expected("gradient/" + e.path).to_vector();
        CHECK(close(grad(e.parameter->value).to_vector(), want,
                    kTolerance * largest(want) + 1e-7 * largest_gradient, 0, e.path));
      }
    }
  }
}

}  // namespace brine::test
