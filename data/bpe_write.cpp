// Writes a byte-level BPE tokenizer as Hugging Face's libraries do: tokenizer.json to the byte as
// `tokenizers` would, and the older files beside it.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/bpe.h"
#include "data/file_io.h"
#include "data/sha256.h"
#include "tensor/error.h"

namespace brine::data {
namespace {

using Ordered = nlohmann::ordered_json;  // keeps the order of keys
namespace fs = std::filesystem;

// tokenizer.json of a new tokenizer, but for its contents.
constexpr const char* kFrame = R"({
  "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
  "pre_tokenizer": {
    "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "post_processor": {
    "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
  "decoder": {
    "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
  "model": {
    "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
    "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
    "vocab": {}, "merges": []}})";

// Appending here skips the search for an equal key, which would take the square of the time.
std::vector<std::pair<const std::string, Ordered>>& items_of(Ordered& object) {
  return object.get_ref<Ordered::object_t&>();
}

Ordered vocab_of(const BpeModel& model) {
  Ordered vocab = Ordered::object();
  for (size_t id = 0; id < model.tokens.size(); ++id)
    if (!model.tokens[id].empty()) items_of(vocab).emplace_back(model.tokens[id], id);
  return vocab;
}

std::string write_json(const BpeModel& model, const std::vector<std::string>& spelled,
                       const std::string& frame_text) {
  Ordered frame = Ordered::parse(frame_text);
  frame["pre_tokenizer"]["add_prefix_space"] = model.add_prefix_space;
  for (const AddedToken& token : model.added)
    frame["added_tokens"].push_back({{"id", token.id},
                                     {"content", token.content},
                                     {"single_word", false},
                                     {"lstrip", token.lstrip},
                                     {"rstrip", token.rstrip},
                                     {"normalized", token.normalized},
                                     {"special", token.special}});
  frame["model"]["vocab"] = vocab_of(model);
  Ordered& merges = frame["model"]["merges"];
  for (auto [left, right] : model.merges)
    merges.push_back(Ordered::array({spelled[size_t(left)], spelled[size_t(right)]}));
  return frame.dump(2);
}

std::string special_map_of(const BpeTokenizer& tokenizer) {
  Ordered map = Ordered::object();
  auto put = [&](const char* role, std::optional<int32_t> id) {
    if (id) map[role] = tokenizer.token_of(*id);
  };
  const SpecialIds special = tokenizer.special();
  put("bos_token", special.bos);
  put("eos_token", special.eos);
  put("pad_token", special.pad);
  put("unk_token", special.unk);
  return map.dump(2) + "\n";
}

std::string config_of(const BpeTokenizer& tokenizer) {
  Ordered config = Ordered::parse(special_map_of(tokenizer));
  config["add_bos_token"] = false;
  config["add_prefix_space"] = tokenizer.model().add_prefix_space;
  config["clean_up_tokenization_spaces"] = false;
  config["errors"] = "replace";
  config["tokenizer_class"] = "GPT2Tokenizer";
  return config.dump(2) + "\n";
}

}  // namespace

std::string BpeTokenizer::to_json() const {
  return write_json(model_, spelled_, model_.frame.empty() ? kFrame : model_.frame);
}

std::string BpeTokenizer::hash() const { return sha256_hex(write_json(model_, spelled_, kFrame)); }

void BpeTokenizer::save(const std::string& dir) const {
  std::error_code failed;
  fs::create_directories(dir, failed);
  check(!failed, dir, ": cannot be made: ", failed.message());
  const fs::path out(dir);
  std::string merges = "#version: 0.2\n";
  for (auto [left, right] : model_.merges)
    merges += spelled_[size_t(left)] + " " + spelled_[size_t(right)] + "\n";
  auto kept_or = [](const std::string& kept, const std::string& made) {
    return kept.empty() ? made : kept;
  };
  write_file_atomic(out / "vocab.json", vocab_of(model_).dump());
  write_file_atomic(out / "merges.txt", merges);
  write_file_atomic(out / "special_tokens_map.json",
                    kept_or(model_.special_tokens_map, special_map_of(*this)));
  write_file_atomic(out / "tokenizer_config.json",
                    kept_or(model_.tokenizer_config, config_of(*this)));
  write_file_atomic(out / "tokenizer.json", to_json());
}

}  // namespace brine::data
