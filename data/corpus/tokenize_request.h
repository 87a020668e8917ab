// What a tokenisation is: files, how their text is joined, the token between documents.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/config/schema.h"
#include "data/corpus/documents.h"
#include "data/corpus/token_shards.h"

namespace brine::data {

struct TokenizeOptions {
  DocumentOptions documents = {};
  std::optional<int32_t> separator = {};  // after every document
  Joining joining = Joining::documents;   // lines: without a separator
  uint64_t shard_bytes = uint64_t(256) << 20;
};

// One thread encodes per tokenizer, which must be equal; another one reads. The shards do not
// depend on the number of threads. Memory is limited to a few pieces per thread. After an error no
// files remain.
TokenManifest tokenize_files(const std::vector<std::string>& files, const Path& out,
                             const std::vector<std::unique_ptr<Tokenizer>>& tokenizers,
                             const TokenizeOptions& options);

// Which token follows every document, where none is spelled out.
enum class SeparatorRule : uint8_t { automatic, none };
inline constexpr Named<SeparatorRule> kSeparatorRules[] = {{SeparatorRule::automatic, "auto"},
                                                           {SeparatorRule::none, "none"}};

struct TokenizeRequest {
  std::string tokenizer = {}, out = {};
  std::vector<std::string> files = {};
  std::optional<std::string> key = {};  // of the text in a line of .jsonl
  std::string separator = "auto";       // the name of a SeparatorRule, or a token
  Joining joining = Joining::documents;
  int64_t shard_mib = 256;

  void describe(Schema& s);
  // Throws when two settings exclude each other.
  void validate() const;
  // The options of tokenize_files(). Throws when the separator is not a token; `warn` is told when
  // documents get no separator because the tokenizer has no eos token.
  TokenizeOptions resolve(const Tokenizer& t,
                          const std::function<void(const std::string&)>& warn) const;
};

}  // namespace brine::data
