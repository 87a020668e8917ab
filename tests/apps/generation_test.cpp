// Generating: against a pass over the whole prefix for every token, batches against single prompts,
// stopped and continued.
#include "nn/generate/generation.h"

#include <algorithm>
#include <optional>

#include "data/safetensors/safetensors.h"
#include "nn/io/model_io.h"
#include "nn/models/model_config.h"
#include "tests/gradcheck.h"
#include "tests/refusals.h"
#include "tests/scratch.h"
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
    if (attention == "sea") keys.set_text("attention.preset", {"light"});
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
                                      .options = options,
                                      .cache = Dtype::f32};
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

TEST_CASE("generation: saved and continued it gives the tokens of one go") {
  for (const char* attention : {"flash", "recent", "sea", "blocks"}) {
    INFO(std::string(attention));
    Made m(attention);
    test::Scratch scratch;
    const auto file = scratch / "a.state";
    nn::GenerationRequest r{.tokens = 18,
                            .how = {.temperature = 1.5},
                            .seed = 4,
                            .stop_tokens = {},
                            .stops = {},
                            .options = {},
                            .cache = Dtype::f32};
    const std::vector<nn::Sequence> whole = generated(m, r, kPrompts);
    r.tokens = 7;
    r.keep_states = true;
    nn::Generation first(*m.model, r, spell);
    first.start(kPrompts);
    first.run();
    first.save(file, "hash");
    r.tokens = 11;
    nn::Generation second(*m.model, r, spell);
    second.load(file, "hash", {});
    second.run();
    for (size_t i = 0; i < whole.size(); ++i) CHECK(second.sequences()[i].ids == whole[i].ids);

    // More text after each: as if all of it had been the prompt.
    r.how.temperature = 0;
    const std::vector<Ids> more = {{3, 4}, {7}, {1, 1, 1}, {50}};
    nn::Generation third(*m.model, r, spell);
    third.load(file, "hash", more);
    third.run();
    for (size_t i = 0; i < more.size(); ++i) {
      Ids prompt = first.sequences()[i].ids;
      prompt.insert(prompt.end(), more[i].begin(), more[i].end());
      CHECK(third.sequences()[i].ids == by_prefix(m, r, prompt, i));
      CHECK(third.sequences()[i].prompt_tokens == int64_t(prompt.size()));
    }

    auto refusal = [&](const std::string& hash, const std::vector<Ids>& added,
                       const nn::GenerationRequest& request) {
      return message([&] { nn::Generation(*m.model, request, spell).load(file, hash, added); });
    };
    CHECK(contains(refusal("other", {}, r), "a.state: written by a model with other weights"));
    CHECK(contains(refusal("hash", {{1}}, r), "1 prompts for the 4 sequences"));
    nn::GenerationRequest skipping = r;
    skipping.options.query_skip = 2;
    CHECK(contains(refusal("hash", {}, skipping), "decoded with --query-skip 1, now it is 2"));
    CHECK(contains(refusal("hash", {Ids(40, 1), {1}, {1}, {1}}, r), "the model 40 positions"));
    Made other(attention == std::string("flash") ? "sea" : "flash");
    CHECK(contains(message([&] { nn::Generation(*other.model, r, spell).load(file, "hash", {}); }),
                   join("a.state: decoded with attention '", attention, "', now it is")));
  }
}

TEST_CASE("generation: a state file that disagrees with itself is refused, by name of the tensor") {
  struct Fault {
    const char *attention, *tensor;
    std::function<Tensor(const Tensor&)> change;  // empty: the tensor is added, of one zero
    const char* refusal;
  };
  auto number = [](int64_t x) {
    return [x](const Tensor&) { return Tensor::from(std::vector<int64_t>{x}, {1}); };
  };
  const std::vector<Fault> faults = {
      {"flash", "sequences.0.ids",
       [](const Tensor& t) { return Tensor::full(t.shape(), 61, Dtype::i32); },
       "token 61 is outside the vocabulary"},
      {"flash", "sequences.0.ids", [](const Tensor& t) { return t.to(Dtype::i64); },
       "sequence 0 is damaged"},
      {"flash", "sequences.0.drawn", number(-1), "sequence 0 is damaged"},
      {"flash", "sequences.0.drawn", number(INT64_MAX), "sequence 0 is damaged"},
      {"flash", "sequences.0.layers.9.keys", nullptr,
       "1 tensors belong to none of the model's 2 layers"},
      {"flash", "sequences.1.layers.0.length", number(-1), "layer 0: a sequence of -1 tokens"},
      {"flash", "sequences.1.layers.1.length", number(1), "layer 1: keys is f32 "},
      {"sea", "sequences.0.layers.0.border_width", number(1000),
       "sequence 0 decreases from 1000 keys to"},
      {"sea", "sequences.0.layers.0.border_width", number(-1), "is outside 0.."},
  };
  for (const Fault& fault : faults) {
    INFO(join(fault.attention, ", ", fault.tensor, ": ", fault.refusal));
    Made m(fault.attention);
    test::Scratch scratch;
    nn::GenerationRequest r{.tokens = 7, .how = {}, .stop_tokens = {}, .stops = {}, .options = {}};
    r.keep_states = true;
    nn::Generation first(*m.model, r, spell);
    first.start({{5}, {9, 2, 44}});
    first.run();
    first.save(scratch / "good.state", "hash");
    const data::Safetensors good(scratch / "good.state");
    std::vector<NamedTensor> tensors;
    bool found = false;
    for (const data::SafetensorsEntry& e : good.entries()) {
      const bool meant = e.name == fault.tensor;
      found = found || meant;
      tensors.push_back({e.name, meant ? fault.change(good.tensor(e.name)) : good.tensor(e.name)});
    }
    CHECK(found == bool(fault.change));
    if (!found) tensors.push_back({fault.tensor, Tensor::zeros({1})});
    data::StringMap metadata = good.metadata();
    metadata["sha256"] = nn::tensor_hash(tensors);
    data::save_safetensors(scratch / "bad.state", tensors, metadata);
    nn::Generation again(*m.model, r, spell);
    CHECK(contains(message([&] {
                     again.load(scratch / "bad.state", "hash", {});
                     again.run();
                   }),
                   fault.refusal));
    nn::Generation fine(*m.model, r, spell);
    fine.load(scratch / "good.state", "hash", {});
    fine.run();
    CHECK(fine.sequences().size() == 2);
  }
}

TEST_CASE("generation: a flipped bit in a state file is found; one without a checksum is refused") {
  Made m("sea");
  test::Scratch scratch;
  const auto file = scratch / "a.state";
  nn::GenerationRequest r{.tokens = 3, .how = {}, .stop_tokens = {}, .stops = {}, .options = {}};
  r.keep_states = true;
  nn::Generation first(*m.model, r, spell);
  first.start({{5}, {9, 2, 44}});
  first.run();
  first.save(file, "hash");
  auto load = [&] {
    return message([&] { nn::Generation(*m.model, r, spell).load(file, "hash", {}); });
  };
  const std::string bytes = data::read_file(file);
  const size_t values = 8 + size_t(uint8_t(bytes[0])) + (size_t(uint8_t(bytes[1])) << 8);
  for (size_t at = values; at < bytes.size(); at += 97) {
    std::string flipped = bytes;
    flipped[at] = char(flipped[at] ^ (1 << at % 8));
    scratch.write("a.state", flipped);
    CHECK(load() == file.string() + ": content does not match its checksum");
  }
  scratch.write("a.state", bytes);
  CHECK(load() == "no error");
  std::vector<NamedTensor> tensors;
  const data::Safetensors whole(file);
  for (const auto& e : whole.entries()) tensors.push_back({e.name, whole.tensor(e.name)});
  data::StringMap metadata = whole.metadata();
  metadata.erase("sha256");
  data::save_safetensors(file, tensors, metadata);
  CHECK(contains(load(), "no sha256 in its header"));
}

TEST_CASE("generation: a huge number of tokens ends at the positions") {
  Made m("flash");
  const nn::GenerationRequest r{
      .tokens = INT64_MAX, .how = {}, .stop_tokens = {}, .stops = {}, .options = {}};
  CHECK(generated(m, r, {{5, 6}})[0].finish == nn::Finish::positions);
}

TEST_CASE("generation: what cannot be continued is refused") {
  Made m("sea");
  const nn::GenerationRequest r{
      .tokens = 5, .how = {}, .stop_tokens = {}, .stops = {}, .options = {}};
  CHECK(contains(message([&] { generated(m, r, {{}}); }), "the prompt is empty"));
  CHECK(contains(message([&] { generated(m, r, {}); }), "no prompt"));
  CHECK_REFUSES(generated(m, r, {Ids(40, 1)}), "the prompt has 40 tokens, the model 40 positions");
  nn::GenerationRequest bad = r;
  bad.stops = {""};
  CHECK(contains(message([&] { generated(m, bad, {{1}}); }), "stop text is empty"));
  CHECK(generated(m, r, {Ids(39, 1)})[0].ids.size() == 40);
}

}  // namespace brine::tests
