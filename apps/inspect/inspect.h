// Descriptions of paths: dumps, runs, checkpoints, models, token shards, tokenizers, texts.
#pragma once

#include <string>

namespace brine {

struct InspectOptions {
  bool verify = false;         // compare every checksum of a dump or of token shards
  bool tensors = false;        // list the tensors of a model
  std::string tokenizer = {};  // directory: of a text, its tokens and their hash
};

// Several lines for stdout. Throws when Brine does not recognise the path, or when it is too
// damaged to be recognised.
std::string inspect(const std::string& path, const InspectOptions& options = {});

}  // namespace brine
