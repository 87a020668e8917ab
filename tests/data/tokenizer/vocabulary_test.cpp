// Tokenizers made from the metadata of GGUF files.
#include "data/tokenizer/vocabulary.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "data/corpus/corpus.h"
#include "data/io/utf8.h"
#include "tests/data/bpe_golden.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;
using nlohmann::json;

namespace {

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
      CHECK(framed(*tokenizer, text) == row["ids"].get<Ids>());
    }
  }
}

TEST_CASE(
    "vocabulary: a role whose id no token has is ignored with a note, unless a text gets it") {
  using V = VocabularyMetadata;
  const Ids ids = make_tokenizer(metadata("smollm"), "model.gguf")->encode("the earth");
  struct Bad {
    std::function<void(V&)> change;
    std::string note;
    std::optional<int32_t> (*role)(const Tokenizer&);
  };
  using T = const Tokenizer&;
  const Bad all[] = {
      {[](V& v) { v.bos = 600; }, "bos_token_id is 600", [](T t) { return t.special().bos; }},
      {[](V& v) { v.eos = -1; }, "eos_token_id is -1", [](T t) { return t.special().eos; }},
      {[](V& v) { v.unknown = 4294967295; }, "unknown_token_id is 4294967295",
       [](T t) { return t.special().unk; }},
      {[](V& v) { v.types[1] = 5; }, "padding_token_id is 1",  // of an unused token
       [](T t) { return t.special().pad; }}};
  for (const Bad& bad : all) {
    CAPTURE(bad.note);
    V vocabulary = metadata("smollm");
    bad.change(vocabulary);
    const auto tokenizer = make_tokenizer(vocabulary, "model.gguf");
    CHECK_FALSE(bad.role(*tokenizer).has_value());
    REQUIRE(tokenizer->notes().size() == 1);
    check_says(tokenizer->notes()[0], {"model.gguf: " + bad.note, "600 tokens", "ignored"});
    CHECK(tokenizer->encode("the earth") == ids);
    CHECK(framed(*tokenizer, "the earth") == ids);
    vocabulary.add_bos = vocabulary.add_eos = true;
    const auto adds = make_tokenizer(vocabulary, "model.gguf");
    CHECK(adds->encode("the earth") == ids);
    const std::string refusal = test::message([&] { adds->around(); });
    if (vocabulary.unknown == 3 && vocabulary.types[1] == 3)
      check_says(refusal, {"model.gguf: ", "add_" + bad.note.substr(0, 3) + "_token"});
    else
      CHECK(refusal == "no error");
  }
  V none = metadata("llama-bpe");  // adds a BOS unless the file says otherwise
  none.bos.reset();
  CHECK_REFUSES(make_tokenizer(none, "model.gguf")->around(), "add_bos_token");
  none.add_bos = false;
  CHECK(make_tokenizer(none, "model.gguf")->around().front.empty());
}

// As src/llama-vocab.cpp of llama.cpp has them.
TEST_CASE("vocabulary: every name that llama.cpp reads alike is the same tokenizer") {
  const std::pair<const char*, std::vector<const char*>> groups[] = {
      {"gpt-2",
       {"phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat", "a.x-4.0", "mellum",
        "modern-bert", "exaone4", "mpt", "olmo", "jais", "trillion", "granite-docling"}},
      {"smollm", {"starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}},
      {"llama-bpe",
       {"llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "jina-v5-nano"}},
      {"dbrx", {"smaug-bpe"}},
      {"qwen2", {"deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan"}}};
  std::vector<std::string> hashes;
  for (const auto& [name, others] : groups) {
    const auto first = make_tokenizer(metadata(name), "model.gguf");
    const Ids ids = framed(*first, "it's 12345 THE earth");
    // Llama 3's adds a BOS.
    CHECK((ids[0] == 0) == (std::string(name) == "llama-bpe"));
    for (const char* other : others) {
      CAPTURE(other);
      const auto same = make_tokenizer(metadata(other), "model.gguf");
      CHECK(same->hash() == first->hash());
      CHECK(framed(*same, "it's 12345 THE earth") == ids);
    }
    CHECK(std::count(hashes.begin(), hashes.end(), first->hash()) == 0);
    hashes.push_back(first->hash());
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
  const Ids ids = framed(*tokenizer, "the</s> earth");
  REQUIRE(ids.size() > 3);
  CHECK(ids.front() == 0);
  CHECK(ids.back() == 2);
  Scratch scratch;
  const std::string dir = scratch / "saved";
  tokenizer->save(dir);
  const auto again = load_tokenizer(dir);
  CHECK(framed(*again, "the</s> earth") == ids);
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
    check_says(test::message(make), parts);
    CHECK(test::message(make).starts_with("model.gguf: "));
    CHECK(test::message(make).find('\n') == std::string::npos);
  };
  using V = VocabularyMetadata;
  refuses([](V& v) { v.model = "llama"; }, {"model", "'llama'", "'gpt2'"});
  refuses([](V& v) { v.pre = "deepseek\nllm"; }, {"'deepseek\\x0allm'", "smollm", "qwen2"});
  refuses([](V& v) { v.pre = ""; }, {"tokenizer.ggml.pre", "convert", "llama.cpp"});
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
  refuses([](V& v) { v.chat_template = "\xc3"; }, {"chat template", "UTF-8"});
}
