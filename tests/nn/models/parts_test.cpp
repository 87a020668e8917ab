// The parts of layers, and a family of this file alone that is put together from them: it trains,
// is saved, loaded and extended, without a word of it anywhere else.
#include <nlohmann/json.hpp>

#include "nn/io/extend.h"
#include "nn/io/model_io.h"
#include "nn/layers/feed_forward.h"
#include "nn/layers/norm.h"
#include "nn/models/hf_config.h"
#include "nn/models/model_state.h"
#include "nn/models/register_family.h"
#include "nn/optim/optimizer.h"
#include "tests/gradcheck.h"
#include "tests/messages.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

namespace brine::test {
namespace {

// ---- the family: a pre-norm decoder, every part of which is chosen by its config
struct PartsConfig {
  int64_t vocab_size = 37;
  int64_t hidden_size = 24;
  int64_t num_hidden_layers = 2;
  int64_t num_attention_heads = 4;
  int64_t num_key_value_heads = 2;
  int64_t head_dim = 8;  // not hidden_size / num_attention_heads
  int64_t intermediate_size = 40;
  int64_t max_position_embeddings = 48;
  double initializer_range = 0.2;
  double rope_theta = 100;
  std::string norm = "rms", positions = "rotary";
  Activation hidden_act = Activation::silu;
  bool gated = true, biases = false;

  void describe(data::Schema& s) {
    for (auto [name, member] : {std::pair{"vocab_size", &vocab_size},
                                {"hidden_size", &hidden_size},
                                {"num_hidden_layers", &num_hidden_layers},
                                {"num_attention_heads", &num_attention_heads},
                                {"num_key_value_heads", &num_key_value_heads},
                                {"head_dim", &head_dim},
                                {"intermediate_size", &intermediate_size},
                                {"max_position_embeddings", &max_position_embeddings}}) {
      s.field(name, *member, "A size", {.min = 1});
    }
    s.field("initializer_range", initializer_range, "Deviation of initial weights", {.min = 0});
    s.field("rope_theta", rope_theta, "Base of the angles", {.above = 0});
    s.choice("norm", norm, {"layer", "rms"}, "Norm");
    s.choice("positions", positions, {"none", "learned", "rotary"}, "Positions");
    s.choice("hidden_act", hidden_act, nn::kActivations, "Activation");
    s.field("gated", gated, "Gated MLP");
    s.field("biases", biases, "Biases");
  }
  void validate() const {
    check(num_attention_heads % num_key_value_heads == 0, "config: num_key_value_heads ",
          num_key_value_heads, " do not divide num_attention_heads ", num_attention_heads);
  }
  nn::ModelShape shape() const {
    return {.vocab_size = vocab_size,
            .hidden_size = hidden_size,
            .layers = num_hidden_layers,
            .heads = num_attention_heads,
            .inner_size = intermediate_size,
            .max_positions = max_position_embeddings,
            .kv_heads = num_key_value_heads,
            .head_width = head_dim};
  }
  data::Json to_json() const {
    PartsConfig copy = *this;
    data::Json json = data::schema_of(copy).to_json();
    json["model_type"] = "parts";
    return json;
  }
  void read(const data::Json& json, const std::string& source) {
    nn::want_plain(json, source);
    data::Schema sizes = data::schema_of(*this);
    nn::read_fields(sizes, json, source, {"vocab_size", "hidden_size", "num_hidden_layers"});
    nn::naming(source, [this] { validate(); });
  }
  void set_positions(int64_t n) { max_position_embeddings = n; }
};

struct PartsLayer : nn::Module {
  PartsLayer(nn::Init& init, const PartsConfig& c, const nn::AttentionMethod& attention,
             const nn::Positions& positions)
      : shape(c.shape().attention()),
        norm_1(child<nn::Norm>("input_layernorm", init, kind(c), c.hidden_size, 1e-6)),
        attn(child<nn::Branch>("self_attn")),
        q(attn.add<nn::Linear>("q_proj", init, c.hidden_size, width(shape.heads), c.biases)),
        k(attn.add<nn::Linear>("k_proj", init, c.hidden_size, width(shape.kv_heads), c.biases)),
        v(attn.add<nn::Linear>("v_proj", init, c.hidden_size, width(shape.kv_heads), c.biases)),
        o(attn.add<nn::Linear>("o_proj", init, width(shape.heads), c.hidden_size, c.biases)),
        weight(pack({&q.weight, &k.weight, &v.weight})),
        bias(pack({q.bias, k.bias, v.bias})),
        method(adopt("self_attn." + attention.name(), attention.make(init, shape))),
        norm_2(child<nn::Norm>("post_attention_layernorm", init, kind(c), c.hidden_size, 1e-6)),
        mlp(child<nn::Branch>("mlp")),
        up(mlp.add<nn::Linear>("up_proj", init, c.hidden_size, c.intermediate_size, c.biases)),
        down(mlp.add<nn::Linear>("down_proj", init, c.intermediate_size, c.hidden_size, c.biases)),
        feed_forward{.up = up, .down = down, .activation = c.hidden_act},
        positions(positions) {
    if (c.gated) {
      feed_forward.gate =
          &mlp.add<nn::Linear>("gate_proj", init, c.hidden_size, c.intermediate_size, c.biases);
    }
  }

  Tensor operator()(const Tensor& x, const nn::ModelCall& call, nn::Tap* tap) {
    const nn::Projections projections{
        .query = q, .key = k, .value = v, .weight = &weight, .bias = &bias};
    Tensor context = nn::attend(
        {.shape = shape, .projections = projections, .method = method, .positions = &positions},
        norm_1(x), call, tap);
    Tensor h = add(x, o(context));
    return add(h, feed_forward(norm_2(h)));
  }

  static nn::NormKind kind(const PartsConfig& c) {
    return c.norm == "rms" ? nn::NormKind::rms : nn::NormKind::layer;
  }
  int64_t width(int64_t heads) const { return heads * shape.head_size; }

  nn::AttentionShape shape;
  nn::Norm& norm_1;
  nn::Branch& attn;
  nn::Linear &q, &k, &v, &o;
  nn::Packed &weight, &bias;
  nn::Attention& method;
  nn::Norm& norm_2;
  nn::Branch& mlp;
  nn::Linear &up, &down;
  nn::FeedForward feed_forward;
  const nn::Positions& positions;
};

class PartsModel : public nn::Model {
 public:
  PartsModel(nn::Init& init, const PartsConfig& c, const nn::AttentionMethod& attention)
      : Model(c.shape(), attention.name()) {
    init.linear_std = c.initializer_range;
    nn::Branch& model = child<nn::Branch>("model");
    tokens_ = &model.add<nn::Embedding>("embed_tokens", init, c.vocab_size, c.hidden_size, 1.0);
    if (c.positions == "rotary") positions_ = nn::Positions::rotary(c.head_dim, c.rope_theta);
    if (c.positions == "learned") {
      positions_ = nn::Positions::learned(model.add<nn::Embedding>(
          "embed_positions", init, c.max_position_embeddings, c.hidden_size, 1.0));
    }
    nn::Branch& layers = model.add<nn::Branch>("layers");
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
      layers_.push_back(&layers.add<PartsLayer>(std::to_string(i), init, c, attention, positions_));
    }
    norm_ = &model.add<nn::Norm>("norm", init, PartsLayer::kind(c), c.hidden_size, 1e-6);
  }

  Tensor embed(const nn::ModelCall& call) override {
    check_ids(call, "parts");
    return positions_.added((*tokens_)(call.ids), call.token_places);
  }
  Tensor layer(int64_t i, const Tensor& x, const nn::ModelCall& call, nn::Tap* tap) override {
    return (*layers_.at(size_t(i)))(x, call, tap);
  }
  Tensor finish(const Tensor& x) override { return (*norm_)(x); }
  Tensor logits(const Tensor& hidden) const override {
    return linear(hidden, tokens_->weight, Tensor());
  }
  nn::Attention& attention(int64_t i) const override { return layers_.at(size_t(i))->method; }
  std::string attention_prefix(int64_t i) const override {
    return join("model.layers.", i, ".self_attn.", attention_name(), ".");
  }

 private:
  nn::Embedding* tokens_;
  nn::Positions positions_;
  nn::Norm* norm_;
  std::vector<PartsLayer*> layers_;
};

const nn::RegisterFamily<PartsConfig, PartsModel> registration("parts");

// ---- its tests
nn::ModelConfig parts_config(const PartsConfig& sizes, const std::string& attention = "flash") {
  nn::ModelConfig config;
  config.model_type = "parts";
  config.as<PartsConfig>() = sizes;
  config.attention = attention;
  return config;
}

// One of every kind of part, and what Llama has.
const std::vector<PartsConfig> kKinds = {{},
                                         {.num_key_value_heads = 4,
                                          .norm = "layer",
                                          .positions = "learned",
                                          .hidden_act = Activation::gelu,
                                          .gated = false,
                                          .biases = true},
                                         {.num_key_value_heads = 1,
                                          .positions = "none",
                                          .hidden_act = Activation::relu,
                                          .biases = true}};

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
  for (const PartsConfig& sizes : kKinds) {
    INFO(sizes.norm << " " << sizes.positions);
    nn::ModelConfig config = parts_config(sizes);
    auto model = nn::make_model(config, 1);
    nn::ParameterStore store(*model);
    const double before = train(*model, store, 1), after = train(*model, store, 40);
    CHECK(after < before / 4);
    Scratch scratch;
    nn::export_model(config, *model, nullptr, (scratch / "model").string());
    nn::LoadedModel back = nn::load_model((scratch / "model").string());
    CHECK(back.config.as<PartsConfig>().norm == sizes.norm);
    NoGrad off;
    const nn::ModelCall call{.ids = ids({2, 11}, 7, 37)};
    const Tensor expected = model->hidden(call);
    CHECK(same_bits(back.model->hidden(call), expected));
    nn::LoadedModel longer = nn::extend_positions(back, 60);
    CHECK(longer.model->hidden({.ids = ids({1, 60}, 7, 37)}).dim(1) == 60);
    CHECK(same_bits(longer.model->hidden(call), expected) == (sizes.positions != "learned"));
  }
}

TEST_CASE("parts: groups of heads keep fewer keys; a number that does not divide is refused") {
  auto bytes = [](int64_t kv_heads) {
    auto model = nn::make_model(parts_config({.num_key_value_heads = kv_heads}), 1);
    return nn::ModelState(*model, {.batch = 1, .capacity = 48}).bytes();
  };
  CHECK(bytes(1) < bytes(4) / 3);
  CHECK_NOTHROW(nn::make_model(parts_config({}, "sea"), 1));
  check_says(message([] { nn::make_model(parts_config({.num_key_value_heads = 3}), 1); }),
             {"config", "num_key_value_heads", "3", "num_attention_heads", "4"});
  nn::Init init{.random = {.seed = 1}};
  CHECK(message([&] {
          nn::attention_method("flash")->make(init, {.heads = 4, .head_size = 8, .kv_heads = 3});
        }) == "flash: kv_heads 3 do not divide 4 heads");
}

TEST_CASE("parts: who looks into a layer sees the keys and values of every head") {
  auto model = nn::make_model(parts_config({}), 1);
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
  for (const PartsConfig& sizes : kKinds) {
    auto model = nn::make_model(parts_config(sizes), 1, Dtype::f64);
    NoGrad off;
    const nn::ModelCall call{.ids = ids({2, 9}, 5, 37)};
    const Tensor separate = model->hidden(call);
    nn::ParameterStore store(*model);
    int64_t empty = 0;
    for (nn::Packed* pack : model->packed()) {
      CHECK(pack->value.defined() == !pack->members.empty());
      empty += pack->members.empty();
    }
    CHECK(empty == (sizes.biases ? 0 : 2));
    CHECK(close_to_scale(model->hidden(call), separate, 1e-12));
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
  check_says(message([&] { Mixed{init}; }), {"pack", "1 of 2 parameters", "all or none"});
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
  check_says(message([&] {
               projections(normal({1, 3, 4}, 2), 2, 2);
             }),
             {"projections", "weights are packed", "biases are not"});
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

TEST_CASE("parts: position ids go on from a sequence's first place") {
  const Tensor first = Tensor::from(std::vector<int64_t>{0, 5}, {2});
  CHECK(nn::position_ids(2, 3, first, 2).to_vector() == std::vector<double>{2, 3, 4, 7, 8, 9});
  CHECK(nn::position_ids(1, 2, {}).to_vector() == std::vector<double>{0, 1});
}

}  // namespace brine::test
