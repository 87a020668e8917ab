// A tokenizer's vocabulary as the metadata of a GGUF file has it, without a tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/gguf/gguf_metadata.h"
#include "data/io/file_io.h"
#include "data/tokenizer/tokenizer.h"

namespace brine::data {

// The keys "tokenizer.ggml.*" and "tokenizer.chat_template" of the GGUF specification.
struct VocabularyMetadata {
  std::string model;                // "gpt2": byte-level BPE
  std::string pre;                  // the name of its pre-tokenizer: "smollm", "llama-bpe" ...
  std::vector<std::string> tokens;  // by id, spelled in the byte alphabet
  std::vector<int32_t> types;       // by id; 1 normal, 2 unknown, 3 control, 4 user-defined,
                                    // 5 unused, 6 byte; empty: all normal
  std::vector<std::string> merges;  // "left right", by rank
  std::optional<int64_t> bos, eos, unknown, padding;
  std::optional<bool> add_bos;  // empty: as the pre-tokenizer does
  bool add_eos = false, add_space_prefix = false;
  std::string chat_template;
};

// The vocabulary in a file's metadata; an Error if there is none.
VocabularyMetadata gguf_vocabulary(const GgufMetadata& metadata);
// The same for the file at `path`, of which only the header is read.
bool has_gguf_vocabulary(const Path& path);
VocabularyMetadata gguf_vocabulary(const Path& path);

// The tokenizer of a byte-level BPE ("gpt2") with the pre-tokenizer "smollm", "gpt-2", "llama-bpe"
// or "qwen2", or a name that llama.cpp reads like one of them; any other model or pre-tokenizer is
// refused by name. A role whose id no token has is ignored, with a note; around() is an error if a
// text gets that token. Errors start with `source`, the file.
std::unique_ptr<Tokenizer> make_tokenizer(const VocabularyMetadata& vocabulary,
                                          const std::string& source);

}  // namespace brine::data
