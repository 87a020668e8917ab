// The parts of layers, and a family of this file alone: it trains, is saved, loaded and extended,
// without a word of it anywhere else.
#include <nlohmann/json.hpp>

#include "nn/io/extend.h"
#include "nn/io/model_io.h"
#include "nn/models/decoder/decoder.h"
#include "nn/models/model_state.h"
#include "nn/models/register_family.h"
#include "nn/optim/optimizer.h"
#include "tests/gradcheck.h"
#include "tests/messages.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

namespace brine::test {
namespace {

// Groups of heads with learned positions, LayerNorm and a gate, which no other family has together.
const nn::DecoderKind kParts{.name = "parts",
                             .architecture = "PartsModel",
                             .names = {.positions = "embed_positions"},
                             .norm = nn::NormKind::layer,
                             .has_mlp_bias = true,
                             .describe_activation = [](data::Schema& s, Activation& a) {
                               s.choice("hidden_act", a, nn::kActivations, "Activation");
                             }};
const nn::RegisterFamily<nn::DecoderConfig, nn::Decoder> registration(
    "parts", {.kind = &kParts, .inner_size = 40, .kv_heads = 2, .tied = true});

nn::ModelConfig config_of(const std::string& family, int64_t kv_heads = 2, bool biases = false) {
  data::Json sizes = {{"vocab_size", 37},         {"hidden_size", 24},
                      {"intermediate_size", 40},  {"num_hidden_layers", 2},
                      {"num_attention_heads", 4}, {"max_position_embeddings", 48},
                      {"initializer_range", 0.2}};
  if (family != "parts") sizes["num_key_value_heads"] = kv_heads;
  if (family != "parts") sizes["head_dim"] = 8;  // not hidden_size / num_attention_heads
  if (biases) sizes["attention_bias"] = sizes["mlp_bias"] = true;
  return nn::make_config(family, sizes);
}

double train(nn::Model& model, nn::ParameterStore& store, int steps) {
  nn::Adamw adamw(store, {.learning_rate = 1e-2, .attention_learning_rate = 1e-2});
  const Tensor tokens = ids({2, 16}, 5, 37);
  double loss = 0;
  for (int i = 0; i < steps; ++i) {
    store.zero_gradients();
    const Tensor logits = model.logits(model.hidden({.ids = tokens}));
    Tensor mean =
        scale(sum(cross_entropy(reshape(logits, {32, 37}), nn::next_tokens(tokens, {}).view({32}))),
              1.0 / 30);
    loss = mean.item();
    backward(mean, Tensor::full({1}, 1));
    adamw.step(1, adamw.gradient_norm());
  }
  return loss;
}

}  // namespace

TEST_CASE("parts: a family of one file trains, is saved, loaded, extended") {
  for (const char* family : {"parts", "llama"}) {
    INFO(family);
    nn::ModelConfig config = config_of(family);
    auto model = nn::make_model(config, 1);
    nn::ParameterStore store(*model);
    const double before = train(*model, store, 1), after = train(*model, store, 40);
    CHECK(after < before / 4);
    Scratch scratch;
    nn::export_model(config, *model, nullptr, (scratch / "model").string());
    nn::LoadedModel back = nn::load_model((scratch / "model").string());
    CHECK(back.config.model_type == family);
    NoGrad off;
    const nn::ModelCall call{.ids = ids({2, 11}, 7, 37)};
    const Tensor expected = model->hidden(call);
    CHECK(same_bits(back.model->hidden(call), expected));
    nn::LoadedModel longer = nn::extend_positions(back, 60);
    CHECK(longer.model->hidden({.ids = ids({1, 60}, 7, 37)}).dim(1) == 60);
    CHECK(same_bits(longer.model->hidden(call), expected) == config.shape().rotary);
  }
}

TEST_CASE("parts: groups of heads keep fewer keys; a number that does not divide is refused") {
  auto bytes = [](int64_t kv_heads) {
    auto model = nn::make_model(config_of("llama", kv_heads), 1);
    return nn::ModelState(*model, {.batch = 1, .capacity = 48}).bytes();
  };
  CHECK(bytes(1) < bytes(4) / 3);
  nn::ModelConfig student = config_of("llama");
  student.attention = "sea";
  CHECK_NOTHROW(nn::make_model(student, 1));
  CHECK_REFUSES(nn::make_model(config_of("llama", 3), 1), "config", "num_key_value_heads", "3",
                "num_attention_heads", "4");
  nn::Init init{.random = {.seed = 1}};
  CHECK(message([&] {
          nn::attention_method("flash")->make(init, {.heads = 4, .head_size = 8, .kv_heads = 3});
        }) == "flash: kv_heads 3 do not divide 4 heads");
}

TEST_CASE("parts: who looks into a layer sees the keys and values of every head") {
  auto model = nn::make_model(config_of("llama"), 1);
  NoGrad off;
  nn::Tap tap("flash");
  const nn::ModelCall call{.ids = ids({2, 11}, 5, 37)};
  model->layer(0, model->embed(call), call, &tap);
  for (const char* name : {"k", "v"}) {
    const Tensor& x = tap.get(name);
    REQUIRE(x.shape() == Shape{2, 4, 11, 8});
    for (int64_t group : {0, 2}) {
      CHECK(same_bits(x.select(1, group).contiguous(), x.select(1, group + 1).contiguous()));
    }
    CHECK_FALSE(same_bits(x.select(1, 0).contiguous(), x.select(1, 2).contiguous()));
  }
}

TEST_CASE("parts: packed projections without biases are the separate ones, with groups or not") {
  for (int64_t kv_heads : {1, 2, 4}) {
    for (bool biases : {false, true}) {
      auto model = nn::make_model(config_of("llama", kv_heads, biases), 1, Dtype::f64);
      NoGrad off;
      const nn::ModelCall call{.ids = ids({2, 9}, 5, 37)};
      const Tensor separate = model->hidden(call);
      nn::ParameterStore store(*model);
      int64_t empty = 0;
      for (nn::Packed* pack : model->packed()) {
        CHECK(pack->value.defined() == !pack->members.empty());
        empty += pack->members.empty();
      }
      CHECK(empty == (biases ? 0 : 2));
      CHECK(close_to_scale(model->hidden(call), separate, 1e-12));
    }
  }
}

TEST_CASE("parts: biases are packed all or none") {
  struct Mixed : nn::Module {
    explicit Mixed(nn::Init& init)
        : a(child<nn::Linear>("a", init, 2, 3)), b(child<nn::Linear>("b", init, 2, 3, false)) {
      pack({a.bias, b.bias});
    }
    nn::Linear &a, &b;
  };
  nn::Init init{.random = {.seed = 1}};
  CHECK_REFUSES(Mixed{init}, "pack", "1 of 2 parameters", "all or none");
}

TEST_CASE("parts: projections with packed weights do not lose biases that are not packed") {
  struct Attends : nn::Module {
    explicit Attends(nn::Init& init)
        : q(child<nn::Linear>("q", init, 4, 4)),
          k(child<nn::Linear>("k", init, 4, 4)),
          v(child<nn::Linear>("v", init, 4, 4)),
          weight(pack({&q.weight, &k.weight, &v.weight})) {}
    nn::Linear &q, &k, &v;
    nn::Packed& weight;
  };
  nn::Init init{.random = {.seed = 1}};
  Attends layer(init);
  nn::ParameterStore store(layer);
  const nn::Projections projections{
      .query = layer.q, .key = layer.k, .value = layer.v, .weight = &layer.weight};
  CHECK_REFUSES(projections(normal({1, 3, 4}, 2), 2, 2), "projections", "weights are packed",
                "biases are not");
}

TEST_CASE("parts: RMSNorm divides by the root of the mean square, LayerNorm centres first") {
  nn::Init init{.random = {.seed = 1}, .dtype = Dtype::f64};
  nn::Norm rms(init, nn::NormKind::rms, 3, 0), layer(init, nn::NormKind::layer, 3, 0);
  CHECK(rms.named_parameters().size() == 1);
  CHECK(layer.named_parameters().size() == 2);
  const Tensor x = Tensor::from(std::vector<double>{1, 5, 7}, {1, 3});
  const double root = std::sqrt((1 + 25 + 49) / 3.0);
  CHECK(close(rms(x).to_vector(), {1 / root, 5 / root, 7 / root}, 1e-12, 0));
  const Tensor centred = layer(x), shifted = Tensor::from(std::vector<double>{2, 6, 8}, {1, 3});
  CHECK(close(layer(shifted), centred, 1e-12, 0));
  CHECK(std::abs(rms(shifted).to_vector()[0] - rms(x).to_vector()[0]) > 0.1);
}

TEST_CASE("parts: a feed-forward part is plain, or multiplied by its gate") {
  nn::Init init{.random = {.seed = 1}, .dtype = Dtype::f64, .linear_std = 0.5};
  nn::Linear up(init, 5, 7), down(init, 7, 5, false), gate(init, 5, 7);
  const Tensor x = normal({3, 5}, 2, Dtype::f64);
  const nn::FeedForward plain{.up = up, .down = down, .activation = Activation::relu};
  const nn::FeedForward gated{
      .up = up, .down = down, .activation = Activation::silu, .gate = &gate};
  CHECK(same_bits(plain(x), down(relu(up(x)))));
  CHECK(same_bits(gated(x), down(mul(silu(gate(x)), up(x)))));
}

TEST_CASE("parts: position ids go on from a sequence's first position") {
  const Tensor first = Tensor::from(std::vector<int64_t>{0, 5}, {2});
  CHECK(nn::position_ids(2, 3, first, 2).to_vector() == std::vector<double>{2, 3, 4, 7, 8, 9});
  CHECK(nn::position_ids(1, 2, {}).to_vector() == std::vector<double>{0, 1});
}

}  // namespace brine::test
