// Files of any size to token shards, on several threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

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

}  // namespace brine::data
