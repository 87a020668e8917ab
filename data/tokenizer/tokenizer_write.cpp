// Writing the parts of a tokenizer's files that are the same for every kind of model.
#include <memory>
#include <nlohmann/json.hpp>

#include "data/io/file_io.h"
#include "data/io/json.h"
#include "data/tokenizer/tokenizer_json.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

// The class of tokenizer_config.json: `found`, unless only transformers 5 knows it, or it means
// another way of cutting texts than this tokenizer's, which transformers 5 would use in place
// of tokenizer.json's.
std::string known_class(const std::string& found, const Tokenizer& tokenizer) {
  const std::string name = found.ends_with("Fast") ? found.substr(0, found.size() - 4) : found;
  const bool only_new =
      name == "TokenizersBackend" || name == "PythonBackend" || name == "SentencePieceBackend";
  const bool cuts = name == "GPT2Tokenizer" || name == "Qwen2Tokenizer";
  const bool other = cuts && name != tokenizer.transformers_class();
  return only_new || other ? "PreTrainedTokenizerFast" : found;
}

// tokenizer_config.json for transformers 4.57 and 5. Without a class both choose that of the
// model's family, so that a tokenizer that no such class cuts as gets one.
std::string readable_config(const std::string& read, const Tokenizer& tokenizer) {
  Json config = parse_ordered_json(read);
  const Json before = config;
  const auto named = config.find("tokenizer_class");
  if (named != config.end() && named->is_string()) {
    *named = known_class(named->get<std::string>(), tokenizer);
  } else if (tokenizer.transformers_class().empty()) {
    config["tokenizer_class"] = "PreTrainedTokenizerFast";
  }
  // transformers 4.57 reads a list under its earlier name only.
  const auto extra = config.find("extra_special_tokens");
  if (extra != config.end() && extra->is_array()) {
    if (!config.contains("additional_special_tokens")) config["additional_special_tokens"] = *extra;
    config.erase("extra_special_tokens");
  }
  return config == before ? read : json_text(config, 2) + "\n";
}

}  // namespace

Json vocab_json(const std::vector<std::string>& tokens) {
  Json vocab = Json::object();
  // Appending here skips the search for an equal key, which would take quadratic time.
  auto& items = vocab.get_ref<Json::object_t&>();
  for (size_t id = 0; id < tokens.size(); ++id)
    if (!tokens[id].empty()) items.emplace_back(tokens[id], id);
  return vocab;
}

Json added_json(const std::vector<AddedToken>& added) {
  Json list = Json::array();
  for (const AddedToken& token : added)
    list.push_back({{"id", token.id},
                    {"content", token.content},
                    {"single_word", false},
                    {"lstrip", token.lstrip},
                    {"rstrip", token.rstrip},
                    {"normalized", token.normalized},
                    {"special", token.special}});
  return list;
}

Json special_map(const TokenizerModel& model) {
  const SpecialIds& s = model.special;
  Json map = Json::object();
  for (const auto& [role, id] : {std::pair("bos_token", s.bos),
                                 {"eos_token", s.eos},
                                 {"pad_token", s.pad},
                                 {"unk_token", s.unk},
                                 {"cls_token", s.cls},
                                 {"sep_token", s.sep},
                                 {"mask_token", s.mask}})
    if (id) map[role] = token_text(model, *id);
  return map;
}

FileTexts common_files(const TokenizerModel& model, const Tokenizer& tokenizer,
                       const std::string& config) {
  const std::string& map = model.special_tokens_map;
  FileTexts files = {
      {"tokenizer.json", tokenizer.to_json()},
      {"special_tokens_map.json", map.empty() ? json_text(special_map(model), 2) + "\n" : map},
      {"tokenizer_config.json", model.tokenizer_config.empty()
                                    ? config
                                    : readable_config(model.tokenizer_config, tokenizer)}};
  files.insert(files.end(), model.chat_templates.begin(), model.chat_templates.end());
  return files;
}

void save_files(const std::string& dir, const FileTexts& files) {
  std::error_code failed;
  const bool is_new = !std::filesystem::exists(dir, failed);
  auto make = [&](const Path& at) {
    std::filesystem::create_directories(at, failed);
    check(!failed, at.string(), ": cannot be created: ", failed.message());
  };
  make(dir);
  try {
    std::vector<std::unique_ptr<AtomicFile>> all;
    for (const auto& [name, text] : files) {
      const Path file = Path(dir) / name;
      make(file.parent_path());
      all.push_back(std::make_unique<AtomicFile>(file));
      all.back()->write(text);
      all.back()->sync();
    }
    for (const auto& file : all) file->commit();
  } catch (...) {
    if (is_new) std::filesystem::remove(dir, failed);  // if nothing got its name
    throw;
  }
}

}  // namespace brine::data
