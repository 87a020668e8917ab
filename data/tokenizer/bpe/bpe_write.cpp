// Writes a BPE tokenizer as Hugging Face's libraries do: a tokenizer.json with the same
// bytes as `tokenizers` would write, and the older files next to it.
#include <nlohmann/json.hpp>

#include "data/codec/checksums.h"
#include "data/io/json.h"
#include "data/tokenizer/bpe/bpe.h"
#include "data/tokenizer/tokenizer_json.h"

namespace brine::data {
namespace {

// tokenizer.json of a new tokenizer, without its contents.
constexpr const char* kBpeFrame = R"({
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
  Json frame = parse_ordered_json(frame_text);
  Json& pre = frame["pre_tokenizer"];
  if (model.is_gpt2() && pre["type"] == "ByteLevel")
    pre["add_prefix_space"] = model.pre_tokenizer.prefix_space();
  frame["added_tokens"] = added_json(model.added);
  frame["model"]["vocab"] = vocab_json(model.tokens);
  Json& merges = frame["model"]["merges"];
  merges = Json::array();
  for (auto [left, right] : model.merges)
    merges.push_back(Json::array({spelled[size_t(left)], spelled[size_t(right)]}));
  return json_text(frame, 2);
}

// Whether a "pre_tokenizer" cuts as Qwen 2's: trim_offsets does not change ids.
bool is_qwen2(SortedJson pre) {
  SortedJson qwen = qwen2_pre_tokenizer();
  for (SortedJson* one : {&pre, &qwen}) {
    const auto parts = one->find("pretokenizers");
    if (parts == one->end() || !parts->is_array()) return false;
    for (SortedJson& part : *parts) part.erase("trim_offsets");
  }
  return pre == qwen;
}

std::string config_of(const BpeTokenizer& tokenizer) {
  Json config = special_map(tokenizer.model());
  // transformers' GPT2Tokenizer puts nothing after a text, whatever tokenizer.json says.
  const bool framed = !tokenizer.model().around.back.empty();
  if (!tokenizer.model().is_gpt2() || framed) {
    config["clean_up_tokenization_spaces"] = false;
    if (framed && tokenizer.special().cls)  // a BERT reads which text of a pair a token is of
      config["model_input_names"] = {"input_ids", "token_type_ids", "attention_mask"};
    config["tokenizer_class"] = "PreTrainedTokenizerFast";
    return json_text(config, 2) + "\n";
  }
  config["add_bos_token"] = !tokenizer.model().around.front.empty();
  config["add_prefix_space"] = tokenizer.model().pre_tokenizer.prefix_space();
  config["clean_up_tokenization_spaces"] = false;
  config["errors"] = "replace";
  config["tokenizer_class"] = "GPT2Tokenizer";
  return json_text(config, 2) + "\n";
}

}  // namespace

std::string bpe_frame() { return kBpeFrame; }

std::string BpeTokenizer::to_json() const {
  return write_json(model_, spelled(), model_.frame.empty() ? kBpeFrame : model_.frame);
}

std::string BpeTokenizer::hash() const {
  Json frame = parse_ordered_json(kBpeFrame);
  const Json full_frame = parse_ordered_json(model_.frame.empty() ? kBpeFrame : model_.frame);
  if (!model_.normalizer.empty()) frame["normalizer"] = full_frame["normalizer"];
  // The decoder does not change how a text is encoded.
  if (!model_.pre_tokenizer.is_gpt2() || model_.ignore_merges) {
    frame["pre_tokenizer"] = full_frame.value("pre_tokenizer", Json());
    Json& settings = frame["model"];
    settings["byte_fallback"] = model_.byte_fallback;
    settings["ignore_merges"] = model_.ignore_merges;
    if (!model_.pre_tokenizer.byte_level() && model_.unk) {
      settings["unk_token"] = spelled()[size_t(*model_.unk)];
      settings["fuse_unk"] = model_.fuse_unk;
    }
  }
  return sha256_hex(write_json(model_, spelled(), json_text(frame)));
}

std::string BpeTokenizer::transformers_class() const {
  if (model_.is_gpt2() && model_.normalizer.empty()) return "GPT2Tokenizer";
  const SortedJson frame = brine::parse_json(model_.frame.empty() ? kBpeFrame : model_.frame);
  const SortedJson nfc = {{"type", "NFC"}};
  const SortedJson& pre = member(frame, "pre_tokenizer");
  const bool qwen2 = !model_.ignore_merges && pre.is_object() && is_qwen2(pre) &&
                     member(frame, "normalizer") == nfc;
  return qwen2 ? "Qwen2Tokenizer" : "";
}

void BpeTokenizer::save(const std::string& dir) const {
  FileTexts files = common_files(model_, *this, config_of(*this));
  // What reads the older files takes them for GPT-2's.
  if (model_.is_gpt2()) {
    std::string merges = "#version: 0.2\n";
    for (auto [left, right] : model_.merges)
      merges += spelled()[size_t(left)] + " " + spelled()[size_t(right)] + "\n";
    files.emplace_back("vocab.json", json_text(vocab_json(model_.tokens)));
    files.emplace_back("merges.txt", merges);
  }
  save_files(dir, files);
}

}  // namespace brine::data
