// What every registered family of models keeps: sizes, config.json, names, gradients, files.
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "nn/io/model_io.h"
#include "nn/models/model_state.h"
#include "nn/optim/parameter_store.h"
#include "tests/gradcheck.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

namespace brine::test {
namespace {

constexpr int64_t kPositions = 20;

// A tiny model: whichever of these keys the family has.
nn::ModelConfig tiny(const std::string& family) {
  nn::ModelConfig config;
  config.model_type = family;
  data::Schema keys;
  config.family().describe(keys);
  const std::pair<const char*, const char*> sizes[] = {{"vocab_size", "37"},
                                                       {"hidden_size", "24"},
                                                       {"num_hidden_layers", "2"},
                                                       {"num_attention_heads", "4"},
                                                       {"num_key_value_heads", "2"},
                                                       {"head_dim", "8"},
                                                       {"ffn_dim", "40"},
                                                       {"intermediate_size", "40"},
                                                       {"max_position_embeddings", "20"},
                                                       {"init_std", "0.2"},
                                                       {"initializer_range", "0.2"},
                                                       {"n_embd", "24"},
                                                       {"n_layer", "2"},
                                                       {"n_head", "4"},
                                                       {"n_inner", "40"},
                                                       {"n_positions", "20"},
                                                       {"dropout", "0"},
                                                       {"hidden_dropout_prob", "0"}};
  for (const auto& [key, value] : sizes) {
    if (keys.find(key)) keys.set_text(key, {value});
  }
  if (!config.family().class_head_tensors().head.empty()) {
    config.family().set_class_head({.labels = 3, .names = {"no", "so", "yes"}, .task = "any"});
  }
  return config;
}

// The family's key for a size, under its usual name or GPT-2's.
std::string key_of(nn::ModelConfig& config, const std::string& usual) {
  static const std::map<std::string, std::string> gpt2 = {{"hidden_size", "n_embd"},
                                                          {"num_hidden_layers", "n_layer"},
                                                          {"num_attention_heads", "n_head"}};
  data::Schema keys;
  config.family().describe(keys);
  return keys.find(usual) ? usual : gpt2.at(usual);
}

template <class F>
void each_family(F f) {
  for (const auto& [name, factory] : nn::families()) {
    if (!factory()->is_whole()) continue;
    INFO(name);
    f(tiny(name));
  }
}

// The output of the model's head: [B, T, V] of a causal model, [B, labels] of a classifier.
Tensor answers(nn::Model& model, const nn::ModelCall& call) {
  const Tensor hidden = model.hidden(call);
  return model.labels() ? model.class_logits(hidden) : model.logits(hidden);
}

Tensor rows(const Tensor& x, int64_t from, int64_t n) { return x.slice(1, from, n).contiguous(); }

std::set<std::string> names_of(nn::Model& model) {
  std::set<std::string> out;
  for (const auto& t : nn::state_of(model)) CHECK(out.insert(t.name).second);
  return out;
}

}  // namespace

TEST_CASE("families: Brine's are registered, others are refused with the known names") {
  for (const char* name : {"opt", "bert", "gpt2", "llama", "mistral", "qwen2", "qwen3"}) {
    CHECK_MESSAGE(nn::families().count(name) == 1, name);
  }
  nn::ModelConfig config;
  config.model_type = "nonesuch";
  const std::string said = message([&] { config.shape(); });
  CHECK(contains(said, "config: model_type 'nonesuch' is unknown; known: "));
  for (const auto& [name, factory] : nn::families())
    CHECK(contains(said, " " + name) == factory()->is_whole());
}

TEST_CASE("families: a copy of a config has its own sizes, copy_sizes() keeps fields' addresses") {
  nn::ModelConfig a = nn::make_config("opt", {{"hidden_size", 48}}), b = a, c;
  data::Schema keys;
  c.describe_model(keys);
  keys.set("model.num_attention_heads", 4);
  b.family().set_positions(7);
  CHECK(a.shape().max_positions == 512);
  c.copy_sizes(b);
  CHECK(c.shape().max_positions == 7);
  CHECK(keys.to_json()["model"]["max_position_embeddings"] == 7);
  CHECK(keys.to_json()["model"]["hidden_size"] == 48);
  CHECK(contains(message([] { nn::make_config("opt", {{"hiden_size", 4}}); }), "\"hidden_size\""));
}

TEST_CASE("families: the shape has the sizes, and layers of a width that its heads divide") {
  each_family([](nn::ModelConfig config) {
    const nn::ModelShape shape = config.shape();
    CHECK(shape.vocab_size == 37);
    CHECK(shape.hidden_size == 24);
    CHECK(shape.layers == 2);
    CHECK(shape.heads == 4);
    CHECK(shape.inner_size == 40);
    CHECK(shape.max_positions == kPositions);
    auto model = nn::make_model(config, 1);
    CHECK(model->shape().hidden_size == 24);
    NoGrad off;
    const nn::ModelCall call{.ids = ids({2, 9}, 5, 37)};
    CHECK(model->embed(call).shape() == Shape{2, 9, 24});
    CHECK(model->hidden(call).shape() == Shape{2, 9, 24});
    const Shape wanted = model->labels() ? Shape{2, 3} : Shape{2, 9, 37};
    CHECK(answers(*model, call).shape() == wanted);
    CHECK(message([&] {
            model->hidden({.ids = ids({1, kPositions + 1}, 5, 37)});
          }) == config.model_type + ": 21 tokens, but the model has 20 positions");
    config.family().set_positions(kPositions + 1);
    CHECK(config.shape().max_positions == kPositions + 1);
    auto longer = nn::make_model(config, 1);
    CHECK(longer->hidden({.ids = ids({1, kPositions + 1}, 5, 37)}).dim(1) == kPositions + 1);
    data::Schema keys;
    config.family().describe(keys);
    keys.set_text(key_of(config, "num_attention_heads"), {"5"});
    CHECK_THROWS_AS(nn::make_model(config, 1), Error);
  });
}

TEST_CASE("families: config.json reads back to itself, without a word of another family") {
  each_family([](nn::ModelConfig config) {
    const data::Json json = nn::to_hf_config(config);
    CHECK(json["model_type"] == config.model_type);
    nn::ModelConfig back = nn::from_hf_config(json, "config.json");
    CHECK(back.model_type == config.model_type);
    CHECK(nn::to_hf_config(back) == json);
    CHECK(back.family().class_head().names == config.family().class_head().names);
    for (const std::string& size : {std::string("vocab_size"), key_of(config, "hidden_size"),
                                    key_of(config, "num_hidden_layers")}) {
      data::Json without = json;
      without.erase(size);
      CHECK_REFUSES(nn::from_hf_config(without, "c.json"), join("c.json: has no ", size));
    }
  });
}

TEST_CASE("families: tensors have unique names, which are their names in a file, none is tied") {
  each_family([](const nn::ModelConfig& config) {
    auto model = nn::make_model(config, 1);
    const std::set<std::string> names = names_of(*model);
    for (const std::string& name : names) CHECK(config.family().tensor_name(name) == name);
    for (const auto& [alias, target] : config.family().ties()) {
      CHECK(names.count(target) == 1);
      CHECK(names.count(alias) == 0);
    }
    nn::ModelConfig inferred = config;
    inferred.family().infer_from_tensors({names.begin(), names.end()});
    CHECK(names_of(*nn::make_model(inferred, 1)) == names);
  });
}

TEST_CASE("families: a student has its teacher's base and the blocks that its seed draws") {
  each_family([](const nn::ModelConfig& config) {
    const std::unique_ptr<nn::Model> teacher = nn::make_model(config, 9);
    nn::ModelConfig other = config;
    other.attention = "sea";
    const std::unique_ptr<nn::Model> student = nn::make_student(other, *teacher, 5);
    const std::unique_ptr<nn::Model> drawn = nn::make_model(other, 5);
    std::map<std::string, Tensor> wanted;
    for (const NamedTensor& t : nn::tensors_of(*teacher)) wanted.emplace(t.name, t.tensor);
    for (const NamedTensor& t : nn::tensors_of(*drawn))
      if (drawn->is_attention_tensor(t.name)) wanted.emplace(t.name, t.tensor);
    size_t blocks = 0;
    for (const NamedTensor& t : nn::tensors_of(*student)) {
      INFO(t.name);
      REQUIRE(wanted.count(t.name) == 1);
      CHECK(t.tensor.to_vector() == wanted.at(t.name).to_vector());
      blocks += student->is_attention_tensor(t.name);
    }
    CHECK(blocks > 0);
  });
}

TEST_CASE("families: a parameter store changes only the last digits of packed products") {
  each_family([](const nn::ModelConfig& config) {
    auto model = nn::make_model(config, 1, Dtype::f64);
    NoGrad off;
    const nn::ModelCall call{.ids = ids({2, 9}, 5, 37)};
    const Tensor separate = answers(*model, call);
    nn::ParameterStore store(*model);
    CHECK(close_to_scale(answers(*model, call), separate, 1e-12));
  });
}

TEST_CASE("families: the gradient of every parameter, by finite differences") {
  each_family([](const nn::ModelConfig& config) {
    auto model = nn::make_model(config, 1, Dtype::f64);
    nn::ParameterStore store(*model);
    const nn::ModelCall call{.ids = ids({2, 7}, 5, 37)};
    const Tensor dy = cotangent(answers(*model, call));
    auto loss = [&] {
      NoGrad off;
      return dot(answers(*model, call), dy).item();
    };
    store.zero_gradients();
    backward(answers(*model, call), dy);
    for (const auto& entry : store.entries()) {
      const Tensor g = store.gradients().slice(0, entry.offset, entry.size);
      double* values = store.values().data<double>() + entry.offset;
      // Every entry moves by a different share: one number reflects the whole gradient.
      const Tensor along = normal({entry.size}, 11, Dtype::f64);
      auto move = [&](double h) {
        for (int64_t i = 0; i < entry.size; ++i) values[i] += h * along.data<double>()[i];
      };
      const double h = 1e-6;
      move(h);
      const double high = loss();
      move(-2 * h);
      const double low = loss();
      move(h);
      const double slope = (high - low) / (2 * h), derivative = dot(g, along).item();
      INFO(entry.path);
      CHECK(std::abs(derivative - slope) <= 2e-6 * (1 + std::abs(slope)));
    }
  });
}

TEST_CASE(
    "families: recomputation gives the bits of plain training, dropout and layer losses included") {
  // Loss of a layer: the square of its output.
  struct Watcher : nn::LayerObserver {
    Tensor observe(int64_t layer, const nn::Tap& tap, const Tensor& output) override {
      CHECK(tap.has("q"));
      CHECK(tap.has("attention_output"));
      ++calls;
      return scale(dot(output, output), 0.01 * double(layer + 1));
    }
    int calls = 0;
  };
  each_family([](nn::ModelConfig config) {
    data::Schema keys;
    config.family().describe(keys);
    bool drops = false;
    for (const char* key : {"dropout", "hidden_dropout_prob", "resid_pdrop", "embd_pdrop"}) {
      if (keys.find(key)) keys.set(key, 0.3), drops = true;
    }
    auto model = nn::make_model(config, 1);
    nn::ParameterStore store(*model);
    const Tensor tokens = ids({2, 17}, 5, 37);
    auto step = [&](bool recompute, int layers_run) {
      store.zero_gradients();
      RandomStream random{.seed = 9, .stream = 2};
      Watcher watcher;
      const Tensor h = model->hidden(
          {.ids = tokens, .observer = &watcher, .random = &random, .recompute = recompute});
      const Tensor y = model->labels() ? model->class_logits(h, &random) : h;
      backward(y, cotangent(y));
      CHECK(watcher.calls == layers_run);
      return std::tuple(h.detach(), store.gradients().clone(), random.counter);
    };
    const auto [plain, g, counter] = step(false, 2);
    const auto [again, g2, counter2] = step(true, 4);
    CHECK(same_bits(plain, again));
    CHECK(same_bits(g, g2));
    CHECK(counter == counter2);
    NoGrad off;
    CHECK(same_bits(plain, model->hidden({.ids = tokens})) == !drops);
  });
}

TEST_CASE(
    "families: an encoder sees all tokens, a decoder no later one, none padding on the right") {
  each_family([](nn::ModelConfig config) {
    NoGrad off;
    const Tensor a = ids({1, 9}, 5, 37), b = a.clone();
    b.data<int32_t>()[8] = (b.data<int32_t>()[8] + 5) % 37;
    for (const char* attention : {"dense", "recent", "flash"}) {
      config.attention = attention;
      auto model = nn::make_model(config, 1);
      const Tensor x = model->hidden({.ids = a}), y = model->hidden({.ids = b});
      for (int64_t t = 0; t < 9; ++t) {
        CHECK(same_bits(rows(x, t, 1), rows(y, t, 1)) == (config.shape().causal && t < 8));
      }
    }
    auto model = nn::make_model(config, 1);
    const Tensor length = Tensor::from(std::vector<int64_t>{8}, {1});
    CHECK(same_bits(rows(model->hidden({.ids = a, .lengths = length}), 0, 8),
                    rows(model->hidden({.ids = b, .lengths = length}), 0, 8)));
  });
}

TEST_CASE("families: padding on the left and between tokens changes nothing, gradients included") {
  each_family([](const nn::ModelConfig& config) {
    auto model = nn::make_model(config, 1, Dtype::f64);
    nn::ParameterStore store(*model);
    const Tensor tokens = ids({2, 9}, 5, 37);
    // Where the tokens are among 13: 4 columns before them, and 2 before and 2 in the middle.
    const int64_t columns[2][9] = {{4, 5, 6, 7, 8, 9, 10, 11, 12}, {2, 3, 4, 5, 8, 9, 10, 11, 12}};
    Tensor padded = ids({2, 13}, 6, 37), mask = Tensor::zeros({2, 13}, Dtype::u8);
    // Positions of an encoder count padding, as Hugging Face's do.
    Tensor counted = Tensor::empty({2, 9}, Dtype::i32);
    Tensor dy = normal({2, 9, config.shape().hidden_size}, 7, Dtype::f64);
    Tensor wide = normal({2, 13, config.shape().hidden_size}, 8, Dtype::f64);
    const int64_t C = dy.dim(2);
    for (int64_t b : {0, 1}) {
      for (int64_t t = 0; t < 9; ++t) {
        const int64_t at = b * 13 + columns[b][t];
        padded.data<int32_t>()[at] = tokens.data<int32_t>()[b * 9 + t];
        mask.data<uint8_t>()[at] = 1;
        counted.data<int32_t>()[b * 9 + t] = int32_t(columns[b][t]);
        std::copy_n(dy.data<double>() + (b * 9 + t) * C, C, wide.data<double>() + at * C);
      }
    }
    auto pass = [&](const nn::ModelCall& call, const Tensor& cotangent) {
      store.zero_gradients();
      const Tensor y = model->hidden(call);
      backward(y, cotangent);
      return std::pair{y.detach(), store.gradients().clone()};
    };
    const auto [x, dx] = pass({.ids = tokens, .positions = counted}, dy);
    const auto [y, dpadded] = pass({.ids = padded, .attention_mask = mask}, wide);
    for (int64_t b : {0, 1}) {
      for (int64_t t = 0; t < 9; ++t) {
        CHECK(close_to_scale(rows(y.slice(0, b, 1), columns[b][t], 1), rows(x.slice(0, b, 1), t, 1),
                             1e-12));
      }
    }
    // A bias of keys changes no softmax: its gradient is rounding, so the scale is that of all.
    const double scale = largest(dx.to_vector());
    for (const auto& entry : store.entries()) {
      CHECK(close(dpadded.slice(0, entry.offset, entry.size), dx.slice(0, entry.offset, entry.size),
                  1e-12 * scale, 0, entry.path));
    }
  });
}

TEST_CASE("families: a sequence does not depend on the others of its batch") {
  each_family([](const nn::ModelConfig& config) {
    auto model = nn::make_model(config, 1);
    NoGrad off;
    const Tensor a = ids({3, 9}, 5, 37), b = ids({3, 9}, 6, 37);
    std::copy_n(a.data<int32_t>() + 9, 9, b.data<int32_t>() + 9);
    const Tensor lengths = Tensor::from(std::vector<int64_t>{9, 7, 9}, {3});
    const Tensor others = Tensor::from(std::vector<int64_t>{2, 7, 5}, {3});
    const Tensor x = model->hidden({.ids = a, .lengths = lengths});
    const Tensor y = model->hidden({.ids = b, .lengths = others});
    CHECK(same_bits(x.slice(0, 1, 1).contiguous(), y.slice(0, 1, 1).contiguous()));
    CHECK_FALSE(same_bits(x.slice(0, 0, 1).contiguous(), y.slice(0, 0, 1).contiguous()));
    const Tensor alone = model->hidden({.ids = a.slice(0, 1, 1).contiguous(),
                                        .lengths = Tensor::from(std::vector<int64_t>{7}, {1})});
    CHECK(close_to_scale(rows(alone, 0, 7), rows(x.slice(0, 1, 1), 0, 7), 1e-6));
  });
}

TEST_CASE("families: in parts a decoder gives what the whole sequence gives") {
  each_family([&](nn::ModelConfig config) {
    if (!config.shape().causal) return;
    config.attention = "flash";
    config.family().set_positions(75);
    const auto model = nn::make_model(config, 1);
    NoGrad off;
    const Tensor tokens = ids({2, 75}, 5, 37);
    CHECK(close_to_scale(nn::hidden_through_cache(*model, tokens, {.part = 32}, {}),
                         model->hidden({.ids = tokens}), 1e-5));
  });
}

TEST_CASE("families: token by token a decoder gives what the whole sequence gives") {
  int decoded = 0;
  each_family([&](nn::ModelConfig config) {
    for (const char* attention : {"flash", "dense", "recent"}) {
      INFO(attention);
      config.attention = attention;
      auto model = nn::make_model(config, 1, Dtype::f64);
      if (!model->attention_traits().incremental) {
        CHECK_FALSE(config.shape().causal);
        continue;
      }
      NoGrad off;
      const Tensor tokens = ids({2, 15}, 5, 37);
      const Tensor whole = model->logits(model->hidden({.ids = tokens}));
      nn::ModelState state(*model, {.batch = 2, .capacity = 15, .dtype = Dtype::f64});
      const int64_t prompts[] = {5, 9};
      auto check = [&](const Tensor& logits, int64_t b, int64_t t) {
        CHECK(close_to_scale(logits.view({37}), whole.select(0, b).select(0, t), 1e-12));
      };
      for (int64_t b : {0, 1}) {
        const Tensor prompt = tokens.select(0, b).slice(0, 0, prompts[b]).contiguous();
        check(model->logits(nn::prefill(*model, state, b, prompt)), b, prompts[b] - 1);
      }
      for (int64_t n = 0; n < 6; ++n) {
        Tensor next = Tensor::empty({2}, Dtype::i32);
        for (int64_t b : {0, 1}) {
          next.data<int32_t>()[b] = tokens.data<int32_t>()[b * 15 + prompts[b] + n];
        }
        const Tensor logits = model->logits(nn::step(*model, state, next));
        for (int64_t b : {0, 1}) check(logits.slice(0, b, 1).contiguous(), b, prompts[b] + n);
      }
      ++decoded;
    }
  });
  CHECK(decoded >= 21);  // seven decoders, that of parts_test.cpp among them
}

TEST_CASE("families: a model that was written is read bit for bit, its answers too") {
  each_family([](nn::ModelConfig config) {
    Scratch scratch;
    auto model = nn::make_model(config, 1);
    const std::string dir = (scratch / "model").string();
    nn::export_model(config, *model, nullptr, dir);
    const nn::LoadedModel back = nn::load_model(dir);
    CHECK(back.config.model_type == config.model_type);
    const auto before = nn::state_of(*model), after = nn::state_of(*back.model);
    REQUIRE(before.size() == after.size());
    for (size_t i = 0; i < before.size(); ++i) {
      CHECK(before[i].name == after[i].name);
      CHECK(same_bits(before[i].tensor, after[i].tensor));
    }
    nn::ParameterStore store(*model);
    NoGrad off;
    const nn::ModelCall call{.ids = ids({2, 9}, 5, 37)};
    CHECK(same_bits(answers(*model, call), answers(*back.model, call)));
  });
}

}  // namespace brine::test
