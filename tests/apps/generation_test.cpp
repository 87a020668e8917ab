// Generating: against a pass over the whole prefix for every token, batches against single prompts,
// stopped.
#include "nn/generate/generation.h"

#include <algorithm>

#include "nn/io/model_io.h"
#include "nn/models/model_config.h"
#include "tests/gradcheck.h"
#include "tests/messages.h"
#include "tests/small_models.h"

namespace brine::tests {
namespace {

using test::contains;
using test::message;
using Ids = std::vector<int32_t>;

constexpr int64_t kVocabulary = 61, kPositions = 40;

struct Made {
  nn::ModelConfig config;
  std::unique_ptr<nn::Model> model;
  std::unique_ptr<nn::ParameterStore> store;

  explicit Made(const std::string& attention, uint64_t seed = 3) {
    config = test::small_opt(kVocabulary, kPositions, 0.4);
    config.attention = attention;
    data::Schema keys = data::schema_of(config);
    if (keys.find("attention.k")) keys.set_text("attention.k", {"4"});
    if (attention != "blocks" && keys.find("attention.columns"))
      keys.set_text("attention.columns", {"12"});
    for (const char* key : {"attention.block", "attention.tile"})
      if (keys.find(key)) keys.set_text(key, {"4"});
    if (attention == "blocks") keys.set_text("attention.k", {"16"});
    model = nn::make_model(config, seed);
    store = std::make_unique<nn::ParameterStore>(*model, nn::ParameterStore::Gradients::later);
  }
};

// "<7>" for token 7.
std::string spell(int32_t id) { return "<" + std::to_string(id) + ">"; }

std::vector<nn::Sequence> generated(Made& m, const nn::GenerationRequest& request,
                                    const std::vector<Ids>& prompts) {
  nn::Generation g(*m.model, request, spell);
  g.start(prompts);
  g.run();
  return g.sequences();
}

// The oracle: every token from a pass over all earlier tokens.
Ids by_prefix(Made& m, const nn::GenerationRequest& r, Ids ids, uint64_t i) {
  NoGrad off;
  for (int64_t n = 0; n < r.tokens && int64_t(ids.size()) < kPositions; ++n) {
    const int64_t T = int64_t(ids.size());
    const Tensor hidden = m.model->hidden({.ids = Tensor::from(ids, {1, T}), .options = r.options});
    const Tensor logits = m.model->logits(hidden.slice(1, T - 1, 1).contiguous());
    const RandomSlice random{r.seed, 3 + (i << 32), uint64_t(n)};
    ids.push_back(
        nn::sample({logits.data<float>(), size_t(kVocabulary)}, r.how, random.uniform(0)));
  }
  return ids;
}

const std::vector<Ids> kPrompts = {{5}, {9, 2, 44, 17, 8, 3, 21}, {60, 1, 30}, {2, 2, 2, 2, 9}};

}  // namespace

TEST_CASE("generation: the tokens are those of a pass over the whole prefix for every token") {
  for (const char* attention : {"flash", "recent", "sea", "blocks"}) {
    for (const auto& options :
         {nn::RuntimeOptions{}, nn::RuntimeOptions{.k = 2}, nn::RuntimeOptions{.query_skip = 3}}) {
      Made m(attention);
      if (options.k && !m.model->attention_traits().sparse) continue;
      if (options.query_skip > 1 && !m.model->attention_traits().query_skip) continue;
      INFO(std::string(attention) << ", k " << options.k << ", query_skip " << options.query_skip);
      for (const nn::Sampling& how :
           {nn::Sampling{.temperature = 0}, nn::Sampling{.temperature = 1.3},
            nn::Sampling{.temperature = 2, .top_k = 9, .top_p = 0.8}}) {
        const nn::GenerationRequest r{.tokens = 25,
                                      .how = how,
                                      .seed = 8,
                                      .stop_tokens = {},
                                      .stops = {},
                                      .options = options};
        const std::vector<nn::Sequence> out = generated(m, r, kPrompts);
        for (size_t i = 0; i < out.size(); ++i) {
          CHECK(out[i].ids == by_prefix(m, r, kPrompts[i], i));
          CHECK(out[i].finish == nn::Finish::tokens);
        }
      }
    }
  }
}

TEST_CASE(
    "generation: a batch gives the same as its prompts separately; ends at stops and positions") {
  for (const char* attention : {"flash", "recent", "sea", "blocks"}) {
    INFO(std::string(attention));
    Made m(attention);
    nn::GenerationRequest r{
        .tokens = 100, .how = {.temperature = 0}, .stop_tokens = {}, .stops = {}, .options = {}};
    const std::vector<nn::Sequence> free = generated(m, r, kPrompts);
    for (size_t i = 0; i < free.size(); ++i) {
      CHECK(free[i].finish == nn::Finish::positions);
      CHECK(free[i].ids.size() == size_t(kPositions));
      CHECK(generated(m, r, {kPrompts[i]})[0].ids == free[i].ids);
    }
    // The third and the fifth token of two sequences end them, the others continue.
    const int32_t token = free[1].ids[kPrompts[1].size() + 2];
    const std::string text = spell(free[2].ids[kPrompts[2].size() + 4]);
    r.stop_tokens = {token};
    r.stops = {text};
    const std::vector<nn::Sequence> ended = generated(m, r, kPrompts);
    for (size_t i = 0; i < ended.size(); ++i) {
      const nn::Sequence& s = ended[i];
      REQUIRE(s.ids.size() <= free[i].ids.size());
      CHECK(std::equal(s.ids.begin(), s.ids.end(), free[i].ids.begin()));
      const int32_t last = s.ids.back();
      CHECK((s.finish == nn::Finish::stop_token) == (last == token));
      CHECK((s.finish == nn::Finish::stop_text) == (spell(last) == text && last != token));
      CHECK_FALSE(contains(s.text.text(), text));
      // Nothing before the end would have ended it.
      for (size_t n = size_t(s.prompt_tokens); n + 1 < s.ids.size(); ++n) {
        CHECK((s.ids[n] != token && spell(s.ids[n]) != text));
      }
    }
    CHECK(ended[1].finish != nn::Finish::positions);
    CHECK(ended[2].finish != nn::Finish::positions);
  }
}

TEST_CASE("generation: a huge number of tokens ends at the positions") {
  Made m("flash");
  const nn::GenerationRequest r{
      .tokens = INT64_MAX, .how = {}, .stop_tokens = {}, .stops = {}, .options = {}};
  CHECK(generated(m, r, {{5, 6}})[0].finish == nn::Finish::positions);
}

TEST_CASE("generation: prompts and stops that cannot be used are refused") {
  Made m("sea");
  const nn::GenerationRequest r{
      .tokens = 5, .how = {}, .stop_tokens = {}, .stops = {}, .options = {}};
  CHECK(contains(message([&] { generated(m, r, {{}}); }), "the prompt is empty"));
  CHECK(contains(message([&] { generated(m, r, {}); }), "no prompt"));
  CHECK(contains(message([&] { generated(m, r, {Ids(40, 1)}); }),
                 "the prompt has 40 tokens, the model 40 positions"));
  nn::GenerationRequest bad = r;
  bad.stops = {""};
  CHECK(contains(message([&] { generated(m, bad, {{1}}); }), "stop text is empty"));
  CHECK(generated(m, r, {Ids(39, 1)})[0].ids.size() == 40);
}

}  // namespace brine::tests
