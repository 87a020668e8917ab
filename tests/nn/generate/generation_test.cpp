// The decoding state of a whole model: batches, saving, positions, refusals.
#include "nn/generate/generation.h"
#include "nn/models/model_config.h"
#include "nn/models/model_state.h"
#include "nn/optim/parameter_store.h"
#include "tests/gradcheck.h"
#include "tests/refusals.h"
#include "tests/small_models.h"

namespace brine::test {
namespace {

struct Made {
  nn::ModelConfig config;
  std::unique_ptr<nn::Model> model;
  std::unique_ptr<nn::ParameterStore> store;
};

Made make(const std::string& attention, bool post_norm = false, int64_t positions = 48) {
  Made m;
  const data::Json narrow = {{"do_layer_norm_before", false}, {"word_embed_proj_dim", 12}};
  m.config = small_opt(53, positions, 0.3, post_norm ? narrow : data::Json::object());
  m.config.attention = attention == "light" ? "sea" : attention;
  if (attention == "light") {
    data::Schema schema;
    m.config.method().describe(schema);
    schema.set_text("preset", {"light"});
  }
  m.model = nn::make_model(m.config, 3);
  m.store = std::make_unique<nn::ParameterStore>(*m.model, nn::ParameterStore::Gradients::later);
  return m;
}

// Every causal method that claims decoding and SEA light, and the narrow post-LN model.
template <class F>
void each_model(F f, int64_t positions = 48) {
  int made = 0;
  std::vector<std::string> names = {"light"};
  for (const auto& [name, factory] : nn::attention_methods()) names.push_back(name);
  for (const std::string& name : names) {
    for (bool post_norm : {false, true}) {
      std::optional<Made> m;
      try {
        m = make(name, post_norm, positions);
      } catch (const Error& refusal) {
        MESSAGE(name << " refuses: " << refusal.what());
        continue;
      }
      if (!m->model->attention_traits().incremental) continue;
      INFO(name << (post_norm ? ", post-LN" : ""));
      f(*m->model);
      ++made;
    }
  }
  CHECK(made >= 6);
}

Tensor part(const Tensor& all, int64_t b, int64_t from, int64_t n) {
  return all.select(0, b).slice(0, from, n).contiguous();
}

// Tokens n = 0.. of step n of all sequences.
Tensor column(const Tensor& all, const std::vector<int64_t>& at) {
  Tensor out = Tensor::empty({all.dim(0)}, Dtype::i32);
  for (int64_t b = 0; b < all.dim(0); ++b) {
    out.data<int32_t>()[b] = all.data<int32_t>()[b * all.dim(1) + at[size_t(b)]];
  }
  return out;
}

}  // namespace

TEST_CASE(
    "model state: a sequence of a batch, and one that was saved, have the bits of one alone") {
  each_model([](nn::Model& model) {
    const Tensor tokens = ids({2, 48}, 8, 53);
    std::vector<int64_t> at = {4, 9};
    nn::ModelState both(model, {.batch = 2, .capacity = 40}), alone(model, {.capacity = 40});
    for (int64_t b = 0; b < 2; ++b) {
      nn::prefill(model, both, b, part(tokens, b, 0, at[size_t(b)]));
    }
    nn::prefill(model, alone, 0, part(tokens, 1, 0, 9));
    for (int n = 0; n < 8; ++n) {
      const Tensor ids = column(tokens, at);
      const Tensor a = nn::step(model, both, ids);
      const Tensor b = nn::step(model, alone, ids.slice(0, 1, 1).contiguous());
      CHECK(same_bits(model.logits(a).slice(0, 1, 1), model.logits(b)));
      for (int64_t& t : at) ++t;
      if (n != 3) continue;
      nn::ModelState again(model, {.batch = 2, .capacity = 48}),
          swapped(model, {.batch = 2, .capacity = 40});
      for (int64_t slot = 0; slot < 2; ++slot) {
        again.restore(slot, both.saved(slot), "test");
        swapped.restore(1 - slot, both.saved(slot), "test");
      }
      const Tensor next = column(tokens, at);
      const Tensor turned =
          Tensor::from(std::vector<int32_t>{next.data<int32_t>()[1], next.data<int32_t>()[0]}, {2});
      const Tensor restored = nn::step(model, again, next),
                   reversed = nn::step(model, swapped, turned);
      CHECK(same_bits(restored.slice(0, 0, 1), reversed.slice(0, 1, 1)));
      CHECK(same_bits(restored.slice(0, 1, 1), reversed.slice(0, 0, 1)));
      CHECK(same_bits(restored, nn::step(model, both, next)));
      nn::step(model, alone, next.slice(0, 1, 1).contiguous());
      for (int64_t& t : at) ++t;
    }
    both.keep({1});
    const Tensor id = column(tokens, at).slice(0, 1, 1).contiguous();
    CHECK(same_bits(nn::step(model, both, id), nn::step(model, alone, id)));
  });
}

// Products of fewer rows may round differently; tests/nn/attention/contract compares bits.
TEST_CASE("model state: a prompt in parts, and one that goes on, are those of one pass") {
  int with_parts = 0;
  auto compare = [&](nn::Model& model) {
    if (model.attention_traits().part_step == 0) return;
    ++with_parts;
    const int64_t T = 203;
    const Tensor tokens = ids({1, 256}, 8, 53), next = part(tokens, 0, T, 1);
    const nn::StateRequest request{
        .capacity = 256, .cache = Dtype::f32, .options = {.k = 128}};  // features in f32, too
    nn::ModelState whole(model, request);
    const Tensor last = nn::prefill(model, whole, 0, part(tokens, 0, 0, T), T);
    const Tensor after = nn::step(model, whole, next);
    auto same = [&](nn::ModelState& state, const Tensor& hidden) {
      CHECK(state.length(0) == T);
      CHECK(close(hidden, last, 1e-4, 0));
      CHECK(close(nn::step(model, state, next), after, 1e-4, 0));
    };
    for (const int64_t n : {1, 64, 100}) {
      nn::ModelState state(model, request);
      same(state, nn::prefill(model, state, 0, part(tokens, 0, 0, T), n));
    }
    nn::ModelState state(model, request);  // 64 is the next beginning of a part
    nn::prefill(model, state, 0, part(tokens, 0, 0, 50));
    same(state, nn::prefill(model, state, 0, part(tokens, 0, 50, T - 50), 64));
  };
  each_model(compare, 256);
  CHECK(with_parts == 8);
}

TEST_CASE("generation: its memory is known before the state exists") {
  each_model(
      [](nn::Model& model) {
        for (const auto& [cache, coded] :
             {std::pair{Dtype::f32, false}, {Dtype::bf16, false}, {Dtype::bf16, true}}) {
          if (coded && !model.attention_traits().codes) continue;
          nn::GenerationRequest request;
          request.tokens = 30;
          request.coded = coded;
          if (cache != Dtype::f32) request.cache = cache;
          const nn::GenerationMemory m = nn::memory_of(model, request, 2, 100);
          CHECK(m.tokens == 129);
          const nn::ModelState state(
              model, {.batch = 2, .capacity = 129, .cache = request.cache, .coded = coded});
          CHECK(m.state == state.bytes());
          request.part = 10;
          const nn::AttentionTraits traits = model.attention_traits();
          const nn::ModelShape& s = model.shape();
          const int64_t kept = traits.part_numbers * 100 * s.layers * int64_t(item_size(cache));
          const int64_t rows = 129 * 2 * s.attention().groups() * s.head_size();  // of one layer
          const int64_t number = coded ? 4 : cache == Dtype::bf16 ? 4 + 2 : 0;
          CHECK(nn::memory_of(model, request, 2, 100).part ==
                (traits.part_step ? nn::part_bytes(s) * 10 + kept + rows * number
                                  : nn::part_bytes(s) * 100));
          if (!traits.query_skip) continue;
          request.options.query_skip = 2;  // read whole
          CHECK(nn::memory_of(model, request, 2, 100).part == nn::part_bytes(model.shape()) * 100);
        }
      },
      256);
}

TEST_CASE("generation: what needs more memory than is free is refused with its parts") {
  CHECK_NOTHROW(nn::check_fits({.tokens = 5, .state = 1, .part = 1}, "here"));
  CHECK_REFUSES(nn::check_fits({.tokens = 5, .state = int64_t(1) << 60, .part = 2048}, "here"),
                "here: 5 tokens need", "PiB for their state and", "KiB to read a prompt");
}

TEST_CASE("model state: what has no parts goes on token by token") {
  Made m = make("sea");
  REQUIRE(m.model->attention_traits().part_step == 0);
  const Tensor tokens = ids({1, 48}, 8, 53);
  nn::ModelState parts(*m.model, {.capacity = 48}), steps(*m.model, {.capacity = 48});
  for (nn::ModelState* state : {&parts, &steps})
    nn::prefill(*m.model, *state, 0, part(tokens, 0, 0, 9));
  Tensor last;
  for (int64_t t = 9; t < 20; ++t) last = nn::step(*m.model, steps, part(tokens, 0, t, 1));
  CHECK(same_bits(nn::prefill(*m.model, parts, 0, part(tokens, 0, 9, 11)), last));
}

TEST_CASE("model state: positions, other shapes and methods without decoding are refused by name") {
  Made m = make("sea");
  nn::Model& model = *m.model;
  CHECK(message([&] { nn::ModelState(model, {.capacity = 49}); }) ==
        "decoding: a capacity of 49 tokens, but the model has 48 positions");
  nn::ModelState state(model, {.batch = 2, .capacity = 48});
  const Tensor tokens = ids({2, 48}, 8, 53);
  nn::prefill(model, state, 0, part(tokens, 0, 0, 48));
  nn::prefill(model, state, 1, part(tokens, 1, 0, 3));
  CHECK(message([&] {
          nn::step(model, state, column(tokens, {0, 0}));
        }) == "opt: token 49 of a sequence, but the model has 48 positions");
  CHECK_REFUSES(nn::step(model, state, ids({3}, 1, 53)), "one token of each of 2 sequences");
  CHECK_REFUSES(state.restore(0, {}, "x.state"), "x.state: layer 0: no tensor length");
  CHECK(contains(message([&] { nn::prefill(model, state, 1, part(tokens, 0, 0, 2)); }),
                 "a prompt goes on after 3 tokens beside other sequences"));
}

}  // namespace brine::test
