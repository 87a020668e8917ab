// BERT's, GPT-2's and OPT's tokenizers over whole corpora: counts and hashes of ids as Hugging
// Face's `tokenizers` makes them. Needs the development data; skipped without it.
#include <doctest/doctest.h>

#include <filesystem>
#include <iostream>
#include <map>

#include "data/corpus/corpus.h"
#include "data/io/utf8.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/data/bpe_golden.h"
#include "tests/skip.h"

using namespace brine::data;
using namespace brine::test;

TEST_CASE("tokenizer: BERT, GPT-2 and OPT ids over whole corpora (needs development data)") {
  if (!std::filesystem::exists(kSharedData + "tokenizers")) {
    return brine::test::skip("BRINE_TEST_DATA names no folder with tokenizers");
  }
  std::map<std::string, std::unique_ptr<Tokenizer>> tokenizers;
  for (const char* name : {"gpt2", "opt", "bert-base-uncased"})
    tokenizers[name] = load_tokenizer(kSharedData + "tokenizers/" + name);
  CHECK(tokenizers["gpt2"]->vocab_size() == 50257);
  CHECK(tokenizers["gpt2"]->special().eos == 50256);
  CHECK_FALSE(tokenizers["gpt2"]->special().pad.has_value());
  CHECK(tokenizers["opt"]->vocab_size() == 50265);
  CHECK(tokenizers["opt"]->special().bos == 2);
  CHECK(tokenizers["opt"]->special().pad == 1);
  CHECK(tokenizers["opt"]->around().front == std::vector<int32_t>{2});
  CHECK(tokenizers["gpt2"]->around().front.empty());
  CHECK(tokenizers["bert-base-uncased"]->vocab_size() == 30522);
  CHECK(tokenizers["bert-base-uncased"]->around().front == std::vector<int32_t>{101});
  CHECK(tokenizers["bert-base-uncased"]->around().back == std::vector<int32_t>{102});
  int checked = 0;
  for (const auto& row : golden_json("shared.json")) {
    const auto file = row["file"].get<std::string>();
    if (!std::filesystem::exists(kSharedData + file)) {
      MESSAGE("no " << file);
      continue;
    }
    CAPTURE(file);
    const Tokenizer& tokenizer = *tokenizers.at(row["tokenizer"].get<std::string>());
    const std::string text = read_text(kSharedData + file);
    const std::vector<int32_t> tokens = tokenizer.encode(text);
    const TokenCorpus corpus{.tokens = std::make_shared<TokenList>(tokens), .window_tokens = 2};
    CHECK(tokens.size() == row["count"]);
    CHECK(corpus.hash() == row["sha256"]);
    if (row["tokenizer"] != "bert-base-uncased") CHECK(tokenizer.decode(tokens) == text);
    ++checked;
  }
  CHECK(checked > 0);
}
