// What the tokens of a text begin with: the tokenizer's template, once.
#include "data/tokenizer/prompt_tokens.h"

#include <doctest/doctest.h>

#include "data/tokenizer/bpe/bpe.h"
#include "tests/data/bpe_golden.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using nlohmann::json;
using test::Scratch;

namespace {

// OPT's special tokens, ids 0 to 3, and bytes; `post` in tokenizer.json and `config` next to it.
std::unique_ptr<Tokenizer> with(const json& post, const json& config = json::object()) {
  Scratch scratch;
  json root = json::parse(BpeTrainer({.vocab_size = 261}).train()->to_json());
  root["post_processor"] = post;
  scratch.write("tokenizer.json", root.dump());
  scratch.write("tokenizer_config.json", config.dump());
  return load_tokenizer(scratch.path().string());
}

// </s> (2) in front of a text, and <pad> (1) after it if `end`.
json in_front(bool end = false) {
  auto special = [](const char* name) {
    return json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}};
  };
  auto text = [](const char* name, int type) {
    return json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  auto entry = [](const char* name, int id) {
    return json{{"id", name}, {"ids", {id}}, {"tokens", {name}}};
  };
  json single = {special("</s>"), text("A", 0)};
  if (end) single.push_back(special("<pad>"));
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", {special("</s>"), text("A", 0), text("B", 1)}},
          {"special_tokens", {{"</s>", entry("</s>", 2)}, {"<pad>", entry("<pad>", 1)}}}};
}

struct Read {
  Ids ids;
  std::string warning;
};

Read read(const Tokenizer& tokenizer, const std::string& text) {
  Read out;
  out.ids = prompt_tokens(tokenizer, text, [&](const std::string& w) { out.warning += w; });
  return out;
}

int32_t byte(const Tokenizer& tokenizer, const char* spelling) {
  return tokenizer.id_of(spelling).value();
}

}  // namespace

TEST_CASE(
    "prompt tokens: a text has the tokens of the template, and one that repeats them is warned "
    "of") {
  const auto none = with(nullptr), bos = with(in_front()), both = with(in_front(true));
  const int32_t h = byte(*none, "h"), i = byte(*none, "i");
  CHECK(none->around().front.empty());
  CHECK(bos->around().front == Ids{2});
  CHECK(both->around().front == Ids{2});
  CHECK(read(*none, "hi").ids == Ids{h, i});
  CHECK(read(*bos, "hi").ids == Ids{2, h, i});
  CHECK(read(*both, "hi").ids == Ids{2, h, i, 1});
  CHECK(read(*bos, "hi").warning.empty());
  CHECK(read(*none, "</s>hi").warning.empty());
  const Read twice = read(*bos, "</s>hi");
  CHECK(twice.ids == Ids{2, 2, h, i});
  test::check_says(twice.warning, {"begins with </s>", "twice"});
  CHECK(prompt_tokens(*bos, "</s>hi", {}) == twice.ids);
  CHECK(read(*bos, "hi</s>").warning.empty());
}

TEST_CASE("prompt tokens: an empty text is the BOS alone") {
  CHECK(read(*with(in_front()), "").ids == Ids{2});
  CHECK(read(*with(nullptr, {{"bos_token", "<s>"}}), "").ids == Ids{0});
  const auto none = BpeTrainer({.vocab_size = 257, .special = {"[PAD]"}}).train();
  CHECK_REFUSES(prompt_tokens(*none, "", {}), "empty", "no BOS");
  const auto encoder =
      BpeTrainer({.vocab_size = 261, .special = special_tokens(SpecialTokens::encoder)}).train();
  CHECK(read(*encoder, "").ids == Ids{2, 3});
}

TEST_CASE("prompt tokens: tokenizer.json alone says what is added to a text") {
  const json config = {{"bos_token", "</s>"}, {"add_bos_token", true}};
  CHECK(with(nullptr, config)->around().front.empty());
  CHECK(with(in_front(), {{"add_bos_token", false}})->around().front == Ids{2});
}

TEST_CASE("prompt tokens: a text that continues another one has nothing in front") {
  const auto bos = with(in_front());
  const int32_t h = byte(*bos, "h"), i = byte(*bos, "i");
  CHECK(continuation_tokens(*bos, "hi") == Ids{h, i});
  CHECK(continuation_tokens(*bos, "").empty());
  // A tokenizer that reads a text as if it began with a space.
  json root = json::parse(BpeTrainer({.vocab_size = 261}).train()->to_json());
  root["pre_tokenizer"]["add_prefix_space"] = true;
  Scratch scratch;
  const auto spaced = load_tokenizer(scratch.write("tokenizer.json", root.dump()));
  CHECK(spaced->encode("hi") == Ids{byte(*spaced, "\u0120"), h, i});
  CHECK(continuation_tokens(*spaced, "hi") == Ids{h, i});
}
