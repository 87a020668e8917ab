// The parts of tokenizer.json that all kinds of models share, and the files next to it.
#include "data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "data/io/file_io.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr int kMaxLevels = 64;  // objects are written recursively
constexpr uint64_t kMaxTemplate = 16 << 20;

}  // namespace

void rethrow_naming(const std::string& path) {
  try {
    throw;
  } catch (const nlohmann::json::exception& e) {
    std::string why = e.what();
    why.erase(0, why.find("] ") == std::string::npos ? 0 : why.find("] ") + 2);
    throw Error(join(path, ": ", why), ErrorKind::format);
  }
}

SortedJson parse_json(const std::string& text, const std::string& path) {
  return reading(path, [&] { return brine::parse_json(text, path, kMaxLevels); });
}

const SortedJson& member(const SortedJson& object, const char* key) {
  static const SortedJson null;
  auto found = object.find(key);
  return found == object.end() ? null : *found;
}

const SortedJson& object_member(const SortedJson& object, const char* key,
                                const std::string& path) {
  const SortedJson& value = member(object, key);
  check_format(value.is_object(), path, ": '", key, "' must be an object");
  return value;
}

bool flag(const SortedJson& object, const char* key, bool otherwise, const std::string& path) {
  const SortedJson& value = member(object, key);
  check_format(value.is_null() || value.is_boolean(), path, ": '", key, "' must be true or false");
  return value.is_null() ? otherwise : value.get<bool>();
}

TextPattern read_pattern(const SortedJson& description, const std::string& where) {
  const SortedJson& pattern = member(description, "pattern");
  const SortedJson& text = pattern.is_object() ? member(pattern, "String") : pattern;
  const SortedJson& regex = pattern.is_object() ? member(pattern, "Regex") : pattern;
  check_format(pattern.is_object() && text.is_string() != regex.is_string(), where,
               ": 'pattern' must be a String or a Regex");
  if (regex.is_string()) return {.regex = std::make_shared<Regex>(regex.get<std::string>(), where)};
  check_format(text != "", where, ": 'pattern' is an empty String");
  return {.literal = text.get<std::string>()};
}

std::vector<std::string> read_vocab(const SortedJson& vocab, const std::string& path) {
  check_format(vocab.is_object() && !vocab.empty(), path,
               ": the vocabulary must map tokens to ids");
  const size_t id_limit = 2 * vocab.size() + 65536;
  std::vector<std::string> tokens;
  for (const auto& [token, id] : vocab.items()) {
    check_format(!token.empty(), path, ": the vocabulary contains an empty token");
    check_format(id.is_number_unsigned() && id.get<uint64_t>() < id_limit, path, ": token '", token,
                 "' has the id ", json_text(id), ", wanted a number from 0 to ", id_limit - 1);
    const auto at = id.get<size_t>();
    if (at >= tokens.size()) tokens.resize(at + 1);
    check_format(tokens[at].empty(), path, ": tokens '", tokens[at], "' and '", token,
                 "' both have the id ", at);
    tokens[at] = token;
  }
  return tokens;
}

std::vector<AddedToken> read_added(const SortedJson& list, const std::string& path) {
  check_format(list.is_null() || list.is_array(), path, ": 'added_tokens' must be a list");
  std::vector<AddedToken> added;
  for (const SortedJson& item : list) {
    check_format(item.is_object() && member(item, "content").is_string(), path,
                 ": an added token has no 'content'");
    AddedToken token;
    token.content = item["content"].get<std::string>();
    const SortedJson& id = member(item, "id");
    check_format(id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX, path,
                 ": added token '", token.content, "' has no valid 'id'");
    token.id = id.get<int32_t>();
    token.special = flag(item, "special", false, path);
    token.normalized = flag(item, "normalized", !token.special, path);
    token.lstrip = flag(item, "lstrip", false, path);
    token.rstrip = flag(item, "rstrip", false, path);
    check_format(!flag(item, "single_word", false, path), path, ": added token '", token.content,
                 "': single_word is not supported");
    added.push_back(std::move(token));
  }
  return added;
}

size_t count_tokens(const std::vector<std::string>& tokens) {
  return size_t(std::count_if(tokens.begin(), tokens.end(),
                              [](const std::string& token) { return !token.empty(); }));
}

void assign_added_ids(TokenizerModel& model, size_t vocabulary, const std::string& path) {
  std::unordered_map<std::string_view, int32_t> known;
  for (size_t id = 0; id < model.tokens.size() && !model.added.empty(); ++id)
    if (!model.tokens[id].empty()) known.emplace(model.tokens[id], int32_t(id));
  std::unordered_set<std::string> seen;
  std::vector<AddedToken> kept;
  auto next = int32_t(vocabulary);
  int64_t changed = 0;
  std::string first;
  for (AddedToken& token : model.added) {
    if (!seen.insert(token.content).second) continue;
    const auto found = known.find(token.content);
    const int32_t id = found != known.end() ? found->second : next;
    next = std::max(next, id + 1);
    if (id != token.id && changed++ == 0)
      first = join("'", token.content, "' has the id ", id, ", not ", token.id);
    token.id = id;
    kept.push_back(std::move(token));
  }
  std::ranges::stable_sort(kept, {}, &AddedToken::id);
  model.added = std::move(kept);
  if (changed == 0) return;
  model.notes.push_back(join(path, ": added token ", first,
                             changed > 1 ? join(", and ", changed - 1, " more so") : "",
                             ": ids follow the vocabulary without holes, in the order of the "
                             "list, as in tokenizers"));
}

std::string read_frame(const std::string& text, const std::string& path) {
  // Depth 2 has the keys of the parts; only the model has these two.
  Json frame = parse_ordered_json(text, path, [](int depth, const std::string& key) {
    return depth == 2 && (key == "vocab" || key == "merges");
  });
  frame["truncation"] = nullptr;
  frame["padding"] = nullptr;
  frame["added_tokens"] = Json::array();
  frame["model"]["vocab"] = Json::object();
  return json_text(frame);
}

SideFile side_file(const std::filesystem::path& dir, const char* name) {
  SideFile file;
  file.path = (dir / name).string();
  file.parsed = std::make_shared<const SortedJson>(SortedJson::object());
  std::error_code ignored;
  if (!std::filesystem::exists(file.path, ignored)) return file;
  file.text = read_file(file.path);
  file.parsed = std::make_shared<const SortedJson>(parse_json(file.text, file.path));
  check_format(file.object().is_object(), file.path, ": must contain an object");
  return file;
}

SideFiles::SideFiles(const std::filesystem::path& dir)
    : directory(dir),
      map(side_file(dir, "special_tokens_map.json")),
      config(side_file(dir, "tokenizer_config.json")),
      added(side_file(dir, "added_tokens.json")),
      model(side_file(dir, "config.json")) {}

std::optional<std::string> SideFiles::role(const char* role) const {
  for (const SortedJson* object : {&map.object(), &config.object()}) {
    const SortedJson& value = member(*object, role);
    if (value.is_string()) return value.get<std::string>();
    if (value.is_object() && member(value, "content").is_string())
      return value["content"].get<std::string>();
  }
  return std::nullopt;
}

std::string SideFiles::tokenizer_class() const {
  const SortedJson& value = member(config.object(), "tokenizer_class");
  std::string name = value.is_string() ? value.get<std::string>() : std::string();
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

std::string SideFiles::model_type() const {
  const SortedJson& value = member(model.object(), "model_type");
  return value.is_string() ? value.get<std::string>() : std::string();
}

void SideFiles::add_tokens(std::vector<AddedToken>& tokens) const {
  std::unordered_set<std::string> known;
  for (const AddedToken& token : tokens) known.insert(token.content);
  auto add = [&](const std::vector<AddedToken>& more) {
    for (const AddedToken& token : more)
      if (known.insert(token.content).second) tokens.push_back(token);
  };
  const SortedJson& decoder = member(config.object(), "added_tokens_decoder");
  check_format(decoder.is_null() || decoder.is_object(), config.path,
               ": 'added_tokens_decoder' must be an object");
  SortedJson list = SortedJson::array();
  for (const auto& [id, token] : decoder.items()) {
    const bool number =
        !id.empty() && id.size() < 10 && id.find_first_not_of("0123456789") == std::string::npos;
    check_format(number && token.is_object(), config.path, ": added_tokens_decoder: '", id,
                 "' must be an id of an object");
    list.push_back(token);
    list.back()["id"] = uint64_t(std::stoul(id));
  }
  add(read_added(list, config.path));
  list = SortedJson::array();
  for (const auto& [content, id] : added.object().items())
    list.push_back({{"content", content}, {"id", id}, {"normalized", true}});
  add(read_added(list, added.path));
  std::ranges::stable_sort(tokens, {}, &AddedToken::id);
}

void SideFiles::keep_for_writing(TokenizerModel& kept) const {
  namespace fs = std::filesystem;
  kept.tokenizer_config = config.text;
  kept.special_tokens_map = map.text;
  // The names under which transformers saves one template, or several.
  auto keep = [&](const fs::path& name) {
    if (fs::is_regular_file(directory / name))
      kept.chat_templates[name.string()] = read_file(directory / name, kMaxTemplate);
  };
  keep("chat_template.jinja");
  const fs::path others = "additional_chat_templates";
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(directory / others, none))
    if (entry.path().extension() == ".jinja") keep(others / entry.path().filename());
}

std::optional<int32_t> find_token(const TokenizerModel& model, const std::string& name) {
  for (const AddedToken& token : model.added)
    if (token.content == name) return token.id;
  auto found = std::find(model.tokens.begin(), model.tokens.end(), name);
  if (name.empty() || found == model.tokens.end()) return std::nullopt;
  return int32_t(found - model.tokens.begin());
}

const std::string& token_text(const TokenizerModel& model, int32_t id) {
  for (const AddedToken& token : model.added)
    if (token.id == id) return token.content;
  return model.tokens[size_t(id)];
}

void add_special(TokenizerModel& model, std::optional<int32_t> id) {
  if (!id) return;
  const auto at = std::ranges::lower_bound(model.added, *id, {}, &AddedToken::id);
  if (at != model.added.end() && at->id == *id) return;
  model.added.insert(at, {.id = *id, .content = model.tokens[size_t(*id)]});
}

}  // namespace brine::data
