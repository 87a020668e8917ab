// Reads a byte-level BPE tokenizer: tokenizer.json, or vocab.json with merges.txt, and the two
// configuration files, as Hugging Face's libraries write them.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/bpe.h"
#include "data/file_io.h"
#include "tensor/error.h"

namespace brine::data {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;  // keeps the order of keys; slow for many of them
namespace fs = std::filesystem;

// Turns what the JSON library throws into one line that names the file.
template <class Read>
auto reading(const std::string& path, Read read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& e) {
    std::string why = e.what();
    why.erase(0, why.find("] ") == std::string::npos ? 0 : why.find("] ") + 2);
    throw Error(join(path, ": ", why));
  }
}

// The member `key`, null where it is missing.
const Json& member(const Json& object, const char* key) {
  static const Json null;
  auto found = object.find(key);
  return found == object.end() ? null : *found;
}

const Json& object_member(const Json& object, const char* key, const std::string& path) {
  const Json& value = member(object, key);
  check(value.is_object(), path, ": '", key, "' must be an object");
  return value;
}

bool flag(const Json& object, const char* key, bool otherwise, const std::string& path) {
  const Json& value = member(object, key);
  check(value.is_null() || value.is_boolean(), path, ": '", key, "' must be true or false");
  return value.is_null() ? otherwise : value.get<bool>();
}

std::vector<std::string> read_vocab(const Json& vocab, const std::string& path) {
  check(vocab.is_object() && !vocab.empty(), path, ": the vocabulary must map tokens to ids");
  const size_t most = 2 * vocab.size() + 65536;
  std::vector<std::string> tokens;
  for (const auto& [token, id] : vocab.items()) {
    check(!token.empty(), path, ": the vocabulary holds an empty token");
    check(id.is_number_unsigned() && id.get<uint64_t>() < most, path, ": token '", token,
          "' has the id ", id.dump(), ", wanted a number from 0 to ", most - 1);
    const auto at = id.get<size_t>();
    if (at >= tokens.size()) tokens.resize(at + 1);
    check(tokens[at].empty(), path, ": tokens '", tokens[at], "' and '", token,
          "' both have the id ", at);
    tokens[at] = token;
  }
  return tokens;
}

// Finds the ids of the tokens that merges name.
class Ids {
 public:
  explicit Ids(const std::vector<std::string>& tokens) {
    for (size_t id = 0; id < tokens.size(); ++id)
      if (!tokens[id].empty()) ids_.emplace(tokens[id], int32_t(id));
  }
  // `place` says where the merge stands, for the error.
  std::pair<int32_t, int32_t> merge(std::string_view left, std::string_view right,
                                    const std::string& place) const {
    auto id = [&](std::string_view token) {
      auto found = ids_.find(token);
      check(found != ids_.end(), place, ": token '", token, "' is missing from the vocabulary");
      return found->second;
    };
    return {id(left), id(right)};
  }
  // "left right"
  std::pair<int32_t, int32_t> merge(std::string_view line, const std::string& place) const {
    const size_t space = line.find(' ');
    const bool two = space != std::string_view::npos && space > 0 && space + 1 < line.size() &&
                     line.find(' ', space + 1) == std::string_view::npos;
    check(two, place, ": '", line, "' must be two tokens with one space between");
    return merge(line.substr(0, space), line.substr(space + 1), place);
  }

 private:
  std::unordered_map<std::string_view, int32_t> ids_;
};

void read_merges(const Json& merges, const std::string& path, BpeModel& model) {
  check(merges.is_array(), path, ": 'merges' must be a list");
  const Ids ids(model.tokens);
  for (size_t i = 0; i < merges.size(); ++i) {
    const Json& item = merges[i];
    const std::string place = join(path, ": merge ", i);
    const bool pair =
        item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string();
    check(pair || item.is_string(), place, " must be \"a b\" or [\"a\", \"b\"]");
    model.merges.push_back(pair ? ids.merge(item[0].get_ref<const std::string&>(),
                                            item[1].get_ref<const std::string&>(), place)
                                : ids.merge(item.get_ref<const std::string&>(), place));
  }
}

// Of a pair that is listed twice the later rank counts, as in `tokenizers`.
void drop_repeated_merges(BpeModel& model) {
  std::unordered_map<uint64_t, size_t> last;
  auto key = [](std::pair<int32_t, int32_t> pair) {
    return uint64_t(uint32_t(pair.first)) << 32 | uint32_t(pair.second);
  };
  for (size_t i = 0; i < model.merges.size(); ++i) last[key(model.merges[i])] = i;
  if (last.size() == model.merges.size()) return;
  std::vector<std::pair<int32_t, int32_t>> kept;
  for (size_t i = 0; i < model.merges.size(); ++i)
    if (last[key(model.merges[i])] == i) kept.push_back(model.merges[i]);
  model.merges = std::move(kept);
}

void read_added(const Json& list, const std::string& path, BpeModel& model) {
  check(list.is_null() || list.is_array(), path, ": 'added_tokens' must be a list");
  for (const Json& item : list) {
    check(item.is_object() && member(item, "content").is_string(), path,
          ": an added token has no 'content'");
    AddedToken token;
    token.content = item["content"].get<std::string>();
    const Json& id = member(item, "id");
    check(id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX, path, ": added token '",
          token.content, "' has no valid 'id'");
    token.id = id.get<int32_t>();
    token.special = flag(item, "special", false, path);
    token.normalized = flag(item, "normalized", !token.special, path);
    token.lstrip = flag(item, "lstrip", false, path);
    token.rstrip = flag(item, "rstrip", false, path);
    check(!flag(item, "single_word", false, path), path, ": added token '", token.content,
          "': single_word is not supported");
    model.added.push_back(std::move(token));
  }
  std::stable_sort(model.added.begin(), model.added.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
}

// What encodes differently than a plain byte-level BPE is refused by name.
void refuse_others(const Json& root, const std::string& path) {
  check(member(root, "normalizer").is_null(), path, ": a normalizer is not supported for BPE");
  for (const char* part : {"pre_tokenizer", "decoder"}) {
    const Json& value = object_member(root, part, path);
    check(member(value, "type") == "ByteLevel", path, ": ", part, " of type ",
          member(value, "type").dump(), " is not supported, wanted \"ByteLevel\"");
  }
  check(flag(root["pre_tokenizer"], "use_regex", true, path), path,
        ": a pre_tokenizer with use_regex = false is not supported");
  const Json& model = root["model"];
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = member(model, key);
    check(value.is_null() || value == "" || value == 0, path, ": model.", key, " = ", value.dump(),
          " is not supported");
  }
  for (const char* key : {"byte_fallback", "ignore_merges"})
    check(!flag(model, key, false, path), path, ": model.", key, " = true is not supported");
}

// All but the vocabulary and the merges, its keys in their order.
std::string read_frame(const std::string& text) {
  // At depth 2 are the keys of the parts, of which the model alone has these two.
  auto keep = [](int depth, Ordered::parse_event_t event, Ordered& key) {
    return !(event == Ordered::parse_event_t::key && depth == 2 &&
             (key == "vocab" || key == "merges"));
  };
  Ordered frame = Ordered::parse(text, keep);
  frame["truncation"] = nullptr;
  frame["padding"] = nullptr;
  frame["added_tokens"] = Ordered::array();
  frame["model"]["vocab"] = Ordered::object();
  frame["model"]["merges"] = Ordered::array();
  return frame.dump();
}

// The token that stands for a role in a configuration file: a string or {"content": ...}.
std::optional<std::string> role_in(const Json& config, const char* role) {
  const Json& value = member(config, role);
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && member(value, "content").is_string())
    return value["content"].get<std::string>();
  return std::nullopt;
}

// Reads NAME in `dir` if it is there: its text and its object.
Json side_file(const fs::path& dir, const char* name, std::string& text) {
  const fs::path path = dir / name;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return Json::object();
  text = read_file(path);
  Json config = reading(path.string(), [&] { return Json::parse(text); });
  check(config.is_object(), path.string(), ": must hold an object");
  return config;
}

// Roles: from the configuration files, else OPT's or GPT-2's convention if its tokens are there.
void read_roles(const fs::path& dir, BpeModel& model) {
  const Json map = side_file(dir, "special_tokens_map.json", model.special_tokens_map);
  const Json config = side_file(dir, "tokenizer_config.json", model.tokenizer_config);
  auto id_of = [&](const std::string& name) -> std::optional<int32_t> {
    for (const AddedToken& token : model.added)
      if (token.content == name) return token.id;
    auto found = std::find(model.tokens.begin(), model.tokens.end(), name);
    if (name.empty() || found == model.tokens.end()) return std::nullopt;
    return int32_t(found - model.tokens.begin());
  };
  auto role = [&](const char* key, const char* usual) {
    auto name = role_in(map, key);
    if (!name) name = role_in(config, key);
    if (name) return id_of(*name);
    if (auto id = id_of(usual)) return id;
    // GPT-2's one special token has every role but padding.
    return std::string_view(key) == "pad_token" ? std::nullopt : id_of("<|endoftext|>");
  };
  model.special = {.bos = role("bos_token", "</s>"),
                   .eos = role("eos_token", "</s>"),
                   .pad = role("pad_token", "<pad>"),
                   .unk = role("unk_token", "<unk>")};
}

}  // namespace

std::unique_ptr<BpeTokenizer> load_bpe_json(const std::string& path) {
  const std::string text = read_file(path);
  return reading(path, [&] {
    const Json root = Json::parse(text);
    check(root.is_object(), path, ": must hold an object");
    const Json& body = object_member(root, "model", path);
    const Json& type = member(body, "type");
    check(type.is_null() || type == "BPE", path, ": a model of type ", type.dump(),
          " is not supported, wanted \"BPE\"");
    refuse_others(root, path);
    BpeModel model;
    model.tokens = read_vocab(member(body, "vocab"), path);
    read_merges(member(body, "merges"), path, model);
    drop_repeated_merges(model);
    read_added(member(root, "added_tokens"), path, model);
    model.add_prefix_space = flag(root["pre_tokenizer"], "add_prefix_space", true, path);
    model.frame = read_frame(text);
    read_roles(fs::path(path).parent_path(), model);
    return std::make_unique<BpeTokenizer>(std::move(model), path);
  });
}

std::unique_ptr<BpeTokenizer> load_bpe_vocab(const std::string& dir) {
  const std::string vocab_path = (fs::path(dir) / "vocab.json").string();
  const std::string merges_path = (fs::path(dir) / "merges.txt").string();
  BpeModel model;
  const std::string vocab = read_file(vocab_path);
  model.tokens = reading(vocab_path, [&] { return read_vocab(Json::parse(vocab), vocab_path); });
  const std::string merges = read_file(merges_path);
  const Ids ids(model.tokens);
  size_t number = 0;
  for (size_t at = 0; at < merges.size();) {
    const size_t end = std::min(merges.find('\n', at), merges.size());
    std::string_view line(merges.data() + at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    at = end + 1;
    if (++number == 1 && line.starts_with("#version")) continue;
    if (line.empty()) continue;
    model.merges.push_back(ids.merge(line, join(merges_path, ": line ", number)));
  }
  drop_repeated_merges(model);
  read_roles(dir, model);
  // Without a list of added tokens those with a role are taken for special ones, as GPT-2's class
  // in transformers does; <unk> is not, since no text becomes unknown.
  for (auto id : {model.special.bos, model.special.eos, model.special.pad}) {
    auto there = [&](const AddedToken& token) { return token.id == *id; };
    if (!id || std::any_of(model.added.begin(), model.added.end(), there)) continue;
    model.added.push_back({.id = *id, .content = model.tokens[size_t(*id)]});
  }
  std::sort(model.added.begin(), model.added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return std::make_unique<BpeTokenizer>(std::move(model), merges_path);
}

}  // namespace brine::data
