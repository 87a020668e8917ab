// Tokenizers made from the metadata of GGUF files.
#include "data/tokenizer/vocabulary.h"

#include <doctest/doctest.h>

#include <functional>

#include "data/corpus/corpus.h"
#include "tests/data/bpe_golden.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using nlohmann::json;
using test::check_refuses;
using test::golden_json;
using test::Scratch;

namespace {

using Ids = std::vector<int32_t>;

// The small byte-level vocabulary of the golden files, as GGUF spells one.
VocabularyMetadata metadata(const std::string& pre) {
  const json model = golden_json("tokenizer.json")["model"];
  VocabularyMetadata out;
  out.model = "gpt2";
  out.pre = pre;
  out.tokens.resize(model["vocab"].size());
  for (const auto& [token, id] : model["vocab"].items()) out.tokens[id.get<size_t>()] = token;
  out.types.assign(out.tokens.size(), 1);
  for (size_t id = 0; id < 4; ++id) out.types[id] = 3;
  for (const json& merge : model["merges"])
    out.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  out.bos = 0;
  out.eos = 2;
  out.padding = 1;
  out.unknown = 3;
  return out;
}

json family_named(const std::string& name) {
  const json golden = golden_json("families.json");
  for (const json& set : golden["sets"])
    if (set["name"] == name) return set;
  throw Error("no family " + name);
}

}  // namespace

TEST_CASE("vocabulary: the ids of the tokenizer.json with the same pre-tokenizer") {
  const std::pair<const char*, const char*> families[] = {
      {"smollm", "smollm"}, {"qwen2", "qwen2"}, {"llama-bpe", "llama3"}};
  for (const auto& [pre, name] : families) {
    CAPTURE(pre);
    const json family = family_named(name);
    VocabularyMetadata vocabulary = metadata(pre);
    for (const json& token : family.value("without", json::array()))
      for (size_t id = 0; id < vocabulary.tokens.size(); ++id)
        if (vocabulary.tokens[id] == token) vocabulary.types[id] = 5;
    if (family.contains("merges")) vocabulary.merges.resize(family["merges"].get<size_t>());
    // The added tokens of the family.
    if (family["change"].contains("added_tokens")) {
      vocabulary.tokens.resize(602);
      vocabulary.types.resize(602, 5);
      for (const json& token : family["change"]["added_tokens"]) {
        vocabulary.tokens[token["id"].get<size_t>()] = token["content"];
        vocabulary.types[token["id"].get<size_t>()] = token["special"] ? 3 : 4;
      }
      vocabulary.bos = 600;
      vocabulary.add_bos = name == std::string("llama3");
    }
    const auto tokenizer = make_tokenizer(vocabulary, "model.gguf");
    for (const json& row : family["rows"]) {
      const auto text = row["first"].get<std::string>();
      CAPTURE(text);
      CHECK(tokenizer->encode_pair(text).ids == row["ids"].get<Ids>());
    }
  }
}

TEST_CASE("vocabulary: GPT-2's pre-tokenizer gives the golden ids") {
  const auto tokenizer = make_tokenizer(metadata("gpt-2"), "model.gguf");
  for (const json& item : golden_json("cases.json")["tokenizer"])
    CHECK(tokenizer->encode(item["text"].get<std::string>()) == item["ids"].get<Ids>());
}

TEST_CASE("vocabulary: roles, bos and eos, and what is saved") {
  VocabularyMetadata vocabulary = metadata("llama-bpe");
  vocabulary.add_bos = vocabulary.add_eos = true;
  vocabulary.chat_template = "{{ \"x\" }}\n";
  const auto tokenizer = make_tokenizer(vocabulary, "model.gguf");
  CHECK(tokenizer->special().bos == 0);
  CHECK(tokenizer->special().eos == 2);
  CHECK(tokenizer->special().pad == 1);
  CHECK(tokenizer->special().unk == 3);
  const Ids ids = tokenizer->encode_pair("the</s> earth").ids;
  REQUIRE(ids.size() > 3);
  CHECK(ids.front() == 0);
  CHECK(ids.back() == 2);
  Scratch scratch;
  const std::string dir = scratch / "saved";
  tokenizer->save(dir);
  const auto again = load_tokenizer(dir);
  CHECK(again->encode_pair("the</s> earth").ids == ids);
  CHECK(again->hash() == tokenizer->hash());
  CHECK(again->special().bos == 0);
  CHECK(again->special().eos == 2);
  const json config = json::parse(read_text(dir + "/tokenizer_config.json"));
  CHECK(config["chat_template"] == vocabulary.chat_template);
  CHECK(config["eos_token"] == "</s>");
}

TEST_CASE("vocabulary: what is not supported, and damaged metadata, is refused in one line") {
  auto refuses = [](const std::function<void(VocabularyMetadata&)>& change,
                    std::initializer_list<std::string> parts) {
    VocabularyMetadata vocabulary = metadata("smollm");
    change(vocabulary);
    auto make = [&] { make_tokenizer(vocabulary, "model.gguf"); };
    check_refuses(make, parts);
    CHECK(test::message(make).starts_with("model.gguf: "));
    CHECK(test::message(make).find('\n') == std::string::npos);
  };
  using V = VocabularyMetadata;
  refuses([](V& v) { v.model = "llama"; }, {"model", "'llama'", "'gpt2'"});
  refuses([](V& v) { v.pre = "deepseek\nllm"; }, {"'deepseek\\x0allm'", "smollm", "qwen2"});
  refuses([](V& v) { v.pre = ""; }, {"pre-tokenizer", "''"});
  refuses([](V& v) { v.add_space_prefix = true; }, {"add_space_prefix"});
  refuses([](V& v) { v.tokens.clear(); }, {"0 tokens"});
  refuses([](V& v) { v.types.pop_back(); }, {"types", "tokens"});
  refuses([](V& v) { v.types[7] = 6; }, {"token 7", "type 6"});
  refuses([](V& v) { v.types[7] = -1; }, {"token 7", "type -1"});
  refuses([](V& v) { v.tokens[300] = "\xff"; }, {"token 300", "UTF-8"});
  // The last tokens, of which no merge is made.
  refuses([](V& v) { v.tokens[599] = v.tokens[598]; }, {"both ids", "598", "599"});
  refuses([](V& v) { v.merges[5] = "nowhere e"; }, {"merge 5", "'nowhere'"});
  refuses([](V& v) { v.merges[5] = "e"; }, {"merge 5", "two tokens"});
  refuses([](V& v) { v.bos = 600; }, {"bos_token_id", "600"});
  refuses([](V& v) { v.eos = -1; }, {"eos_token_id", "-1"});
  refuses([](V& v) { v.types[1] = 5; }, {"padding_token_id", "1"});
  refuses(
      [](V& v) {
        v.add_eos = true;
        v.eos.reset();
      },
      {"add_eos_token", "eos_token_id"});
  refuses([](V& v) { v.chat_template = "\xc3"; }, {"chat template", "UTF-8"});
}
