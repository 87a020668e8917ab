// Reads and writes BERT's tokenizers: tokenizer.json, or vocab.txt with tokenizer_config.json.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/codec/checksums.h"
#include "data/io/file_io.h"
#include "data/io/json.h"
#include "data/io/utf8.h"
#include "data/tokenizer/post_processor.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/wordpiece.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxWordPieces = 1 << 24;

constexpr const char* kWordPieceFrame = R"({
  "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
  "normalizer": {
    "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
    "strip_accents": null, "lowercase": true},
  "pre_tokenizer": {"type": "BertPreTokenizer"},
  "post_processor": null,
  "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
  "model": {
    "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100, "vocab": {}}})";

std::string text_member(const SortedJson& object, const char* key, const char* otherwise,
                        const std::string& path) {
  const SortedJson& value = member(object, key);
  check_format(value.is_null() || value.is_string(), path, ": '", key, "' must be a string");
  return value.is_null() ? otherwise : value.get<std::string>();
}

void read_roles(const SideFiles& sides, WordPieceModel& model) {
  auto role = [&](const char* key, const char* usual) {
    auto name = sides.role(key);
    return find_token(model, name ? *name : usual);
  };
  model.special = {.bos = role("bos_token", ""),
                   .eos = role("eos_token", ""),
                   .pad = role("pad_token", "[PAD]"),
                   .unk = model.unk,
                   .cls = role("cls_token", "[CLS]"),
                   .sep = role("sep_token", "[SEP]"),
                   .mask = role("mask_token", "[MASK]")};
  sides.keep_for_writing(model);
}

// The two files must agree on a setting: libraries differ in which one they use.
void refuse_contradictions(const SortedJson& root, const SideFiles& sides,
                           const std::string& path) {
  const SortedJson& normalizer = member(root, "normalizer");
  if (!normalizer.is_object() || member(normalizer, "type") != "BertNormalizer") return;
  const std::pair<const char*, const char*> settings[] = {
      {"lowercase", "do_lower_case"},
      {"handle_chinese_chars", "tokenize_chinese_chars"},
      {"strip_accents", "strip_accents"}};
  for (auto [normalizer_key, config_key] : settings) {
    const SortedJson& a = member(normalizer, normalizer_key);
    const SortedJson& b = member(sides.config.object(), config_key);
    check_format(!a.is_boolean() || !b.is_boolean() || a == b, path, ": normalizer: '",
                 normalizer_key, "' is ", json_text(a), ", but ", sides.config.path, " has '",
                 config_key, "' = ", json_text(b));
  }
}

// The normalizer by tokenizer_config.json.
Json normalizer_of(const SideFile& config) {
  const SortedJson& keys = config.object();
  auto is = [&](const char* key) { return flag(keys, key, true, config.path); };
  Json out = wordpiece_frame()["normalizer"];
  out["lowercase"] = is("do_lower_case");
  out["handle_chinese_chars"] = is("tokenize_chinese_chars");
  if (!member(keys, "strip_accents").is_null()) out["strip_accents"] = is("strip_accents");
  return out;
}

// transformers' tokenizers of BERT have a normalizer of their own: what tokenizer_config.json does
// not say has its defaults, whatever tokenizer.json says.
bool is_of_bert(const SideFiles& sides) {
  const std::string kind = sides.tokenizer_class();
  if (kind.empty()) return sides.model_type() == "bert";
  for (const char* same :
       {"Bert", "DistilBert", "MobileBert", "SqueezeBert", "Electra", "Lxmert"}) {
    if (kind == join(same, "Tokenizer")) return true;
  }
  return false;
}

void read_model(const SortedJson& root, const std::string& path, WordPieceModel& model) {
  const SortedJson& body = object_member(root, "model", path);
  const SortedJson& cut = member(root, "pre_tokenizer");
  check_format(cut.is_object() && member(cut, "type") == "BertPreTokenizer", path,
               ": pre_tokenizer ",
               cut.is_object() ? "of type " + json_text(member(cut, "type")) : json_text(cut),
               " is not supported for WordPiece, wanted \"BertPreTokenizer\"");
  const SortedJson& decoder = member(root, "decoder");
  model.has_decoder = !decoder.is_null();
  if (model.has_decoder) {
    check_format(decoder.is_object() && member(decoder, "type") == "WordPiece", path,
                 ": decoder of type ",
                 decoder.is_object() ? json_text(member(decoder, "type")) : "null",
                 " is not supported for WordPiece, wanted \"WordPiece\"");
    model.decoder_prefix = text_member(decoder, "prefix", "##", path);
    model.clean_up = flag(decoder, "cleanup", true, path);
  }
  model.tokens = read_vocab(member(body, "vocab"), path);
  model.added = read_added(member(root, "added_tokens"), path);
  assign_added_ids(model, count_tokens(model.tokens), path);
  model.prefix = text_member(body, "continuing_subword_prefix", "##", path);
  const SortedJson& longest = member(body, "max_input_chars_per_word");
  check_format(
      longest.is_null() || (longest.is_number_unsigned() && longest.get<uint64_t>() < INT32_MAX),
      path, ": 'max_input_chars_per_word' must be a number of characters");
  if (!longest.is_null()) model.longest_word = longest.get<int64_t>();
  const std::string unk = text_member(body, "unk_token", "[UNK]", path);
  auto found = std::find(model.tokens.begin(), model.tokens.end(), unk);
  check_format(!unk.empty() && found != model.tokens.end(), path, ": unk_token '", unk,
               "' is missing from the vocabulary");
  model.unk = int32_t(found - model.tokens.begin());
  model.normalizer = Normalizer(member(root, "normalizer"), path);
  model.around = read_post_processor(member(root, "post_processor"), path);
}

// One token per line; empty lines are ids without a token.
std::vector<std::string> read_lines(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<std::string> tokens;
  std::unordered_map<std::string, size_t> lines;
  for (std::string_view rest = text; !rest.empty();) {
    std::string token(take_part(rest, '\n'));
    if (token.ends_with('\r')) token.pop_back();
    const size_t line = tokens.size() + 1;
    check_format(line <= kMaxWordPieces, path, ": more than ", kMaxWordPieces, " lines");
    check_format(is_utf8(token), path, ": line ", line, ": not UTF-8");
    if (!token.empty()) {
      auto [first, is_new] = lines.emplace(token, line);
      check_format(is_new, path, ": line ", line, ": token '", token, "' is also on line ",
                   first->second);
    }
    tokens.push_back(std::move(token));
  }
  check_format(!lines.empty(), path, ": contains no tokens");
  return tokens;
}

Json frame_of(const WordPieceModel& model) {
  return model.frame.empty() ? wordpiece_frame() : parse_ordered_json(model.frame);
}

std::string write_json(const WordPieceModel& model, Json frame) {
  frame["added_tokens"] = added_json(model.added);
  frame["model"]["vocab"] = vocab_json(model.tokens);
  return json_text(frame, 2);
}

std::string config_of(const WordPieceTokenizer& tokenizer) {
  Json config = special_map(tokenizer.model());
  const Json normalizer = frame_of(tokenizer.model())["normalizer"];
  config["tokenizer_class"] = "PreTrainedTokenizerFast";  // takes tokenizer.json as it is
  if (normalizer.is_object() && normalizer.contains("lowercase")) {
    config["tokenizer_class"] = "BertTokenizer";
    config["do_lower_case"] = normalizer["lowercase"];
    config["strip_accents"] = normalizer.value("strip_accents", Json());
    config["tokenize_chinese_chars"] = normalizer.value("handle_chinese_chars", Json(true));
  }
  config["clean_up_tokenization_spaces"] = true;
  return json_text(config, 2) + "\n";
}

}  // namespace

Json wordpiece_frame() { return parse_ordered_json(kWordPieceFrame); }

std::unique_ptr<WordPieceTokenizer> load_wordpiece_json(TokenizerFile file) {
  const std::string& path = file.path;
  SortedJson& root = *file.root;
  return reading(path, [&] {
    const SideFiles sides(fs::path(path).parent_path());
    refuse_contradictions(root, sides, path);
    Json frame = parse_ordered_json(read_frame(file.text, path));
    if (is_of_bert(sides)) root["normalizer"] = frame["normalizer"] = normalizer_of(sides.config);
    WordPieceModel model;
    read_model(root, path, model);
    read_roles(sides, model);
    const SpecialIds& s = model.special;
    if (is_of_bert(sides) && member(root, "post_processor").is_null() && s.cls && s.sep)
      add_bert_template(model, frame, path);
    model.frame = json_text(frame);
    return std::make_unique<WordPieceTokenizer>(std::move(model), path);
  });
}

std::unique_ptr<WordPieceTokenizer> load_wordpiece_vocab(const std::string& dir) {
  const std::string path = (fs::path(dir) / "vocab.txt").string();
  const SideFiles sides(dir);
  const SortedJson& config = sides.config.object();
  const std::string kind = sides.tokenizer_class();
  const std::initializer_list<std::string_view> known = {"", "BertTokenizer", "DistilBertTokenizer",
                                                         "TokenizersBackend"};
  check_format(std::find(known.begin(), known.end(), kind) != known.end(), sides.config.path,
               ": tokenizer_class \"", kind, "\" is not supported for vocab.txt");
  return reading(path, [&] {
    WordPieceModel model;
    model.tokens = read_lines(path);
    const std::string unk = sides.role("unk_token").value_or("[UNK]");
    model.unk = find_token(model, unk).value_or(-1);
    check_format(model.unk >= 0, path, ": unk_token '", unk, "' is missing from the vocabulary");
    check_format(flag(config, "do_basic_tokenize", true, sides.config.path), sides.config.path,
                 ": do_basic_tokenize = false is not supported");
    const SortedJson& never = member(config, "never_split");
    check_format(never.is_null() || never.empty(), sides.config.path,
                 ": never_split is not supported");
    sides.add_tokens(model.added);
    assign_added_ids(model, model.tokens.size(), path);
    read_roles(sides, model);
    const SpecialIds& s = model.special;
    for (auto id : {s.pad, s.unk, s.cls, s.sep, s.mask}) add_special(model, id);
    Json frame = wordpiece_frame();
    const Json normalizer = frame["normalizer"] = normalizer_of(sides.config);
    add_bert_template(model, frame, path);
    frame["model"]["unk_token"] = unk;
    model.frame = json_text(frame);
    model.normalizer = Normalizer(brine::parse_json(json_text(normalizer)), path);
    return std::make_unique<WordPieceTokenizer>(std::move(model), path);
  });
}

std::string WordPieceTokenizer::to_json() const { return write_json(model_, frame_of(model_)); }

std::string WordPieceTokenizer::hash() const {
  const Json full_frame = frame_of(model_);
  Json frame = wordpiece_frame();
  frame["normalizer"] = full_frame.contains("normalizer") ? full_frame["normalizer"] : Json();
  frame["model"]["unk_token"] = model_.tokens[size_t(model_.unk)];
  frame["model"]["continuing_subword_prefix"] = model_.prefix;
  frame["model"]["max_input_chars_per_word"] = model_.longest_word;
  return sha256_hex(write_json(model_, frame));
}

void WordPieceTokenizer::save(const std::string& dir) const {
  std::string lines;
  for (const std::string& token : model_.tokens) lines += token + "\n";
  FileTexts files = common_files(model_, *this, config_of(*this));
  files.emplace_back("vocab.txt", lines);
  save_files(dir, files);
}

}  // namespace brine::data
