// The whole SEA block: the dense path against the sparse one, runtime options, invalid settings.
#include "sea/sea_attention.h"

#include <set>

#include "tests/messages.h"
#include "tests/nn/attention/contract/contract.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

std::string refusal(bool causal, const std::map<std::string, std::string>& settings) {
  return message([&] { make_block("sea", causal, Dtype::f32, 5, 64, settings); });
}

// One block of either kind by both paths.
void check_paths(Block& block, Dtype type) {
  const double tolerance = type == Dtype::f64 ? 1e-12 : 1e-5;
  Inputs in = inputs(2, 37, type);
  Tensor lengths = lengths_of({37, 22});
  nn::Tap sparse("sea"), dense("sea");
  Passed a = pass(block, in, lengths, {}, {}, &sparse);
  Passed b = pass(block, in, lengths, {}, {.dense_path = true}, &dense);
  // One estimate, hence one selection: no row is excused.
  CHECK(same_bits(sparse.get("estimate"), dense.get("estimate")));
  REQUIRE(same_bits(sparse.get("selected"), dense.get("selected")));
  CHECK(dense.get("probabilities").shape() == Shape{2, kHeads, 37, 37});
  CHECK(close_to_scale(b.y, a.y, tolerance, "output"));
  CHECK(close_to_scale(b.q, a.q, tolerance, "gradient of q"));
  CHECK(close_to_scale(b.k, a.k, tolerance, "gradient of k"));
  CHECK(close_to_scale(b.v, a.v, tolerance, "gradient of v"));
  CHECK(close_to_scale(b.parameters, a.parameters, tolerance, "gradients of parameters"));
}

}  // namespace

TEST_CASE("sea: the dense path equals the sparse path, values and gradients") {
  const std::vector<std::map<std::string, std::string>> forms = {
      {}, {{"preset", "light"}}, {{"prior", "learned"}}};
  for (bool causal : {true, false}) {
    for (const auto& form : forms) {
      for (Dtype type : {Dtype::f64, Dtype::f32}) {
        INFO("settings " << form.size());
        Block block = make_block("sea", causal, type, 5, 300, form);
        check_paths(block, type);
      }
    }
  }
}

TEST_CASE("sea: the light block has nothing of the Performer, mu, nu and the decoder") {
  Block block = make_block("sea", true, Dtype::f32, 5, 4, {{"preset", "light"}});
  std::vector<std::string> names;
  for (const auto& p : block.module->named_parameters()) names.push_back(p.path);
  CHECK(names == std::vector<std::string>{"gates", "decoder.bias", "prior.gain",
                                          "prior.pooled_gain", "prior.query.weight",
                                          "prior.query.bias", "prior.key.weight",
                                          "prior.key.bias"});
  CHECK(block.module->named_buffers().empty());
  // Without an identity table no length is too long.
  nn::Tap tap("sea");
  CHECK_NOTHROW(pass(block, inputs(1, 9, Dtype::f32), {}, {}, {}, &tap));
  for (const char* name : {"V_I", "C_perf", "Z"}) CHECK_FALSE(tap.has(name));
  CHECK(tap.get("gates").shape() == Shape{1, kHeads, 9, 2});
  // Its state: keys, values, features, sums at borders, scores, and the sum of the values.
  auto light = block.module->make_state({.batch = 1, .capacity = 64});
  std::set<std::string> parts;
  for (const NamedTensor& t : light->saved(0)) parts.insert(t.name);
  CHECK(parts == std::set<std::string>{"border_width", "borders_of_units_4",
                                       "key_features_of_units_4", "keys", "length",
                                       "pooled_borders_of_units_4", "pooled_width", "scores",
                                       "value_sums", "values"});
}

TEST_CASE("light: parts of a prompt with groups and rotary positions, and behind a stored state") {
  NoGrad off;
  const nn::AttentionShape shape{
      .heads = 9, .head_size = 64, .max_positions = 2048, .kv_heads = 3, .rotary = true};
  nn::Init init{.random = {.seed = 5}, .dtype = Dtype::f32, .linear_std = 0.3};
  const auto block =
      method_with("sea", {{"preset", "light"}, {"k", "64"}, {"columns", "256"}})->make(init, shape);
  const int64_t T = 1100;
  auto rows_of = [&](int64_t first, int64_t n, nn::AttentionState* state) {
    auto make = [&](int64_t heads, uint64_t seed) {
      return normal({1, heads, T, 64}, seed).slice(2, first, n).contiguous();
    };
    return nn::AttentionInput{.q = make(9, 1),
                              .k = make(3, 2),
                              .v = make(3, 3),
                              .q_content = make(9, 4),
                              .k_content = make(3, 5),
                              .hidden = {},
                              .state = state,
                              .more = first + n < T};
  };
  const nn::StateRequest request{.capacity = 1200};
  const auto whole = block->make_state(request);
  const Tensor wanted = block->forward(rows_of(0, T, whole.get()));
  for (const bool stored : {false, true}) {
    auto state = block->make_state(request);
    for (int64_t first = 0; first < T; first += 300) {
      const int64_t n = std::min<int64_t>(300, T - first);
      const Tensor y = block->forward(rows_of(first, n, state.get()));
      const std::vector<double> a = y.to_vector(),
                                b = wanted.slice(1, first, n).contiguous().to_vector();
      int64_t others = 0;  // rows of a head with another mask
      for (size_t i = 0; i < a.size(); i += 64) {
        others += !std::equal(a.begin() + i, a.begin() + i + 64, b.begin() + i,
                              [](double u, double v) { return std::abs(u - v) < 1e-5; });
      }
      CHECK(others <= (stored ? 9 * n / 10 : 0));
      if (!stored) continue;
      auto next = block->make_state(request);  // has sums of features only
      next->restore(0, state->saved(0), "saved");
      state = std::move(next);
    }
  }
}

TEST_CASE("sea: content before rotation enters the learned prior, and must be given") {
  nn::Init init{.random = {.seed = 3}, .dtype = Dtype::f64};
  const nn::AttentionShape shape{.heads = 4, .head_size = 8, .kv_heads = 2, .rotary = true};
  const std::unique_ptr<nn::Attention> block =
      method_with("sea", {{"preset", "light"}})->make(init, shape);
  const Tensor q = normal({1, 4, 21, 8}, 1, Dtype::f64), k = normal({1, 2, 21, 8}, 2, Dtype::f64);
  auto scores = [&](const Tensor& content) {
    nn::Tap tap("sea");
    block->forward({.q = q,
                    .k = k,
                    .v = k,
                    .q_content = content,
                    .k_content = content.defined() ? k : Tensor(),
                    .hidden = {},
                    .tap = &tap});
    return tap.get("scores");
  };
  CHECK_FALSE(same_bits(scores(q), scores(normal(q.shape(), 5, Dtype::f64))));
  CHECK_REFUSES(scores({}), "sea", "rotary", "before rotation");
}

TEST_CASE("sea: the block attends to a forced selection") {
  Block block = make_block("sea", true, Dtype::f64);
  Inputs in = inputs(1, 24, Dtype::f64);
  nn::Tap own("sea"), forced("sea");
  Tensor y = pass(block, in, {}, {}, {}, &own).y;
  Tensor none = Tensor::zeros(own.get("selected").shape(), Dtype::u8);
  forced.force("selected", none);
  Tensor z = pass(block, in, {}, {}, {}, &forced).y;
  CHECK(same_bits(own.get("estimate"), forced.get("estimate")));
  CHECK(same_bits(rows(y, 1, 0, 4), rows(z, 1, 0, 4)));  // w <= k: every key is kept anyway
  CHECK_FALSE(same_bits(rows(y, 1, 4, 20), rows(z, 1, 4, 20)));
  CHECK(forced.get("columns").numel() < own.get("columns").numel());
}

TEST_CASE("sea: with query_skip rows share the scores of the row before them") {
  Block block = make_block("sea", true, Dtype::f64);
  for (int64_t T : {1, 2, 20}) {
    Inputs in = inputs(2, T, Dtype::f64);
    nn::Tap tap("sea");
    Passed p = pass(block, in, {}, {}, {.query_skip = 3}, &tap);
    CHECK(p.y.shape() == Shape{2, T, kHeads * kSize});
    for (double value : p.y.to_vector()) REQUIRE(std::isfinite(value));
    const Tensor& scores = tap.get("scores");
    for (int64_t t = 0; t < T; ++t) {
      CHECK(same_bits(rows(scores, 2, t, 1), rows(scores, 2, t - t % 3, 1)));
    }
    if (T > 3) CHECK_FALSE(same_bits(rows(scores, 2, 2, 1), rows(scores, 2, 3, 1)));
  }
}

TEST_CASE("sea: k changes from call to call and gives the same as the trained k") {
  Inputs in = inputs(2, 33, Dtype::f32);
  int64_t entries = 0;
  for (int64_t k : {1, 2, 7, 40}) {
    Block four = make_block("sea", true, Dtype::f32);
    Block own = make_block("sea", true, Dtype::f32, 5, 300, {{"k", std::to_string(k)}});
    nn::Tap tap("sea");
    check_same_bits(pass(four, in, {}, {}, {.k = k}, &tap), pass(own, in), "k from the call");
    CHECK(tap.get("columns").numel() > entries);
    entries = tap.get("columns").numel();
  }
  CHECK(entries == 2 * kHeads * 33 * 34 / 2);  // k beyond T keeps every visible key
}

TEST_CASE("sea: settings that cannot be are refused by name") {
  CHECK(refusal(true, {}) == "no error");
  CHECK(contains(refusal(true, {{"k", "0"}}), "k"));
  CHECK(contains(refusal(true, {{"k", "0"}}), "at least 1"));
  CHECK(contains(refusal(true, {{"columns", "15"}}), "columns = 15 is not a multiple of 2"));
  CHECK(contains(refusal(true, {{"columns", "4"}}), "too few"));
  CHECK(
      contains(refusal(true, {{"mode", "per-head"}}), "mode per-head depends on later positions"));
  CHECK(contains(refusal(true, {{"features", "softmax"}}), "see future keys"));
  nn::Init init{.random = {.seed = 1}};
  sea::SeaConfig config;
  config.keys = 0;
  CHECK_THROWS_WITH_AS(sea::SeaAttention(init, {.heads = 1, .head_size = 8}, config),
                       "sea: k is 0, must be at least 1", Error);
}

TEST_CASE("sea: more tokens than rows of the identity table are refused") {
  Block block = make_block("sea", true, Dtype::f32, 5, 16);
  CHECK_NOTHROW(pass(block, inputs(1, 16, Dtype::f32)));
  CHECK_THROWS_AS(pass(block, inputs(1, 17, Dtype::f32)), Error);
}

}  // namespace brine::test
