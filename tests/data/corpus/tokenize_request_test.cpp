// What a tokenisation is: which separator follows from the settings and the tokenizer.
#include "data/corpus/tokenize_request.h"

#include <doctest/doctest.h>

#include "data/tokenizer/bpe/bpe.h"
#include "tests/messages.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

std::unique_ptr<Tokenizer> tokenizer(SpecialTokens kind) {
  return BpeTrainer({.vocab_size = 261, .special = special_tokens(kind)}).train();
}

std::vector<std::string> warnings;

TokenizeOptions resolved(const TokenizeRequest& request, const Tokenizer& t) {
  warnings.clear();
  return request.resolve(t, [](const std::string& text) { warnings.push_back(text); });
}

}  // namespace

TEST_CASE("tokenize request: the separator is eos, none, or the token that is spelled out") {
  const auto opt = tokenizer(SpecialTokens::decoder);
  CHECK(resolved({}, *opt).separator == opt->id_of("</s>"));
  CHECK(resolved({.separator = "none"}, *opt).separator == std::nullopt);
  CHECK(resolved({.separator = "<pad>"}, *opt).separator == opt->id_of("<pad>"));
  CHECK(warnings.empty());
  CHECK(contains(message([&] { resolved({.separator = "<x>"}, *opt); }), "<x>"));
}

TEST_CASE("tokenize request: without an eos token there is a warning instead of a separator") {
  const auto bert = tokenizer(SpecialTokens::encoder);
  CHECK(resolved({}, *bert).separator == std::nullopt);
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "eos"));
  resolved({.separator = "none"}, *bert);
  CHECK(warnings.empty());
}

TEST_CASE("tokenize request: joined lines take neither separator nor key") {
  const auto opt = tokenizer(SpecialTokens::decoder);
  const TokenizeOptions lines = resolved({.joining = Joining::lines, .shard_mib = 3}, *opt);
  CHECK(lines.separator == std::nullopt);
  CHECK(lines.joining == Joining::lines);
  CHECK(lines.shard_bytes == 3 * 1024 * 1024);
  TokenizeRequest{.separator = "none", .joining = Joining::lines}.validate();
  const TokenizeRequest separated{.separator = "<pad>", .joining = Joining::lines},
      keyed{.key = "text", .joining = Joining::lines};
  CHECK(contains(message([&] { separated.validate(); }), "--separator <pad>"));
  CHECK(contains(message([&] { keyed.validate(); }), "--key"));
  CHECK(contains(message([&] { resolved(separated, *opt); }), "--separator <pad>"));
  CHECK(resolved({.key = "body"}, *opt).documents.key == "body");
}
