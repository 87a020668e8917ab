// Training: the golden tokenizer to the byte, determinism, ties, edges.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "data/corpus/corpus.h"
#include "data/io/json.h"
#include "data/io/utf8.h"
#include "data/tokenizer/bpe/bpe.h"
#include "data/tokenizer/pretokenize.h"
#include "tensor/base/error.h"
#include "tests/data/bpe_golden.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using test::kTokenizerGolden;

namespace {

std::unique_ptr<BpeTokenizer> trained(std::string_view text, BpeTrainOptions options) {
  BpeTrainer trainer(std::move(options));
  trainer.add(text);
  return trainer.train();
}

// Counts every pair anew for every merge, in words of ids.
std::vector<std::pair<int32_t, int32_t>> naive_training(const BpeTokenizer& start,
                                                        const std::string& text, int merges) {
  std::map<std::string, int64_t> counts;
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    end = gpt2_word_end(text, at);
    ++counts[text.substr(at, end - at)];
  }
  std::vector<std::pair<std::vector<int32_t>, int64_t>> words;
  for (const auto& [word, count] : counts) words.emplace_back(start.encode(word), count);
  std::vector<std::pair<int32_t, int32_t>> learned;
  auto next = int32_t(start.vocab_size());
  for (; int(learned.size()) < merges; ++next) {
    std::map<std::pair<int32_t, int32_t>, int64_t> pairs;
    for (const auto& [ids, count] : words)
      for (size_t i = 0; i + 1 < ids.size(); ++i) pairs[{ids[i], ids[i + 1]}] += count;
    auto best = pairs.begin();
    for (auto it = pairs.begin(); it != pairs.end(); ++it)
      if (it->second > best->second) best = it;
    learned.push_back(best->first);
    for (auto& [ids, count] : words)
      for (size_t i = 0; i + 1 < ids.size(); ++i)
        if (std::pair{ids[i], ids[i + 1]} == best->first) {
          ids[i] = next;
          ids.erase(ids.begin() + int64_t(i) + 1);
        }
  }
  return learned;
}

}  // namespace

TEST_CASE("bpe training: the golden tokenizer to the byte") {
  const auto tokenizer = train_bpe({kTokenizerGolden + "text.txt"}, {.vocab_size = 600});
  CHECK(tokenizer->to_json() == read_text(kTokenizerGolden + "tokenizer.json"));
}

TEST_CASE("bpe training: counts kept up to date are counts made anew") {
  // Runs of one letter, pairs that overlap, words that contain a pair twice.
  const std::string text =
      "aaaa aaaaa aaab baaab abab ababab abcabc bcbcb cab cabb aabb bbaa ccc cccc abcc "
      "aaaa abab cab the then there other another bother banana bananas anana";
  const BpeTrainOptions bytes{.vocab_size = 256, .min_count = 1, .special = {}};
  const auto start = trained("x", bytes);
  const auto expected = naive_training(*start, text, 30);
  const auto tokenizer = trained(text, {.vocab_size = 286, .min_count = 1, .special = {}});
  CHECK(tokenizer->model().merges == expected);
}

TEST_CASE("bpe training: the same text in any pieces and any order of files") {
  test::Scratch scratch;
  const std::string text = read_text(kTokenizerGolden + "text.txt");
  const size_t cut = text.find("\n", text.size() / 2) + 1;
  const std::string one = scratch / "one", two = scratch / "two";
  test::write_text(one, text.substr(0, cut));
  test::write_text(two, text.substr(cut));
  const BpeTrainOptions options{.vocab_size = 700};
  const auto forth = train_bpe({one, two}, options), back = train_bpe({two, one}, options);
  CHECK(forth->to_json() == back->to_json());
  CHECK(forth->hash() == back->hash());
  CHECK(forth->hash() == train_bpe({one, two}, options)->hash());
}

TEST_CASE("bpe training: the most frequent pair, of the smallest ids among equals") {
  // "ba" and "dc" occur twice, "xy" three times; b comes before d.
  const auto tokenizer =
      trained("ba.dc.xy.ba.dc.xy.xy.qr", {.vocab_size = 400, .min_count = 2, .special = {}});
  REQUIRE(tokenizer->model().merges.size() == 3);
  CHECK(tokenizer->token_of(256) == "xy");
  CHECK(tokenizer->token_of(257) == "ba");
  CHECK(tokenizer->token_of(258) == "dc");
  CHECK(tokenizer->vocab_size() == 259);  // the text has no more pairs seen twice
}

TEST_CASE("bpe training: special tokens are never learned from the text") {
  const auto tokenizer = trained(
      "PAD PAD PAD PADS", {.vocab_size = 300, .min_count = 1, .special = {"PAD", "\u0120PA"}});
  CHECK(tokenizer->encode("PAD") == std::vector<int32_t>{0});
  for (auto [left, right] : tokenizer->model().merges) {
    CHECK(left >= 2);
    CHECK(right >= 2);
  }
  CHECK(tokenizer->decode(tokenizer->encode("x PADS PAPAD")) == "x PADS PAPAD");
}

TEST_CASE("bpe training: an encoder's tokenizer puts [CLS] and [SEP] around a text") {
  const std::unique_ptr<Tokenizer> made =
      trained("a", {.special = special_tokens(SpecialTokens::encoder)});
  test::Scratch scratch;
  made->save(scratch / "tok");
  const std::unique_ptr<Tokenizer> read = load_tokenizer(scratch / "tok");
  for (const auto& tokenizer : {made.get(), read.get()}) {
    CHECK(tokenizer->around().front == std::vector<int32_t>{2});
    CHECK(tokenizer->around().back == std::vector<int32_t>{3});
    CHECK(tokenizer->special().pad == 0);
    CHECK(tokenizer->special().mask == 4);
  }
  CHECK(read->to_json() == made->to_json());
  const auto post = brine::parse_json(read_text(scratch / "tok/tokenizer.json"))["post_processor"];
  auto part = [](const char* kind, const char* id, int type) {
    return nlohmann::json{{kind, {{"id", id}, {"type_id", type}}}};
  };
  const auto cls = part("SpecialToken", "[CLS]", 0), sep = part("SpecialToken", "[SEP]", 0),
             a = part("Sequence", "A", 0);
  CHECK(post["single"] == nlohmann::json{cls, a, sep});
  CHECK(post["pair"] ==
        nlohmann::json{cls, a, sep, part("Sequence", "B", 1), part("SpecialToken", "[SEP]", 1)});
  const auto config = brine::parse_json(read_text(scratch / "tok/tokenizer_config.json"));
  CHECK(config["tokenizer_class"] == "PreTrainedTokenizerFast");
  CHECK(config["cls_token"] == "[CLS]");
  CHECK(config["pad_token"] == "[PAD]");
  CHECK(config["model_input_names"][1] == "token_type_ids");
  // One without the two tokens has nothing to put around a text.
  CHECK(trained("a", {.special = {"[CLS]"}})->around().front.empty());
}

TEST_CASE("bpe training: invalid options are refused") {
  CHECK_THROWS_WITH_AS(BpeTrainer({.vocab_size = 259}), doctest::Contains("at least 260"), Error);
  CHECK_THROWS_WITH_AS(train_bpe({}, {}), doctest::Contains("no text"), Error);
  CHECK_THROWS_WITH_AS(trained("a\xc3(", {}), doctest::Contains("byte offset 1"), Error);
  CHECK_REFUSES(trained("a", {.special = {"<s>", "<s>"}}), "'<s>'");
  CHECK(trained("", {.vocab_size = 260})->vocab_size() == 260);
}
