// Encoding and decoding against the golden ids, on any text, from several threads.
#include "data/tokenizer/bpe/bpe.h"

#include <doctest/doctest.h>

#include <random>
#include <thread>

#include "data/corpus/corpus.h"
#include "data/unicode/unicode.h"
#include "tensor/base/error.h"
#include "tests/data/bpe_golden.h"
#include "tests/refusals.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

const Tokenizer& small() {
  static const auto tokenizer = load_tokenizer(kTokenizerGolden + "tokenizer.json");
  return *tokenizer;
}

// Merges of BPE as the definition has them: the whole word looked over for every merge.
Ids naive_merges(const BpeModel& model, Ids ids) {
  while (true) {
    size_t best = model.merges.size(), at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const std::pair pair{ids[i], ids[i + 1]};
      const auto rank =
          size_t(std::find(model.merges.begin(), model.merges.end(), pair) - model.merges.begin());
      if (rank < best) {
        best = rank;
        at = i;
      }
    }
    if (best == model.merges.size()) return ids;
    const std::string whole = model.tokens[size_t(ids[at])] + model.tokens[size_t(ids[at + 1])];
    ids[at] =
        int32_t(std::find(model.tokens.begin(), model.tokens.end(), whole) - model.tokens.begin());
    ids.erase(ids.begin() + int64_t(at) + 1);
  }
}

std::string random_text(std::mt19937& draw, int characters) {
  std::string text;
  for (int i = 0; i < characters; ++i) {
    const uint32_t below[] = {0x80, 0x100, 0x800, 0x3100, 0x10000, 0x110000};
    uint32_t c = draw() % below[draw() % 6];
    append_utf8(text, c >= 0xd800 && c < 0xe000 ? ' ' : c);
  }
  return text;
}

}  // namespace

TEST_CASE("bpe: the golden ids, and the text back") {
  const auto cases = golden_json("cases.json")["tokenizer"];
  REQUIRE(cases.size() > 150);
  for (const auto& item : cases) {
    const auto text = item["text"].get<std::string>();
    CAPTURE(text);
    CHECK(small().encode(text) == item["ids"].get<Ids>());
    CHECK(small().decode(item["ids"].get<Ids>()) == text);
  }
}

TEST_CASE("bpe: golden ids with a prefix space and with added tokens that take white space") {
  const auto tokenizer = load_tokenizer(kTokenizerGolden + "variants.json");
  const auto cases = golden_json("cases.json")["variants"];
  REQUIRE(cases.size() > 50);
  for (const auto& item : cases) {
    const auto text = item["text"].get<std::string>();
    CAPTURE(text);
    CHECK(tokenizer->encode(text) == item["ids"].get<Ids>());
  }
}

TEST_CASE("bpe: any text comes back, also from a cache that has been full") {
  std::mt19937 draw(3);
  for (int i = 0; i < 200; ++i) {
    const std::string text = random_text(draw, 1 + i * 3);
    CHECK(small().decode(small().encode(text)) == text);
  }
  std::string many;
  for (int i = 0; i < 150000; ++i) many += " w" + std::to_string(i * 7919) + "x";
  const Ids once = small().encode(many);
  CHECK(small().encode(many) == once);
  CHECK(small().decode(once) == many);
}

TEST_CASE("bpe: every single byte has a token") {
  for (int32_t byte = 0; byte < 256; ++byte) {
    const Ids ids = {4 + byte};
    CHECK(small().decode(ids).size() == 1);
  }
  // A character that was cut: the bytes of the part.
  const Ids ids = small().encode("\U0001f600");
  REQUIRE(ids.size() > 1);
  const std::string part = small().decode(std::span(ids).first(1));
  CHECK(std::string("\U0001f600").starts_with(part));
}

TEST_CASE("bpe: short and long words merge by the definition") {
  const auto loaded = load_tokenizer(kTokenizerGolden + "tokenizer.json");
  const auto* tokenizer = dynamic_cast<const BpeTokenizer*>(loaded.get());
  MergeTable table;
  const BpeModel& model = tokenizer->model();
  table.reset(model.merges.size());
  for (size_t rank = 0; rank < model.merges.size(); ++rank) {
    auto [left, right] = model.merges[rank];
    const auto id = tokenizer->id_of(model.tokens[size_t(left)] + model.tokens[size_t(right)]);
    table.set(left, right, {uint32_t(rank), *id});
  }
  std::mt19937 draw(11);
  const std::string letters = "aehtndsr";
  for (size_t size : {1, 2, 3, 17, 47, 48, 49, 50, 64, 130, 400}) {
    Ids word;
    for (size_t i = 0; i < size; ++i)
      word.push_back(*tokenizer->id_of(std::string(1, letters[draw() % letters.size()])));
    const Ids expected = naive_merges(model, word);
    Ids out = {-7};
    merge_word(table, word, out);
    CHECK(out[0] == -7);
    CHECK(Ids(out.begin() + 1, out.end()) == expected);
  }
}

TEST_CASE("bpe: a word of a megabyte takes no quadratic time") {
  for (const char* part : {"a", "the", "=", "\u0301"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += part;
    CHECK(small().decode(small().encode(text)) == text);
  }
}

TEST_CASE("bpe: threads share one tokenizer") {
  std::mt19937 draw(5);
  std::vector<std::string> texts;
  std::vector<Ids> expected;
  for (int i = 0; i < 8; ++i) {
    texts.push_back(random_text(draw, 5000));
    expected.push_back(small().encode(texts.back()));
  }
  const auto fresh = load_tokenizer(kTokenizerGolden + "tokenizer.json");
  std::vector<Ids> got(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      for (int turn = 0; turn < 5; ++turn) got[i] = fresh->encode(texts[i]);
    });
  for (auto& thread : threads) thread.join();
  for (size_t i = 0; i < 8; ++i) CHECK(got[i] == expected[i]);
}

TEST_CASE("bpe: invalid models and texts are refused") {
  CHECK_THROWS_WITH_AS(small().encode("abc\xff z"),
                       "tokenizer: the text is not UTF-8 at byte offset 3", Error);
  for (int32_t id : {-1, 600, INT32_MAX}) {
    const Ids ids = {5, id};
    CHECK_REFUSES(small().decode(ids), "outside the vocabulary of 600");
  }
}

TEST_CASE("bpe: names and roles") {
  CHECK(small().vocab_size() == 600);
  CHECK(small().id_of("</s>") == 2);
  CHECK(small().id_of("\u0120the").has_value());
  CHECK(small().token_of(*small().id_of("\u0120the")) == "\u0120the");
  CHECK_FALSE(small().id_of("no such token").has_value());
  const SpecialIds special = small().special();
  CHECK(special.bos == 2);
  CHECK(special.eos == 2);
  CHECK(special.pad == 1);
  CHECK(special.unk == 3);
}
