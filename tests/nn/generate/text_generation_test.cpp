// What a generation of text is: where prompts come from, what ends a continuation, states in files.
#include "nn/generate/text_generation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/tokenizer/bpe/bpe.h"
#include "tests/refusals.h"
#include "tests/scratch.h"
#include "tests/small_models.h"

namespace brine::test {
namespace {

std::unique_ptr<data::Tokenizer> tokenizer(
    data::SpecialTokens kind = data::SpecialTokens::decoder) {
  return data::BpeTrainer({.vocab_size = 261, .special = data::special_tokens(kind)}).train();
}

nn::LoadedModel tiny() {
  nn::LoadedModel m;
  m.config = small_opt(261, 48, 0.3, {{"num_hidden_layers", 1}});
  m.model = nn::make_model(m.config, 3);
  m.store = std::make_unique<nn::ParameterStore>(*m.model);
  return m;
}

using Texts = std::vector<std::string>;
using Ids = std::vector<int32_t>;

// With </s> in front of every text.
std::unique_ptr<data::Tokenizer> with_bos() {
  Scratch scratch;
  nlohmann::json root = nlohmann::json::parse(tokenizer()->to_json());
  put_end_in_front(root);
  return data::load_tokenizer(scratch.write("tokenizer.json", root.dump()));
}

}  // namespace

TEST_CASE("text generation: prompts come from the settings or from a file, not from both") {
  Scratch scratch;
  nn::TextGeneration what;
  what.prompt_file = scratch.write("prompts", "one two\r\nthree");
  CHECK(what.prompts() == Texts{"one two", "three"});
  what.prompt_file = scratch.write("marked", "\xef\xbb\xbfone\ntwo\n");
  CHECK(what.prompts() == Texts{"one", "two"});
  what.prompt = {"x"};
  CHECK(contains(message([&] { what.prompts(); }), "--prompt-file"));
  what.prompt_file = "";
  CHECK(what.prompts() == Texts{"x"});
  what.prompt.clear();
  CHECK(contains(message([&] { what.prompts(); }), "--document is needed"));
  what.load_state = "a state";  // the state contains sequences
  CHECK(what.prompts().empty());
  what.prompt_file = scratch.write("holes", "one\n\ntwo\n");
  CHECK(contains(message([&] { what.prompts(); }), "line 2"));
  what.prompt_file = scratch.write("empty", "");
  CHECK(contains(message([&] { what.prompts(); }), "no prompts"));
  what.document = scratch.write("book", "\xef\xbb\xbfone\n\ntwo\n");
  CHECK(contains(message([&] { what.prompts(); }), "one is enough"));
  what.prompt_file = "";
  CHECK(what.prompts() == Texts{"one\n\ntwo\n"});
}

TEST_CASE("text generation: a state that could not be saved is refused before the work") {
  Scratch scratch;
  nn::TextGeneration what;
  what.prompt = {"x"};
  for (const char* possible : {"state", ""}) {
    what.save_state = *possible ? (scratch / possible).string() : "here";
    CHECK(what.prompts().size() == 1);
  }
  what.save_state = (scratch / "missing" / "state").string();
  CHECK(contains(message([&] { what.prompts(); }), (scratch / "missing").string()));
}

TEST_CASE("text generation: eos ends a continuation unless it is ignored, other tokens by name") {
  const auto opt = tokenizer();
  const Ids ends = {*opt->id_of("</s>")};
  nn::TextGeneration what;
  CHECK(what.request(*opt, ends, 7).stop_tokens == Ids{*opt->id_of("</s>")});
  what.stop_token = {"<pad>", "a"};
  CHECK(what.request(*opt, ends, 7).stop_tokens ==
        Ids{*opt->id_of("</s>"), *opt->id_of("<pad>"), *opt->id_of("a")});
  what.ignore_eos = true;
  CHECK(what.request(*opt, ends, 7).stop_tokens == Ids{*opt->id_of("<pad>"), *opt->id_of("a")});
  what.stop_token = {"nonesuch"};
  CHECK(contains(message([&] { what.request(*opt, ends, 7); }), "'nonesuch'"));
  what.stop_token.clear();
  what.ignore_eos = false;
  const auto bert = tokenizer(data::SpecialTokens::encoder);
  CHECK(nn::end_tokens(tiny(), *bert).empty());
}

TEST_CASE(
    "text generation: the ends are generation_config.json's, config.json's or the tokenizer's") {
  const auto opt = tokenizer();
  nn::LoadedModel m = tiny();
  CHECK(nn::end_tokens(m, *opt) == Ids{*opt->id_of("</s>")});
  m.config.token_settings.ids["eos_token_id"] = {};  // null in config.json
  CHECK(nn::end_tokens(m, *opt) == Ids{*opt->id_of("</s>")});
  m.config.token_settings.ids["eos_token_id"] = {9, 4};
  CHECK(nn::end_tokens(m, *opt) == Ids{9, 4});
  std::string& file = m.config.token_settings.generation_config;
  for (const char* none : {"{}", R"({"eos_token_id": null, "top_k": 5})"}) {
    file = none;
    CHECK(nn::end_tokens(m, *opt) == Ids{9, 4});
  }
  file = R"({"eos_token_id": 7.0})";
  CHECK(nn::end_tokens(m, *opt) == Ids{7});
  file = R"({"eos_token_id": [2, 300, 260]})";  // the model has 261 rows
  CHECK(nn::end_tokens(m, *opt) == Ids{2, 260});
  for (const char* bad :
       {"[1]", "{", R"({"eos_token_id": "x"})", R"({"eos_token_id": [1, 2.5]})"}) {
    file = bad;
    CHECK(contains(message([&] { nn::end_tokens(m, *opt); }), "generation_config.json: "));
  }
}

TEST_CASE("text generation: settings of generation_config.json that are not applied are named") {
  nn::LoadedModel m = tiny();
  nn::TextGeneration what;
  what.tokens = 16;
  auto left = [&](const std::string& json) {
    m.config.token_settings.generation_config = json;
    const std::string line = nn::unapplied_settings(m, what, 4);
    const std::string start = "generation_config.json: not applied: ";
    return line.substr(line.empty() ? 0 : line.find(start) + start.size());
  };
  CHECK(left("") == "");
  CHECK(left(R"({"repetition_penalty": 1.3, "no_repeat_ngram_size": 2})") ==
        "repetition_penalty = 1.3, no_repeat_ngram_size = 2");
  CHECK(left(R"({"suppress_tokens": [7, 64], "forced_eos_token_id": 0, "num_beams": 4})") ==
        "suppress_tokens, forced_eos_token_id = 0, num_beams = 4");
  CHECK(left(R"({"some_new_key": true})") == "some_new_key = true");
  CHECK(left(R"({"_from_model_config": true, "eos_token_id": 2, "use_cache": true, "min_length": 0,
                 "num_beams": 1, "bad_words_ids": null, "repetition_penalty": 1.0, "top_k": 20,
                 "transformers_version": "5.0", "do_sample": false, "temperature": 0.6})") == "");
  CHECK(left(R"({"max_length": 19, "max_new_tokens": null})") == "max_length = 19");
  CHECK(left(R"({"max_length": 20})") == "");
  CHECK(left(R"({"max_new_tokens": 16, "max_length": 5})") == "");
  CHECK(left(R"({"max_new_tokens": 15})") == "max_new_tokens = 15");
  const std::string samples =
      R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "min_p": 0.1})";
  CHECK(left(samples) == "temperature = 0.6, top_p = 0.9, min_p = 0.1");
  what.how.top_p = 0.5;
  CHECK(left(samples) == "temperature = 0.6, min_p = 0.1");
  what.how.temperature = 0;
  CHECK(left(samples) == "");
}

TEST_CASE("text generation: any of the end tokens ends a continuation") {
  const auto opt = tokenizer();
  nn::LoadedModel m = tiny();
  nn::TextGeneration what;
  what.prompt = {"the king"};
  what.how.temperature = 0;
  what.tokens = 12;
  what.ignore_eos = true;
  auto added = [&] {
    nn::Generation g = nn::begin_generation(m, *opt, what, what.prompts(), 5);
    g.run();
    const nn::Sequence& s = g.sequences()[0];
    return Ids(s.ids.begin() + s.prompt_tokens, s.ids.end());
  };
  const Ids all = added();
  REQUIRE(all.size() == 12);
  what.ignore_eos = false;
  m.config.token_settings.generation_config =
      "{\"eos_token_id\": [2, " + std::to_string(all[5]) + "]}";
  const auto first = std::find(all.begin(), all.end(), all[5]);
  CHECK(added() == Ids(all.begin(), first + 1));
}

TEST_CASE("text generation: the request has the seed, the vocabulary and the runtime options") {
  const auto opt = tokenizer();
  nn::TextGeneration what;
  what.k = 5;
  what.query_skip = 3;
  what.tokens = 9;
  const nn::GenerationRequest r = what.request(*opt, {}, 11);
  CHECK(r.seed == 11);
  CHECK(r.tokens == 9);
  CHECK(r.options.k == 5);
  CHECK(r.options.query_skip == 3);
  CHECK(r.vocabulary == opt->vocab_size());
  CHECK_FALSE(r.keep_states);
  what.save_state = "state";
  CHECK(what.request(*opt, {}, 11).keep_states);
}

TEST_CASE("text generation: saved and continued through files it gives the text of one go") {
  Scratch scratch;
  const auto opt = tokenizer();
  nn::LoadedModel m = tiny();
  nn::TextGeneration what;
  what.prompt = {"the king", "city"};
  what.ignore_eos = true;
  what.tokens = 12;
  auto texts = [&](const nn::TextGeneration& part) {
    nn::Generation g = nn::begin_generation(m, *opt, part, part.prompts(), 5);
    CHECK(nn::texts_of(g, *opt).size() == 2);
    g.run();
    if (!part.save_state.empty()) g.save(part.save_state, m.hash());
    return nn::texts_of(g, *opt);
  };
  const Texts whole = texts(what);
  CHECK(whole[0].starts_with("the king"));
  what.tokens = 5;
  what.save_state = (scratch / "state").string();
  CHECK(whole[1].starts_with(texts(what)[1].substr(0, 4)));
  what.load_state = what.save_state;
  what.save_state = "";
  what.prompt.clear();
  what.tokens = 7;
  CHECK(texts(what) == whole);
}

TEST_CASE(
    "text generation: a prompt begins as the tokenizer's template says, behind a state it goes "
    "on") {
  Scratch scratch;
  const auto bos = with_bos(), plain = tokenizer();
  nn::LoadedModel m = tiny();
  nn::TextGeneration what;
  what.prompt = {"hi", "", "</s>hi"};
  what.ignore_eos = true;
  what.tokens = 2;
  what.save_state = (scratch / "state").string();
  Texts warnings;
  nn::Generation g = nn::begin_generation(m, *bos, what, what.prompts(), 5,
                                          [&](const std::string& w) { warnings.push_back(w); });
  const int32_t h = *bos->id_of("h"), i = *bos->id_of("i");
  CHECK(g.sequences()[0].ids == Ids{2, h, i});
  CHECK(g.sequences()[1].ids == Ids{2});
  CHECK(g.sequences()[2].ids == Ids{2, 2, h, i});
  CHECK(nn::texts_of(g, *bos) == Texts{"hi", "", "</s>hi"});
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "prompt 3: the text begins with </s>"));
  g.run();
  g.save(what.save_state, m.hash());
  const Ids before = g.sequences()[0].ids;
  what.load_state = what.save_state;
  nn::GenerationMemory needed;
  auto refuse = [&](const nn::GenerationMemory& memory) {
    needed = memory;
    return false;
  };
  nn::begin_generation(m, *bos, what, {"h", "h", "h"}, 5, {}, refuse);
  CHECK(needed.tokens > int64_t(before.size()));
  CHECK(needed.state > 0);
  nn::Generation more = nn::begin_generation(m, *bos, what, {"h", "h", "h"}, 5);
  Ids longer = before;
  longer.push_back(h);
  CHECK(more.sequences()[0].ids == longer);
  // Without a template a text begins with itself, and an empty one with the BOS.
  what.load_state.clear();
  nn::Generation bare = nn::begin_generation(m, *plain, what, {"hi", ""}, 5);
  CHECK(bare.sequences()[0].ids == Ids{h, i});
  CHECK(bare.sequences()[1].ids == Ids{2});
  const auto none = data::BpeTrainer({.vocab_size = 257, .special = {"[PAD]"}}).train();
  CHECK_REFUSES(nn::begin_generation(m, *none, what, {"a", ""}, 5),
                "generate: prompt 2: the text is empty");
}

}  // namespace brine::test
