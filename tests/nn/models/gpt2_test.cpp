// The GPT-2 decoder: names and shapes of its tensors, older files, initial values. Its numbers:
// tests/distill/models/models_golden_test.cpp.
#include "nn/models/gpt2/gpt2.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "nn/models/hf_config.h"
#include "tests/nn/io/model_dirs.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

std::map<std::string, Shape> shapes_of(nn::Model& model) {
  std::map<std::string, Shape> out;
  for (const auto& t : nn::state_of(model)) out[t.name] = t.tensor.shape();
  return out;
}

double deviation(nn::Model& model, const std::string& name) {
  for (const auto& t : nn::state_of(model)) {
    if (t.name != name) continue;
    double square = 0;
    for (double x : t.tensor.to_vector()) square += x * x;
    return std::sqrt(square / double(t.tensor.numel()));
  }
  return NAN;
}

}  // namespace

TEST_CASE("gpt2: tensors have Hugging Face's names and shapes, linear weights are [in, out]") {
  auto model = nn::make_model(
      nn::make_config(
          "gpt2",
          {{"vocab_size", 37}, {"n_positions", 20}, {"n_embd", 12}, {"n_layer", 1}, {"n_head", 3}}),
      1);
  const std::map<std::string, Shape> wanted = {{"transformer.wte.weight", {37, 12}},
                                               {"transformer.wpe.weight", {20, 12}},
                                               {"transformer.h.0.ln_1.weight", {12}},
                                               {"transformer.h.0.ln_1.bias", {12}},
                                               {"transformer.h.0.attn.c_attn.weight", {12, 36}},
                                               {"transformer.h.0.attn.c_attn.bias", {36}},
                                               {"transformer.h.0.attn.c_proj.weight", {12, 12}},
                                               {"transformer.h.0.attn.c_proj.bias", {12}},
                                               {"transformer.h.0.ln_2.weight", {12}},
                                               {"transformer.h.0.ln_2.bias", {12}},
                                               {"transformer.h.0.mlp.c_fc.weight", {12, 48}},
                                               {"transformer.h.0.mlp.c_fc.bias", {48}},
                                               {"transformer.h.0.mlp.c_proj.weight", {48, 12}},
                                               {"transformer.h.0.mlp.c_proj.bias", {12}},
                                               {"transformer.ln_f.weight", {12}},
                                               {"transformer.ln_f.bias", {12}}};
  CHECK(shapes_of(*model) == wanted);
}

TEST_CASE("gpt2: files without the prefix, with masks as buffers or with a copy of the head") {
  Scratch scratch;
  const std::string wanted = nn::load_model(golden_dir("gpt2")).hash();
  const auto renamed = [&](const std::function<void(Tensors&)>& tensors) {
    return nn::load_model(copy_of(scratch, "gpt2", {.tensors = tensors})).hash();
  };
  CHECK(wanted == renamed([](Tensors& t) {  // as in openai-community/gpt2
          Tensors bare;
          for (const auto& [name, x] : t) bare[name.substr(std::string("transformer.").size())] = x;
          for (const char* layer : {"h.0", "h.1"}) {
            bare[join(layer, ".attn.bias")] = Tensor::full({1, 1, 32, 32}, 1);
          }
          t = bare;
        }));
  CHECK(wanted == renamed([](Tensors& t) {
          t["transformer.h.1.attn.masked_bias"] = Tensor::full({1}, -1e4);
          t["lm_head.weight"] = t["transformer.wte.weight"];
        }));
}

TEST_CASE("gpt2: settings of config.json, known and refused") {
  data::Json json = json_in(golden_dir("gpt2") + "/config.json");
  const auto read = [&] { return nn::from_hf_config(json, "c.json"); };
  json["n_inner"] = nullptr;
  CHECK(read().shape().inner_size == 64);
  json["tie_word_embeddings"] = false;
  nn::ModelConfig untied = read();
  CHECK(shapes_of(*nn::make_model(untied, 1)).count("lm_head.weight") == 1);
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    data::Json other = json;
    other[key] = true;
    check_refuses([&] { nn::from_hf_config(other, "c.json"); }, {"c.json", key, "true", "false"});
  }
  json["n_head"] = 5;
  check_refuses(read, {"c.json", "n_embd", "16", "n_head", "5"});
}

TEST_CASE("gpt2: the general names of its sizes are read, and count before its own") {
  data::Json json = json_in(golden_dir("gpt2") + "/config.json");
  json["num_attention_heads"] = 2;
  json["n_head"] = 1;
  CHECK(nn::from_hf_config(json, "c.json").shape().heads == 2);
  json.erase("n_head");
  CHECK(nn::from_hf_config(json, "c.json").shape().heads == 2);
  const int64_t positions = nn::from_hf_config(json, "c.json").shape().max_positions;
  json["max_position_embeddings"] = positions + 1;
  CHECK(nn::from_hf_config(json, "c.json").shape().max_positions == positions + 1);
  REQUIRE(nn::contradictions(json).size() == 1);
  check_says(nn::contradictions(json)[0], {"max_position_embeddings", "n_positions", "counts"});
}

TEST_CASE("gpt2: maps back to the residual stream begin smaller by the root of their number") {
  auto model = nn::make_model(
      nn::make_config("gpt2", {{"n_embd", 64}, {"n_layer", 8}, {"initializer_range", 0.1}}), 1);
  CHECK(deviation(*model, "transformer.h.3.attn.c_attn.weight") ==
        doctest::Approx(0.1).epsilon(0.05));
  for (const char* name : {"attn", "mlp"}) {
    CHECK(deviation(*model, join("transformer.h.3.", name, ".c_proj.weight")) ==
          doctest::Approx(0.1 / 4).epsilon(0.05));
  }
}

}  // namespace brine::test
