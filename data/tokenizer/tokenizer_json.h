// Reading and writing the JSON files of tokenizers: every error is one line that names the file.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/io/json.h"
#include "data/tokenizer/pipeline.h"

namespace brine::data {

using SortedJson = nlohmann::json;

// To be called in a catch block: converts an exception of the JSON library to one line that names
// the file.
[[noreturn]] void rethrow_naming(const std::string& path);
template <class Read>
auto reading(const std::string& path, Read read) {
  try {
    return read();
  } catch (...) {
    rethrow_naming(path);
  }
}

// Parses the text of the file at `path`; more than 64 levels of nesting are an error.
SortedJson parse_json(const std::string& text, const std::string& path);

// The member `key`, null if it is missing.
const SortedJson& member(const SortedJson& object, const char* key);
const SortedJson& object_member(const SortedJson& object, const char* key, const std::string& path);
bool flag(const SortedJson& object, const char* key, bool otherwise, const std::string& path);
// The "pattern" of a Split or a Replace: {"String": text} or {"Regex": expression}.
TextPattern read_pattern(const SortedJson& description, const std::string& where);

// {"token": id} as a list by id, empty where no token has the id.
std::vector<std::string> read_vocab(const SortedJson& vocab, const std::string& path);
// The list "added_tokens" of tokenizer.json, in its order.
std::vector<AddedToken> read_added(const SortedJson& list, const std::string& path);
// Gives the added tokens, in their order, the ids that `tokenizers` gives them, whatever the file
// says: that of the vocabulary, else the next one after its `vocabulary` tokens and the added ones.
// A token that is listed again is dropped. Then sorts them by id. A changed id is a note.
void assign_added_ids(TokenizerModel& model, size_t vocabulary, const std::string& path);
// The number of tokens in a list with holes.
size_t count_tokens(const std::vector<std::string>& tokens);
// A tokenizer.json without the vocabulary, the merges and the added tokens, its keys in order.
std::string read_frame(const std::string& text, const std::string& path);

// A tokenizer.json whose kind is known: its path, its text and its object.
struct TokenizerFile {
  std::string path, text;
  std::shared_ptr<SortedJson> root;
};

// NAME in `dir`: its text and its object, both empty if it does not exist.
struct SideFile {
  const SortedJson& object() const { return *parsed; }
  std::string path, text;
  std::shared_ptr<const SortedJson> parsed;
};
SideFile side_file(const std::filesystem::path& dir, const char* name);

// The existing configuration files next to a tokenizer's main file.
struct SideFiles {
  explicit SideFiles(const std::filesystem::path& dir);
  // The token that special_tokens_map.json or else tokenizer_config.json gives the role
  // "bos_token", "unk_token" ...
  std::optional<std::string> role(const char* role) const;
  // "GPT2Tokenizer" and similar names without "Fast"; empty if there is none.
  std::string tokenizer_class() const;
  // "model_type" of config.json, empty if there is none.
  std::string model_type() const;
  // Adds the tokens that tokenizer_config.json (added_tokens_decoder) and added_tokens.json list,
  // unless a token with the same content exists already.
  void add_tokens(std::vector<AddedToken>& added) const;
  // Gives the model what is written again as it was read.
  void keep_for_writing(TokenizerModel& model) const;

  std::filesystem::path directory;
  SideFile map, config, added, model;
};

// The id of a token, added ones first.
std::optional<int32_t> find_token(const TokenizerModel& model, const std::string& name);
const std::string& token_text(const TokenizerModel& model, int32_t id);
// Makes the token, if there is one, an added token; one that is listed already is not changed.
void add_special(TokenizerModel& model, std::optional<int32_t> id);

// ---- writing ----

Json vocab_json(const std::vector<std::string>& tokens);
Json added_json(const std::vector<AddedToken>& added);
// special_tokens_map.json of the roles.
Json special_map(const TokenizerModel& model);
// Files of a directory: names, which may have a folder, and contents.
using FileTexts = std::vector<std::pair<std::string, std::string>>;
// tokenizer.json, special_tokens_map.json, tokenizer_config.json and the chat templates, all but
// the first as they were read or, if they were not, from the roles and `config`. What transformers
// 4.57 or 5 cannot read in tokenizer_config.json is replaced by what both can.
FileTexts common_files(const TokenizerModel& model, const Tokenizer& tokenizer,
                       const std::string& config);
// Writes them to `dir`, which is created if it does not exist. No file gets its name before the
// content of all is on the disk: after an error there are those of before, or no directory.
void save_files(const std::string& dir, const FileTexts& files);

}  // namespace brine::data
