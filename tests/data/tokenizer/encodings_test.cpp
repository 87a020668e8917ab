// Every kind of tokenizer against the golden encodings: ids, and pairs and cuts of tasks.
#include <doctest/doctest.h>

#include "data/codec/checksums.h"
#include "data/tasks/task_tokens.h"
#include "data/tokenizer/normalize/normalizer.h"
#include "data/tokenizer/tokenizer.h"
#include "data/unicode/unicode.h"
#include "tensor/base/error.h"
#include "tests/data/bpe_golden.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;
using nlohmann::json;

namespace {

std::unique_ptr<Tokenizer> changed(const json& set) {
  Scratch scratch;
  json root = golden_json(set["file"].get<std::string>());
  root.update(set["change"]);
  const std::string path = scratch / "tokenizer.json";
  write_text(path, root.dump());
  return load_tokenizer(path);
}

const json& encodings() {
  static const json value = golden_json("encodings.json");
  return value;
}

}  // namespace

TEST_CASE("encodings: all golden rows") {
  REQUIRE(encodings()["sets"].size() == 10);
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
  auto composed = [&](const std::string& text) { return normalizer.apply(text); };
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
      hash.update(normalizer.apply(text + "\u0334|"));
    }
    CHECK(hash.hex() == item["sha256"].get<std::string>());
  }
}

TEST_CASE("encodings: pairs and cut texts of tasks are the golden ones") {
  const auto tokenizer = load_tokenizer(kTokenizerGolden + "wordpiece.json");
  REQUIRE(encodings()["framed"].size() > 50);
  for (const json& row : encodings()["framed"]) {
    CAPTURE(row.dump());
    const TextEncoder encoder(*tokenizer, row.value("most", INT32_MAX));
    const auto first = row["first"].get<std::string>();
    const TextTokens got = row.contains("second")
                               ? encoder.encode_pair(first, row["second"].get<std::string>())
                               : encoder.encode(first);
    CHECK(got.ids == row["ids"].get<Ids>());
    CHECK(got.first == row["segment"].get<int64_t>());
  }
}

TEST_CASE("encodings: invalid input is refused") {
  const auto tokenizer = load_tokenizer(kTokenizerGolden + "wordpiece.json");
  CHECK_THROWS_WITH_AS(tokenizer->encode("a\xe2\x82"),
                       "tokenizer: the text is not UTF-8 at byte offset 1", Error);
  CHECK_REFUSES(tokenizer->decode(Ids{700000}), "outside the vocabulary");
}
