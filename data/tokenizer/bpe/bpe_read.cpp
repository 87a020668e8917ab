// Reads a BPE tokenizer: tokenizer.json, or, for byte-level BPE, vocab.json with merges.txt, and
// the two configuration files, as Hugging Face's libraries write them.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/io/file_io.h"
#include "data/io/json.h"
#include "data/io/utf8.h"
#include "data/tokenizer/bpe/bpe.h"
#include "data/tokenizer/post_processor.h"
#include "data/tokenizer/tokenizer_json.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

namespace fs = std::filesystem;

// Finds the ids of the tokens that merges name.
class Ids {
 public:
  explicit Ids(const std::vector<std::string>& tokens) {
    for (size_t id = 0; id < tokens.size(); ++id)
      if (!tokens[id].empty()) ids_.emplace(tokens[id], int32_t(id));
  }
  // `where` is the position of the merge, for the error.
  std::pair<int32_t, int32_t> merge(std::string_view left, std::string_view right,
                                    const std::string& where) const {
    auto id = [&](std::string_view token) {
      auto found = ids_.find(token);
      check_format(found != ids_.end(), where, ": token '", token,
                   "' is missing from the vocabulary");
      return found->second;
    };
    return {id(left), id(right)};
  }
  // "left right"
  std::pair<int32_t, int32_t> merge(std::string_view line, const std::string& where) const {
    const size_t space = line.find(' ');
    const bool two = space != std::string_view::npos && space > 0 && space + 1 < line.size() &&
                     line.find(' ', space + 1) == std::string_view::npos;
    check_format(two, where, ": '", line, "' must be two tokens with one space between");
    return merge(line.substr(0, space), line.substr(space + 1), where);
  }

 private:
  std::unordered_map<std::string_view, int32_t> ids_;
};

void read_merges(const SortedJson& merges, const std::string& path, BpeModel& model) {
  check_format(merges.is_array(), path, ": 'merges' must be a list");
  const Ids ids(model.tokens);
  for (size_t i = 0; i < merges.size(); ++i) {
    const SortedJson& item = merges[i];
    const std::string where = join(path, ": merge ", i);
    const bool pair =
        item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string();
    check_format(pair || item.is_string(), where, " must be \"a b\" or [\"a\", \"b\"]");
    model.merges.push_back(pair ? ids.merge(item[0].get_ref<const std::string&>(),
                                            item[1].get_ref<const std::string&>(), where)
                                : ids.merge(item.get_ref<const std::string&>(), where));
  }
}

// For a pair that is listed twice the later rank counts, as in `tokenizers`.
void drop_repeated_merges(BpeModel& model) {
  std::unordered_map<uint64_t, size_t> last;
  for (size_t i = 0; i < model.merges.size(); ++i) last[pair_key(model.merges[i])] = i;
  if (last.size() == model.merges.size()) return;
  std::vector<std::pair<int32_t, int32_t>> kept;
  for (size_t i = 0; i < model.merges.size(); ++i)
    if (last[pair_key(model.merges[i])] == i) kept.push_back(model.merges[i]);
  model.merges = std::move(kept);
}

// The pre-tokenizer, the decoder and the settings of the model.
void read_settings(const SortedJson& root, const std::string& path, BpeModel& model) {
  model.pre_tokenizer = PreTokenizer(member(root, "pre_tokenizer"), path);
  model.decoder = Decoder(member(root, "decoder"), path);
  const bool byte_level = model.pre_tokenizer.byte_level();
  check_format(model.decoder.none() || byte_level == model.decoder.byte_level(), path,
               ": pre_tokenizer ", byte_level ? "with" : "without", " ByteLevel, but decoder ",
               byte_level ? "without" : "with", " it is not supported");
  const SortedJson& body = root["model"];
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const SortedJson& value = member(body, key);
    check_format(value.is_null() || value == "" || value == 0, path, ": model.", key, " = ",
                 json_text(value), " is not supported");
  }
  model.ignore_merges = flag(body, "ignore_merges", false, path);
  model.byte_fallback = flag(body, "byte_fallback", false, path);
  check_format(!byte_level || !model.byte_fallback, path,
               ": model.byte_fallback = true with ByteLevel is not supported");
  model.fuse_unk = flag(body, "fuse_unk", false, path);
  const SortedJson& unk = member(body, "unk_token");
  check_format(unk.is_null() || unk.is_string(), path, ": model.unk_token must be a text or null");
  if (!unk.is_string()) return;
  auto found = std::find(model.tokens.begin(), model.tokens.end(), unk.get<std::string>());
  if (found != model.tokens.end()) model.unk = int32_t(found - model.tokens.begin());
  check_format(byte_level || model.unk, path, ": model.unk_token ", json_text(unk),
               " is missing from the vocabulary");
}

// Roles: from the configuration files, else by the convention of Llama, OPT or GPT-2 if its tokens
// exist.
void read_roles(const SideFiles& sides, BpeModel& model) {
  const bool llama = model.byte_fallback;
  auto role = [&](const char* key, const char* usual, const char* newer) {
    if (auto name = sides.role(key)) return find_token(model, *name);
    for (const char* name : {usual, newer})
      if (auto id = find_token(model, name)) return id;
    // GPT-2's single special token has every role except padding.
    return std::string_view(key) == "pad_token" ? std::nullopt : find_token(model, "<|endoftext|>");
  };
  auto named = [&](const char* key) {
    auto name = sides.role(key);
    return name ? find_token(model, *name) : std::nullopt;
  };
  model.special = {.bos = role("bos_token", llama ? "<s>" : "</s>", "<|begin_of_text|>"),
                   .eos = role("eos_token", "</s>", "<|end_of_text|>"),
                   .pad = role("pad_token", "<pad>", ""),
                   .unk = role("unk_token", "<unk>", ""),
                   .cls = named("cls_token"),
                   .sep = named("sep_token"),
                   .mask = named("mask_token")};
  sides.keep_for_writing(model);
}

SortedJson bos_in_front(const BpeModel& model, const std::string& where) {
  check_format(model.special.bos.has_value(), where,
               ": add_bos_token = true, but the vocabulary has no bos_token");
  return template_around(model, model.special.bos, std::nullopt);
}

// A byte-level BPE of vocab.json and merges.txt is GPT-2's or OPT's: the configuration decides, or
// without one the vocabulary: OPT's has </s>.
void read_kind(const SideFiles& sides, const std::string& where, BpeModel& model) {
  const std::string kind = sides.tokenizer_class(), type = sides.model_type();
  check_format(kind.empty() || kind == "GPT2Tokenizer" || kind == "PreTrainedTokenizer" ||
                   kind == "TokenizersBackend",
               where, ": tokenizer_class \"", kind,
               "\" is not supported for vocab.json and merges.txt");
  check_format(!kind.empty() || type != "roberta", sides.model.path, ": model_type \"", type,
               "\" is not supported for vocab.json and merges.txt");
  const bool configured = !sides.config.text.empty();
  const bool opt = !configured && type != "gpt2" && find_token(model, "</s>");
  const SortedJson& config = sides.config.object();
  const bool prefix = flag(config, "add_prefix_space", false, sides.config.path);
  const SortedJson pre = {{"type", "ByteLevel"}, {"add_prefix_space", prefix}};
  model.pre_tokenizer = PreTokenizer(pre, sides.config.path);
  sides.add_tokens(model.added);
  assign_added_ids(model, count_tokens(model.tokens), where);
  read_roles(sides, model);
  SpecialIds& special = model.special;
  // OPT's files give </s> this role too, so that "<unk>" in a text is not a special token.
  if (opt && !sides.role("unk_token")) special.unk = special.bos;
  // Tokens with a role are special ones, as in transformers; but <unk> only if a file gives it the
  // role, since no text becomes unknown.
  for (auto id : {special.bos, special.eos, special.pad, special.cls, special.sep, special.mask})
    add_special(model, id);
  if (sides.role("unk_token")) add_special(model, special.unk);
  if (!opt && !flag(config, "add_bos_token", false, sides.config.path)) return;
  const SortedJson post = bos_in_front(model, where);
  model.around = read_post_processor(post, where);
  Json frame = parse_ordered_json(bpe_frame());
  frame["post_processor"] = parse_ordered_json(json_text(post));
  model.frame = json_text(frame);
}

}  // namespace

void add_merges(std::span<const std::string> lines, const std::string& where, BpeModel& model) {
  const Ids ids(model.tokens);
  for (size_t i = 0; i < lines.size(); ++i)
    model.merges.push_back(ids.merge(lines[i], join(where, ": merge ", i)));
  drop_repeated_merges(model);
}

SortedJson template_around(const TokenizerModel& model, std::optional<int32_t> bos,
                           std::optional<int32_t> eos) {
  SortedJson tokens = SortedJson::object(), single = SortedJson::array(),
             pair = SortedJson::array();
  auto special = [&](std::optional<int32_t> id, SortedJson& parts, int type) {
    if (!id) return;
    const std::string& name = token_text(model, *id);
    parts.push_back({{"SpecialToken", {{"id", name}, {"type_id", type}}}});
    tokens[name] = {
        {"id", name}, {"ids", SortedJson::array({*id})}, {"tokens", SortedJson::array({name})}};
  };
  auto text = [&](SortedJson& parts, const char* name, int type) {
    special(bos, parts, type);
    parts.push_back({{"Sequence", {{"id", name}, {"type_id", type}}}});
    special(eos, parts, type);
  };
  text(single, "A", 0);
  text(pair, "A", 0);
  text(pair, "B", 1);
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", tokens}};
}

std::unique_ptr<BpeTokenizer> load_bpe_json(const TokenizerFile& file) {
  const std::string& path = file.path;
  const SortedJson& root = *file.root;
  return reading(path, [&] {
    const SortedJson& body = root["model"];
    BpeModel model;
    model.tokens = read_vocab(member(body, "vocab"), path);
    read_settings(root, path, model);
    read_merges(member(body, "merges"), path, model);
    drop_repeated_merges(model);
    model.added = read_added(member(root, "added_tokens"), path);
    assign_added_ids(model, count_tokens(model.tokens), path);
    model.normalizer = Normalizer(member(root, "normalizer"), path);
    model.around = read_post_processor(member(root, "post_processor"), path);
    model.frame = read_frame(file.text, path);
    const SideFiles sides(fs::path(path).parent_path());
    read_roles(sides, model);
    // add_bos_token of tokenizer_config.json is not used: as in transformers, tokenizer.json alone
    // says what is added to a text.
    return std::make_unique<BpeTokenizer>(std::move(model), path);
  });
}

std::unique_ptr<BpeTokenizer> load_bpe_vocab(const std::string& dir) {
  const std::string vocab_path = (fs::path(dir) / "vocab.json").string();
  const std::string merges_path = (fs::path(dir) / "merges.txt").string();
  BpeModel model;
  const SortedJson vocab = parse_json(read_file(vocab_path), vocab_path);
  model.tokens = reading(vocab_path, [&] { return read_vocab(vocab, vocab_path); });
  const std::string merges = read_file(merges_path);
  const Ids ids(model.tokens);
  size_t number = 0;
  for (std::string_view rest = merges; !rest.empty();) {
    std::string_view line = take_part(rest, '\n');
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (++number == 1 && line.starts_with("#version")) continue;
    if (line.empty()) continue;
    model.merges.push_back(ids.merge(line, join(merges_path, ": line ", number)));
  }
  drop_repeated_merges(model);
  reading(dir, [&] { read_kind(SideFiles(dir), dir, model); });
  return std::make_unique<BpeTokenizer>(std::move(model), merges_path);
}

}  // namespace brine::data
