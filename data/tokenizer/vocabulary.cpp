// The vocabulary in a GGUF file's metadata.
#include "data/tokenizer/vocabulary.h"

#include "data/gguf/gguf_file.h"
#include "tensor/base/error.h"

namespace brine::data {
VocabularyMetadata gguf_vocabulary(const GgufMetadata& m) {
  VocabularyMetadata v;
  v.model = m.required("tokenizer.ggml.model", &GgufMetadata::string);
  v.pre = m.string("tokenizer.ggml.pre").value_or("");
  v.tokens = m.strings("tokenizer.ggml.tokens");
  check_format(!v.tokens.empty(), m.file(), ": has no tokens (tokenizer.ggml.tokens)");
  v.types = m.integers("tokenizer.ggml.token_type");
  check_format(v.types.empty() || v.types.size() == v.tokens.size(), m.file(), ": has ",
               v.tokens.size(), " tokens and ", v.types.size(), " types of tokens");
  v.merges = m.strings("tokenizer.ggml.merges");
  v.bos = m.integer("tokenizer.ggml.bos_token_id");
  v.eos = m.integer("tokenizer.ggml.eos_token_id");
  v.unknown = m.integer("tokenizer.ggml.unknown_token_id");
  v.padding = m.integer("tokenizer.ggml.padding_token_id");
  v.add_bos = m.boolean("tokenizer.ggml.add_bos_token");
  v.add_eos = m.boolean("tokenizer.ggml.add_eos_token").value_or(false);
  v.add_space_prefix = m.boolean("tokenizer.ggml.add_space_prefix").value_or(v.model == "llama");
  v.chat_template = m.string("tokenizer.chat_template").value_or("");
  return v;
}

bool has_gguf_vocabulary(const Path& path) {
  const MappedFile file(path);
  return GgufHeader(path, file).metadata.has("tokenizer.ggml.model");
}

VocabularyMetadata gguf_vocabulary(const Path& path) {
  const MappedFile file(path);
  return gguf_vocabulary(GgufHeader(path, file).metadata);
}

}  // namespace brine::data
