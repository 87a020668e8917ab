// Every kind of tokenizer against the golden encodings: ids, pairs, truncation, type ids, offsets.
#include <doctest/doctest.h>

#include <random>

#include "data/codec/sha256.h"
#include "data/tokenizer/normalize/normalizer.h"
#include "data/tokenizer/tokenizer.h"
#include "data/unicode/unicode.h"
#include "tensor/base/error.h"
#include "tests/data/bpe_golden.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using nlohmann::json;
using test::golden_json;
using test::kTokenizerGolden;
using test::Scratch;
using test::write_text;

namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> changed(const json& set) {
  Scratch scratch;
  json root = golden_json(set["file"].get<std::string>());
  root.update(set["change"]);
  const std::string path = scratch / "tokenizer.json";
  write_text(path, root.dump());
  return load_tokenizer(path);
}

std::vector<size_t> flat(const std::vector<TextSpan>& spans) {
  std::vector<size_t> out;
  for (const TextSpan& span : spans) out.insert(out.end(), {span.begin, span.end});
  return out;
}

// Checks one row; the number of its tokens.
size_t check_row(const Tokenizer& tokenizer, const json& row) {
  const auto first = row["first"].get<std::string>();
  std::optional<std::string> second;
  if (row.contains("second")) second = row["second"].get<std::string>();
  const int64_t max_tokens = row.value("most", INT64_MAX);
  CAPTURE(first);
  CAPTURE(second.value_or("(none)"));
  CAPTURE(max_tokens);
  const Encoding got = tokenizer.encode_pair(first, second, max_tokens);
  CHECK(got.ids == row["ids"].get<Ids>());
  CHECK(flat(got.offsets) == row["offsets"].get<std::vector<size_t>>());
  REQUIRE(got.type_ids.size() == got.ids.size());
  REQUIRE(got.special_mask.size() == got.ids.size());
  REQUIRE(got.sequence.size() == got.ids.size());
  if (row.contains("types")) {
    CHECK(got.type_ids == row["types"].get<Ids>());
    CHECK(got.special_mask == row["mask"].get<std::vector<uint8_t>>());
    CHECK(got.sequence == row["sequence"].get<std::vector<int8_t>>());
  }
  if (!second && max_tokens == INT64_MAX) {
    Ids inside;
    for (size_t i = 0; i < got.ids.size(); ++i)
      if (got.special_mask[i] == 0) inside.push_back(got.ids[i]);
    CHECK(tokenizer.encode(first) == inside);
  }
  return got.ids.size();
}

const json& encodings() {
  static const json value = golden_json("encodings.json");
  return value;
}

}  // namespace

TEST_CASE("encodings: all golden rows") {
  REQUIRE(encodings()["sets"].size() == 11);
  size_t tokens = 0;
  for (const json& set : encodings()["sets"]) {
    CAPTURE(set["file"].get<std::string>());
    CAPTURE(set["change"].dump());
    const auto tokenizer = changed(set);
    for (const json& row : set["rows"]) tokens += check_row(*tokenizer, row);
  }
  CHECK(tokens > 10000);
}

TEST_CASE("encodings: WordPiece decodes as the golden texts") {
  const auto tokenizer = load_tokenizer(kTokenizerGolden + "wordpiece.json");
  for (const json& row : encodings()["decoded"]) {
    CHECK(tokenizer->decode(row["ids"].get<Ids>()) == row["text"].get<std::string>());
    CHECK(tokenizer->decode(row["ids"].get<Ids>(), true) == row["skipped"].get<std::string>());
  }
}

TEST_CASE("encodings: every mark joins its character unless one before it blocks it") {
  const Normalizer normalizer(json{{"type", "NFC"}}, "test");
  auto composed = [&](const std::string& text) { return normalizer.apply(text).text; };
  CHECK(composed("a\u0301") == "\u00e1");
  CHECK(composed("a\u0346\u0301") == "a\u0346\u0301");  // both of class 230
  CHECK(composed("a\u0316\u0301") == "\u00e1\u0316");   // 220, 230
}

TEST_CASE("encodings: every character is normalized as the golden ones") {
  const json golden = golden_json("characters.json");
  REQUIRE(golden.size() == 7);
  for (const auto& [name, item] : golden.items()) {
    CAPTURE(name);
    const Normalizer normalizer(item["normalizer"], "test");
    Sha256 hash;
    for (uint32_t c = 0; c < 0x110000; ++c) {
      if (c >= 0xd800 && c < 0xe000) continue;
      std::string text = "a\u0345";
      append_utf8(text, c);
      hash.update(normalizer.apply(text + "\u0334|").text);
    }
    CHECK(hash.hex() == item["sha256"].get<std::string>());
  }
}

TEST_CASE("encodings: offsets are between characters, ascend, and ids do not depend on them") {
  std::mt19937 draw(23);
  for (const char* file : {"wordpiece.json", "tokenizer.json", "variants.json"}) {
    const auto tokenizer = load_tokenizer(kTokenizerGolden + file);
    for (int turn = 0; turn < 60; ++turn) {
      std::string text;
      for (int i = 0; i < 200; ++i) {
        const uint32_t below[] = {0x80, 0x80, 0x250, 0x400, 0x3100, 0x20000};
        const uint32_t c = draw() % below[draw() % 6];
        append_utf8(text, c >= 0xd800 && c < 0xe000 ? ' ' : c);
      }
      const Encoding e = tokenizer->encode_pair(text);
      Ids inside;
      size_t before = 0;
      for (size_t i = 0; i < e.ids.size(); ++i) {
        if (e.special_mask[i] != 0) continue;
        inside.push_back(e.ids[i]);
        const TextSpan span = e.offsets[i];
        CHECK(span.begin >= before);
        CHECK(span.end >= span.begin);
        REQUIRE(span.end <= text.size());
        for (size_t at : {span.begin, span.end})
          CHECK((at == text.size() || (uint8_t(text[at]) & 0xc0) != 0x80));
        before = span.begin;
      }
      CHECK(inside == tokenizer->encode(text));
    }
  }
}

TEST_CASE("encodings: invalid input is refused") {
  const auto tokenizer = load_tokenizer(kTokenizerGolden + "wordpiece.json");
  CHECK_THROWS_WITH_AS(tokenizer->encode_pair("a", std::nullopt, 1),
                       "tokenizer: max_tokens = 1, but 2 tokens are added to a text", Error);
  CHECK_THROWS_WITH_AS(tokenizer->encode_pair("a", "b", 2),
                       "tokenizer: max_tokens = 2, but 3 tokens are added to a pair", Error);
  CHECK(tokenizer->encode_pair("a", "b", 3).ids == Ids{2, 3, 3});
  CHECK_THROWS_WITH_AS(tokenizer->encode_pair("ok", "a\xe2\x82"),
                       "tokenizer: the text is not UTF-8 at byte offset 1", Error);
  CHECK_THROWS_WITH_AS(tokenizer->decode(Ids{700000}), doctest::Contains("outside the vocabulary"),
                       Error);
}
