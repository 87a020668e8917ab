// The readers of the fuzz targets.
#pragma once

#include <filesystem>
#include <string_view>

namespace brine::fuzz {

using Dir = const std::filesystem::path&;

// Weights: a safetensors file; a GGUF file with its settings and vocabulary; a file of torch.save,
// and its pickle alone; model.safetensors.index.json next to two valid shards.
void read_safetensors(Dir dir, std::string_view bytes);
void read_gguf(Dir dir, std::string_view bytes);
void read_torch(Dir dir, std::string_view bytes);
void read_pickle(Dir dir, std::string_view bytes);
void read_index(Dir dir, std::string_view bytes);

// A model's config.json; a configuration in TOML.
void read_config(Dir dir, std::string_view bytes);
void read_toml(Dir dir, std::string_view bytes);

// tokenizer.json with tokenizer_config.json and special_tokens_map.json; vocab.json with merges.txt
// and the two; vocab.txt and the two. Every tokenizer that loads encodes and decodes.
void read_tokenizer(Dir dir, std::string_view bytes);
void read_bpe(Dir dir, std::string_view bytes);
void read_wordpiece(Dir dir, std::string_view bytes);

// A first line "TASK SPLIT", then the file of that split.
void read_tsv(Dir dir, std::string_view bytes);

// Documents of a corpus: plain text (gzip, where it begins like it), a text's lines joined, lines
// of JSON. The pieces of a document have its tokens.
void read_text_corpus(Dir dir, std::string_view bytes);
void read_joined(Dir dir, std::string_view bytes);
void read_json_lines(Dir dir, std::string_view bytes);

// The manifest of token shards, and the shards where they are small.
void read_token_shards(Dir dir, std::string_view bytes);

// Manifests of a dump and, without its last lines, of a checkpoint.
void read_dump(Dir dir, std::string_view bytes);
void read_checkpoint(Dir dir, std::string_view bytes);

}  // namespace brine::fuzz
