// The families of decoders: names of their tensors, norms before the rotation, frequencies,
// windows, keys of config.json, older files, initial values. Their numbers:
// tests/distill/models/models_golden_test.cpp.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "nn/io/extend.h"
#include "nn/models/decoder/decoder.h"
#include "nn/models/hf_config.h"
#include "nn/models/model_state.h"
#include "tests/nn/io/model_dirs.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

std::map<std::string, Shape> shapes_of(nn::Model& model) {
  std::map<std::string, Shape> out;
  for (const auto& t : nn::state_of(model)) out[t.name] = t.tensor.shape();
  return out;
}

// Names in Hugging Face's checkpoints, from words: "0." is the layer, "+" a bias beside the weight.
std::vector<std::string> names_from(const std::string& words, const std::string& layer) {
  std::vector<std::string> out;
  std::istringstream in(words);
  for (std::string word; in >> word;) {
    if (word.starts_with("0.")) word = layer + word;
    const bool both = word.back() == '+';
    if (both) out.push_back(word.substr(0, word.size() - 1) + ".bias");
    out.push_back(both ? word.substr(0, word.size() - 1) + ".weight" : word);
  }
  std::sort(out.begin(), out.end());
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

nn::Rope rope_of(const data::Json& json) {
  nn::Rope rope;
  rope.read(json, "c.json");
  return rope;
}

// Keeps what it is given.
struct Seen : nn::Attention {
  nn::AttentionTraits traits() const override { return {}; }
  Tensor forward(const nn::AttentionInput& in) override {
    input = in;
    return merge_heads(in.q);
  }
  nn::AttentionInput input;
};

}  // namespace

TEST_CASE("decoders: tensors bear exactly the names of Hugging Face's checkpoints") {
  const std::string llama =
      "model.embed_tokens.weight model.norm.weight 0.self_attn.q_proj.weight "
      "0.self_attn.k_proj.weight 0.self_attn.v_proj.weight 0.self_attn.o_proj.weight "
      "0.mlp.gate_proj.weight 0.mlp.up_proj.weight 0.mlp.down_proj.weight "
      "0.input_layernorm.weight 0.post_attention_layernorm.weight ";
  const std::string inputs =
      "0.self_attn.q_proj.bias 0.self_attn.k_proj.bias "
      "0.self_attn.v_proj.bias ";
  const std::string biases = inputs +
                             "0.self_attn.o_proj.bias 0.mlp.gate_proj.bias 0.mlp.up_proj.bias "
                             "0.mlp.down_proj.bias ";
  const std::string head = "lm_head.weight ";
  struct Case {
    const char* family;
    data::Json more;
    std::string names, layers = "model.layers.";
  };
  const data::Json none = data::Json::object();
  const std::vector<Case> cases = {
      {"llama", none, llama + head},
      {"llama", {{"tie_word_embeddings", true}}, llama},
      {"llama", {{"attention_bias", true}, {"mlp_bias", true}}, llama + head + biases},
      {"mistral", none, llama + head},
      {"qwen2", none, llama + head + inputs},
      {"qwen3", none, llama + head + "0.self_attn.q_norm.weight 0.self_attn.k_norm.weight"},
      {"gpt2", none,
       "transformer.wte.weight transformer.wpe.weight transformer.ln_f+ 0.ln_1+ 0.attn.c_attn+ "
       "0.attn.c_proj+ 0.ln_2+ 0.mlp.c_fc+ 0.mlp.c_proj+",
       "transformer.h."},
      {"opt", none,
       "model.decoder.embed_tokens.weight model.decoder.embed_positions.weight "
       "model.decoder.final_layer_norm+ 0.self_attn.q_proj+ 0.self_attn.k_proj+ "
       "0.self_attn.v_proj+ 0.self_attn.out_proj+ 0.self_attn_layer_norm+ 0.fc1+ 0.fc2+ "
       "0.final_layer_norm+",
       "model.decoder.layers."}};
  for (const Case& c : cases) {
    INFO(c.family << " " << c.more);
    const bool gpt2 = c.family == std::string("gpt2");
    data::Json sizes = {{gpt2 ? "n_layer" : "num_hidden_layers", 1},
                        {gpt2 ? "n_embd" : "hidden_size", 12},
                        {gpt2 ? "n_head" : "num_attention_heads", 2},
                        {gpt2 ? "n_positions" : "max_position_embeddings", 20}};
    sizes.update(c.more);
    const auto shapes = shapes_of(*nn::make_model(nn::make_config(c.family, sizes), 1));
    std::vector<std::string> names;
    for (const auto& [name, shape] : shapes) names.push_back(name);
    CHECK(names == names_from(c.names, c.layers));
    if (gpt2) {  // linear weights are [in, out]
      CHECK(shapes.at("transformer.h.0.attn.c_attn.weight") == Shape{12, 36});
      CHECK(shapes.at("transformer.h.0.mlp.c_fc.weight") == Shape{12, 48});
      CHECK(shapes.at("transformer.h.0.mlp.c_proj.weight") == Shape{48, 12});
      CHECK(shapes.at("transformer.wpe.weight") == Shape{20, 12});
    }
    if (c.family == std::string("opt"))  // two rows more than positions
      CHECK(shapes.at("model.decoder.embed_positions.weight") == Shape{22, 12});
  }
}

TEST_CASE("decoders: heads are normed before they turn, and methods are given both forms") {
  nn::Init init{.random = {.seed = 1}, .dtype = Dtype::f64, .linear_std = 0.5};
  nn::Linear q(init, 6, 8), k(init, 6, 4), v(init, 6, 4);
  nn::Norm q_norm(init, nn::NormKind::rms, 4, 1e-6), k_norm(init, nn::NormKind::rms, 4, 1e-6);
  for (nn::Norm* norm : {&q_norm, &k_norm}) {
    for (int64_t i = 0; i < 4; ++i) norm->weight.value.data<double>()[i] = 0.5 + double(i);
  }
  const nn::Positions positions{.frequencies = rotary_frequencies(4, 100)};
  Seen method;
  const nn::AttentionShape shape{.heads = 2, .head_size = 4, .kv_heads = 1, .rotary = true};
  const nn::Projections projections{.query = q, .key = k, .value = v};
  const Tensor x = normal({2, 5, 6}, 3, Dtype::f64);
  NoGrad off;
  nn::attend({.shape = shape,
              .projections = projections,
              .method = method,
              .positions = &positions,
              .query_norm = &q_norm,
              .key_norm = &k_norm},
             x, {.ids = ids({2, 5}, 1, 9)}, nullptr);
  const nn::AttentionInput& in = method.input;
  const Tensor plain_q = split_heads(q(x), 2), plain_k = split_heads(k(x), 1);
  CHECK(same_bits(in.q_content, q_norm(plain_q)));
  CHECK(same_bits(in.k_content, k_norm(plain_k)));
  CHECK(same_bits(in.q, rotary(q_norm(plain_q), positions.frequencies)));
  CHECK(same_bits(in.k, rotary(k_norm(plain_k), positions.frequencies)));
  CHECK(same_bits(in.v, split_heads(v(x), 1)));
  CHECK_FALSE(same_bits(in.q_content, plain_q));
}

TEST_CASE("decoders: frequencies are theta's powers, linear or Llama 3's scaling divides them") {
  const double theta = 500000, low = 1, high = 4, factor = 8, original = 8192;
  const Tensor plain = rope_of({{"rope_theta", theta}}).frequencies(64);
  const Tensor linear =
      rope_of({{"rope_theta", theta}, {"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}})
          .frequencies(64);
  const Tensor llama3 = rope_of({{"rope_parameters",
                                  {{"rope_type", "llama3"},
                                   {"rope_theta", theta},
                                   {"factor", factor},
                                   {"low_freq_factor", low},
                                   {"high_freq_factor", high},
                                   {"original_max_position_embeddings", original}}}})
                            .frequencies(64);
  int kept = 0, divided = 0, between = 0;
  for (int64_t i = 0; i < 32; ++i) {
    const double f = 1 / std::pow(theta, double(2 * i) / 64);
    CHECK(plain.data<double>()[i] == doctest::Approx(f).epsilon(1e-13));
    CHECK(linear.data<double>()[i] == doctest::Approx(f / 4).epsilon(1e-13));
    // Meta's three cases, by wavelength.
    const double wavelength = 2 * std::acos(-1.0) / f;
    double wanted = f;
    if (wavelength > original / low) {
      wanted = f / factor;
      ++divided;
    } else if (wavelength >= original / high) {
      const double smooth = (original / wavelength - low) / (high - low);
      wanted = (1 - smooth) * f / factor + smooth * f;
      ++between;
    } else {
      ++kept;
    }
    CHECK(llama3.data<double>()[i] == doctest::Approx(wanted).epsilon(1e-13));
  }
  CHECK(kept > 10);
  CHECK(divided > 5);
  CHECK(between > 1);
}

TEST_CASE("decoders: both spellings of the rotation, old and new, are read alike") {
  Scratch scratch;
  const auto without = [](data::Json& c) {
    const data::Json rope = c["rope_parameters"];
    c.erase("rope_parameters");
    c["rope_theta"] = rope["rope_theta"];
    return rope;
  };
  NoGrad off;
  auto hidden = [](const std::string& dir) {
    return nn::load_model(dir).model->hidden({.ids = ids({1, 20}, 3, 64)});
  };
  auto changed = [&](const std::function<void(data::Json&)>& config) {
    return copy_of(scratch, "llama", {.config = config});
  };
  const Tensor wanted = hidden(golden_dir("llama"));
  for (const char* type : {"type", "rope_type"}) {
    CHECK(same_bits(wanted, hidden(changed([&](data::Json& c) {
                      data::Json rope = without(c);
                      rope.erase("rope_theta");
                      rope.erase("rope_type");
                      rope[type] = "llama3";
                      c["rope_scaling"] = rope;
                    }))));
  }
  CHECK(same_bits(wanted, hidden(changed([&](data::Json& c) {
                    c["rope_parameters"].erase("original_max_position_embeddings");
                    c["original_max_position_embeddings"] = 32;
                  }))));
  CHECK_FALSE(same_bits(wanted, hidden(changed([&](data::Json& c) { without(c); }))));
}

TEST_CASE("decoders: of keys that say one thing twice those count that count in transformers") {
  const data::Json linear = {{"rope_type", "linear"}, {"factor", 4.0}};
  auto both = [&](const data::Json& scaling, const data::Json& parameters) {
    return data::Json{
        {"rope_theta", 5e5}, {"rope_scaling", scaling}, {"rope_parameters", parameters}};
  };
  // rope_scaling, with the outer theta.
  data::Json json = both(linear, {{"rope_type", "default"}, {"rope_theta", 1e4}});
  CHECK(rope_of(json).rope_type == nn::RopeType::linear);
  CHECK(rope_of(json).factor == 4);
  CHECK(rope_of(json).rope_theta == 5e5);
  REQUIRE(nn::contradictions(json).size() == 2);
  check_says(nn::contradictions(json)[0],
             {"rope_scaling", "linear", "rope_parameters", "default", "rope_scaling counts"});
  check_says(nn::contradictions(json)[1], {"rope_theta = 500000", "rope_parameters.rope_theta"});
  json.erase("rope_theta");
  CHECK(rope_of(json).rope_theta == 1e4);
  CHECK(nn::contradictions(json).size() == 1);
  // Null and empty are none.
  for (const data::Json& none : {data::Json(), data::Json::object()}) {
    json = both(none, {{"type", "linear"}, {"factor", 2.0}});
    CHECK(rope_of(json).factor == 2);
    CHECK(rope_of(json).rope_theta == 5e5);
    CHECK(nn::contradictions(json).empty());
  }
  // The inner theta.
  json = both(nullptr, {{"rope_type", "default"}, {"rope_theta", 1e4}});
  CHECK(rope_of(json).rope_theta == 1e4);
  REQUIRE(nn::contradictions(json).size() == 1);
  check_says(nn::contradictions(json)[0],
             {"rope_parameters.rope_theta", "10000", "rope_theta", "500000"});
  // rope_type before type, and both spellings of the same do not contradict.
  json = {{"rope_scaling", {{"rope_type", "linear"}, {"type", "dynamic"}, {"factor", 4.0}}}};
  CHECK(rope_of(json).rope_type == nn::RopeType::linear);
  CHECK(nn::contradictions(json).size() == 1);
  json = both({{"type", "linear"}, {"factor", 4}}, {{"factor", 4.0}, {"rope_type", "linear"}});
  CHECK(nn::contradictions(json).empty());
  // GPT-2's names of sizes, of which the general ones count.
  json = json_in(golden_dir("gpt2") + "/config.json");
  auto shape = [&] { return nn::from_hf_config(json, "c.json").shape(); };
  json["num_attention_heads"] = 2;
  json["n_head"] = 1;
  CHECK(shape().heads == 2);
  json.erase("n_head");
  CHECK(shape().heads == 2);
  const int64_t positions = shape().max_positions;
  json["max_position_embeddings"] = positions + 1;
  CHECK(shape().max_positions == positions + 1);
  REQUIRE(nn::contradictions(json).size() == 1);
  check_says(nn::contradictions(json)[0], {"max_position_embeddings", "n_positions", "counts"});
}

TEST_CASE("decoders: a contradiction of config.json is a remark on the loaded model") {
  Scratch scratch;
  const std::string dir = copy_of(scratch, "llama", {.config = [](data::Json& c) {
                                    c["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
                                  }});
  const nn::LoadedModel m = nn::load_model(dir);
  REQUIRE(m.remarks.size() == 2);
  check_says(m.remarks[0], {dir + "/config.json: ", "rope_scaling", "rope_parameters"});
  CHECK(nn::load_model(golden_dir("llama")).remarks.empty());
}

TEST_CASE("decoders: config.json of every golden model is written back with the same meaning") {
  for (const char* name : {"llama", "llama_linear", "mistral", "qwen2", "qwen3", "gpt2", "opt",
                           "opt_350m", "opt_untied"}) {
    INFO(name);
    nn::ModelConfig config = nn::load_config(golden_dir(name));
    const data::Json json = nn::to_hf_config(config);
    nn::ModelConfig back = nn::from_hf_config(json, "c.json");
    CHECK(nn::to_hf_config(back) == json);
    // Every setting of the file that Brine writes at all has kept its value.
    const data::Json file = json_in(golden_dir(name) + "/config.json");
    for (const auto& [key, value] : file.items()) {
      if (json.contains(key)) CHECK_MESSAGE(json[key] == value, key);
    }
    if (!file.contains("rope_parameters")) continue;
    CHECK(json["rope_theta"] == file["rope_parameters"]["rope_theta"]);
    if (file["rope_parameters"]["rope_type"] == "default") continue;
    for (const auto& [key, value] : json["rope_scaling"].items()) {
      CHECK(value == file["rope_parameters"][key]);
    }
  }
}

TEST_CASE("decoders: other rotations and settings are refused by name") {
  data::Json crossed = json_in(golden_dir("llama") + "/config.json")["rope_parameters"];
  crossed["low_freq_factor"] = 4;
  data::Json lacking = crossed;
  lacking.erase("low_freq_factor");
  struct Case {
    const char *golden, *key;
    data::Json value;
    std::vector<std::string> said;
  };
  std::vector<Case> cases = {
      {"qwen2", "rope_parameters", {{"rope_type", "linear"}}, {"rope_parameters", "no factor"}},
      {"qwen2",
       "rope_parameters",
       {{"rope_type", "linear"}, {"factor", -2}},
       {"rope_parameters", "factor", "-2", "above 0"}},
      {"qwen2",
       "rope_parameters",
       {{"rope_type", "default"}, {"mscale", 2}},
       {"rope_parameters", "mscale", "2", "not supported"}},
      {"qwen2", "rope_parameters", 3, {"rope_parameters", "3", "object"}},
      {"qwen2", "partial_rotary_factor", 0.5, {"partial_rotary_factor", "0.5", "not supported"}},
      {"llama", "rope_parameters", crossed, {"low_freq_factor", "4", "high_freq_factor", "4"}},
      {"llama", "rope_parameters", lacking, {"no low_freq_factor"}},
      {"qwen2", "hidden_act", "relu6", {"hidden_act", "relu6"}},
      {"qwen3", "num_key_value_heads", 3, {"num_key_value_heads", "3", "num_attention_heads", "4"}},
      {"llama", "head_dim", 7, {"head_dim", "7", "odd"}},
      {"opt", "enable_bias", false, {"enable_bias", "false", "true"}},
      {"opt", "rope_theta", 1e4, {"rope_theta", "not supported"}},
      {"opt", "num_attention_heads", 5, {"hidden_size", "num_attention_heads", "5"}},
      {"gpt2", "scale_attn_by_inverse_layer_idx", true, {"true", "false"}},
      {"gpt2", "add_cross_attention", true, {"add_cross_attention", "true", "false"}},
      {"gpt2", "n_head", 5, {"n_embd", "16", "n_head", "5"}}};
  for (const char* type : {"yarn", "dynamic", "longrope"}) {
    cases.push_back({"qwen2",
                     "rope_parameters",
                     {{"rope_type", type}, {"factor", 4.0}},
                     {"rope_parameters", type, "not supported", "default", "linear", "llama3"}});
  }
  for (const Case& c : cases) {
    data::Json json = json_in(golden_dir(c.golden) + "/config.json");
    json[c.key] = c.value;
    const std::string said = message([&] { nn::from_hf_config(json, "c.json"); });
    CHECK(contains(said, "c.json"));
    for (const std::string& word : c.said) CHECK_MESSAGE(contains(said, word), said);
  }
  auto with = [](const std::string& golden, const char* key, const data::Json& value) {
    data::Json json = json_in(golden_dir(golden) + "/config.json");
    json[key] = value;
    return message([&] { nn::from_hf_config(json, "c.json"); });
  };
  for (const char* decoder : {"llama", "mistral", "qwen2", "qwen3", "gpt2", "opt"}) {
    CAPTURE(decoder);  // keys that transformers reads for every family
    check_says(with(decoder, "is_causal", false), {"c.json", "is_causal = false", "only true"});
    check_says(with(decoder, "per_layer_config", {{"0", {{"head_dim", 4}}}}), {"per_layer_config"});
  }
  check_says(with("bert_classifier", "is_causal", true), {"c.json", "is_causal = true"});
  check_says(with("llama", "quantization", {{"bits", 4}}), {"quantization", "MLX", "GGUF"});
}

TEST_CASE("decoders: spellings that change nothing in transformers change nothing") {
  auto same = [](const std::string& golden, const char* usual_key, const data::Json& usual,
                 const char* key, const data::Json& value) {
    CAPTURE(golden);
    CAPTURE(value.dump());
    data::Json json = json_in(golden_dir(golden) + "/config.json"), other = json;
    json[usual_key] = usual;
    other[key] = value;
    nn::ModelConfig a = nn::from_hf_config(json, "c.json"), b = nn::from_hf_config(other, "c.json");
    CHECK(nn::sizes_to_json(a) == nn::sizes_to_json(b));
  };
  for (const auto& [family, key] : {std::pair("llama", "hidden_act"),
                                    {"qwen2", "hidden_act"},
                                    {"opt", "activation_function"},
                                    {"gpt2", "activation_function"},
                                    {"bert_classifier", "hidden_act"}}) {
    for (const char* name : {"gelu_fast", "gelu_pytorch_tanh", "gelu_accurate", "gelu_python_tanh"})
      same(family, key, "gelu_new", key, name);
    same(family, key, "gelu", key, "gelu_python");
    same(family, key, "silu", key, "swish");
    same(family, "is_causal", nullptr, "is_causal", family != std::string("bert_classifier"));
  }
  for (const data::Json& none : {data::Json(false), data::Json::object(), data::Json()})
    for (const char* family : {"llama", "opt"})
      same(family, "rope_scaling", nullptr, "rope_scaling", none);
  for (const char* family : {"qwen2", "mistral"}) {  // their code has no such switch
    for (const bool bias : {false, true}) same(family, "is_causal", true, "attention_bias", bias);
  }
  for (const char* family : {"qwen2", "mistral", "qwen3"})
    same(family, "is_causal", true, "mlp_bias", true);
  same("llama", "rope_theta", 10000.0, "rope_theta", 10000);
  same("llama", "num_hidden_layers", 1, "num_hidden_layers", 1.0);
  same("llama", "rms_norm_eps", 1.0, "rms_norm_eps", 1);
  check_says(message([] {
               data::Json json = json_in(golden_dir("llama") + "/config.json");
               json["num_hidden_layers"] = 1.5;
               nn::from_hf_config(json, "c.json");
             }),
             {"c.json", "num_hidden_layers", "an integer", "1.5"});
}

TEST_CASE(
    "decoders: a window that covers the sequence is full attention, a shorter one is refused") {
  nn::LoadedModel mistral = nn::load_model(golden_dir("mistral"));  // 24 of 32 positions
  CHECK(mistral.config.shape().max_positions == 24);
  CHECK(nn::to_hf_config(mistral.config)["max_position_embeddings"] == 32);
  NoGrad off;
  nn::Model& model = *mistral.model;
  CHECK(model.hidden({.ids = ids({1, 24}, 5, 64)}).dim(1) == 24);
  CHECK_REFUSES(model.hidden({.ids = ids({1, 25}, 5, 64)}), "mistral", "25 tokens",
                "sliding_window", "24", "not supported");
  const Tensor position = Tensor::from(std::vector<int64_t>{24}, {1});
  CHECK_REFUSES(model.embed({.ids = ids({1, 1}, 5, 64), .token_positions = position}), "mistral",
                "25 tokens", "sliding_window", "24");
  CHECK_REFUSES(nn::extend_positions(mistral, 40), "mistral", "40", "sliding_window", "24");
  data::Json json = json_in(golden_dir("mistral") + "/config.json");
  auto positions = [&] { return nn::from_hf_config(json, "c.json").shape().max_positions; };
  json["sliding_window"] = nullptr;
  CHECK(positions() == 32);
  json["sliding_window"] = 64;
  CHECK(positions() == 32);
  json.erase("sliding_window");  // 4096, as in transformers
  json["max_position_embeddings"] = 10000;
  CHECK(positions() == 4096);
  json["sliding_window"] = -3;
  CHECK_REFUSES(positions(), "c.json", "sliding_window", "-3");
}

TEST_CASE("decoders: Qwen's window counts if it is used, by layers that the model has") {
  data::Json json = json_in(golden_dir("qwen2") + "/config.json");
  json.erase("layer_types");
  json["sliding_window"] = 24;
  json["use_sliding_window"] = true;
  json["max_window_layers"] = 1;
  auto positions = [&] { return nn::from_hf_config(json, "c.json").shape().max_positions; };
  CHECK_REFUSES(positions(), "c.json", "use_sliding_window", "24", "max_position_embeddings", "32");
  json["max_window_layers"] = 2;
  CHECK(positions() == 32);
  json["layer_types"] = {"full_attention", "sliding_attention"};
  CHECK_REFUSES(positions(), "c.json", "use_sliding_window");
  json["use_sliding_window"] = false;
  CHECK(positions() == 32);
}

TEST_CASE("decoders: names of older files, of a model without its head, and of a tied head") {
  Scratch scratch;
  struct Case {
    std::string golden, prefix, tokens;
    Tensors buffers;
  };
  for (const Case& c :
       {Case{"llama",
             "model.",
             "model.embed_tokens.weight",
             {{"model.layers.0.self_attn.rotary_emb.inv_freq", Tensor::zeros({4})}}},
        Case{"gpt2",
             "transformer.",
             "transformer.wte.weight",
             {{"transformer.h.0.attn.bias", Tensor::full({1, 1, 32, 32}, 1)},
              {"transformer.h.1.attn.masked_bias", Tensor::full({1}, -1e4)}}},
        Case{"opt", "model.", "model.decoder.embed_tokens.weight", {}}}) {
    INFO(c.golden);
    const auto renamed = [&](const std::function<void(Tensors&)>& tensors) {
      return nn::load_model(copy_of(scratch, c.golden, {.tensors = tensors})).hash();
    };
    const std::string wanted = nn::load_model(golden_dir(c.golden)).hash();
    CHECK(wanted == renamed([&](Tensors& t) {
            t.insert(c.buffers.begin(), c.buffers.end());
            Tensors bare;
            for (const auto& [name, x] : t) bare[name.substr(c.prefix.size())] = x;
            t = bare;
          }));
    CHECK(wanted == renamed([&](Tensors& t) {
            t.insert(c.buffers.begin(), c.buffers.end());
            t["lm_head.weight"] = t[c.tokens];
          }));
  }
}

TEST_CASE("decoders: GPT-2's inner width follows from its width, its head may be untied") {
  data::Json json = json_in(golden_dir("gpt2") + "/config.json");
  json["n_inner"] = nullptr;
  json["tie_word_embeddings"] = false;
  nn::ModelConfig config = nn::from_hf_config(json, "c.json");
  CHECK(config.shape().inner_size == 64);
  CHECK(nn::to_hf_config(config)["n_inner"] == nullptr);
  CHECK(shapes_of(*nn::make_model(config, 1)).count("lm_head.weight") == 1);
}

TEST_CASE(
    "decoders: GPT-2's maps back to the residual stream begin smaller by their number's root") {
  auto model = nn::make_model(
      nn::make_config("gpt2", {{"n_embd", 64}, {"n_layer", 8}, {"initializer_range", 0.1}}), 1);
  CHECK(deviation(*model, "transformer.h.3.attn.c_attn.weight") ==
        doctest::Approx(0.1).epsilon(0.05));
  for (const char* name : {"attn", "mlp"}) {
    CHECK(deviation(*model, join("transformer.h.3.", name, ".c_proj.weight")) ==
          doctest::Approx(0.1 / 4).epsilon(0.05));
  }
}

TEST_CASE("decoders: targets are the next tokens of each sequence") {
  Tensor tokens = Tensor::from(std::vector<int32_t>{4, 5, 6, 7, 8, 9, 10, 11}, {2, 4});
  Tensor lengths = Tensor::from(std::vector<int64_t>{4, 2}, {2});
  CHECK(nn::next_tokens(tokens, {}).to_vector() == std::vector<double>{5, 6, 7, -1, 9, 10, 11, -1});
  CHECK(nn::next_tokens(tokens, lengths).to_vector() ==
        std::vector<double>{5, 6, 7, -1, 9, -1, -1, -1});
  CHECK(nn::next_tokens(tokens, {}, 2).to_vector() ==
        std::vector<double>{-1, 6, 7, -1, -1, 10, 11, -1});
}

}  // namespace brine::test
