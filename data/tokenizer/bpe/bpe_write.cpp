// Writes a byte-level BPE tokenizer as Hugging Face's libraries do: a tokenizer.json with the same
// bytes as `tokenizers` would write, and the older files next to it.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/io/file_io.h"
#include "data/io/json.h"
#include "data/io/sha256.h"
#include "data/tokenizer/bpe/bpe.h"
#include "data/tokenizer/tokenizer_json.h"
#include "tensor/error.h"

namespace brine::data {
namespace {

namespace fs = std::filesystem;

// tokenizer.json of a new tokenizer, without its contents.
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

std::string write_json(const BpeModel& model, const std::vector<std::string>& spelled,
                       const std::string& frame_text) {
  Ordered frame = parse_ordered_json(frame_text);
  frame["pre_tokenizer"]["add_prefix_space"] = model.add_prefix_space;
  frame["added_tokens"] = added_json(model.added);
  frame["model"]["vocab"] = vocab_json(model.tokens);
  Ordered& merges = frame["model"]["merges"];
  merges = Ordered::array();
  for (auto [left, right] : model.merges)
    merges.push_back(Ordered::array({spelled[size_t(left)], spelled[size_t(right)]}));
  return json_text(frame, 2);
}

std::string config_of(const BpeTokenizer& tokenizer) {
  Ordered config = parse_ordered_json(special_map(tokenizer));
  const bool roberta = tokenizer.special().cls.has_value();
  if (!roberta) config["add_bos_token"] = tokenizer.model().post_processor.added(false) > 0;
  config["add_prefix_space"] = tokenizer.model().add_prefix_space;
  config["clean_up_tokenization_spaces"] = false;
  config["errors"] = "replace";
  config["tokenizer_class"] = roberta ? "RobertaTokenizer" : "GPT2Tokenizer";
  return json_text(config, 2) + "\n";
}

}  // namespace

std::string bpe_frame() { return kFrame; }

std::string BpeTokenizer::to_json() const {
  return write_json(model_, spelled(), model_.frame.empty() ? kFrame : model_.frame);
}

std::string BpeTokenizer::hash() const {
  Ordered frame = parse_ordered_json(kFrame);
  if (!model_.normalizer.empty())
    frame["normalizer"] = parse_ordered_json(model_.frame)["normalizer"];
  return sha256_hex(write_json(model_, spelled(), json_text(frame)));
}

void BpeTokenizer::save(const std::string& dir) const {
  const fs::path out = make_directory(dir);
  std::string merges = "#version: 0.2\n";
  for (auto [left, right] : model_.merges)
    merges += spelled()[size_t(left)] + " " + spelled()[size_t(right)] + "\n";
  write_file_atomic(out / "vocab.json", json_text(vocab_json(model_.tokens)));
  write_file_atomic(out / "merges.txt", merges);
  save_common(out, model_, *this, config_of(*this));
}

}  // namespace brine::data
