// Writing the parts of a tokenizer's files that are the same for every kind of model.
#include <memory>
#include <nlohmann/json.hpp>

#include "data/io/file_io.h"
#include "data/io/json.h"
#include "data/tokenizer/tokenizer_json.h"
#include "tensor/error.h"

namespace brine::data {

Ordered vocab_json(const std::vector<std::string>& tokens) {
  Ordered vocab = Ordered::object();
  // Appending here skips the search for an equal key, which would take quadratic time.
  auto& items = vocab.get_ref<Ordered::object_t&>();
  for (size_t id = 0; id < tokens.size(); ++id)
    if (!tokens[id].empty()) items.emplace_back(tokens[id], id);
  return vocab;
}

Ordered added_json(const std::vector<AddedToken>& added) {
  Ordered list = Ordered::array();
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

std::string special_map(const Tokenizer& tokenizer) {
  Ordered map = Ordered::object();
  auto put = [&](const char* role, std::optional<int32_t> id) {
    if (id) map[role] = tokenizer.token_of(*id);
  };
  const SpecialIds special = tokenizer.special();
  put("bos_token", special.bos);
  put("eos_token", special.eos);
  put("pad_token", special.pad);
  put("unk_token", special.unk);
  put("cls_token", special.cls);
  put("sep_token", special.sep);
  put("mask_token", special.mask);
  return json_text(map, 2) + "\n";
}

FileTexts common_files(const TokenizerModel& model, const Tokenizer& tokenizer,
                       const std::string& config) {
  auto kept_or = [](const std::string& kept, const std::string& made) {
    return kept.empty() ? made : kept;
  };
  return {{"tokenizer.json", tokenizer.to_json()},
          {"special_tokens_map.json", kept_or(model.special_tokens_map, special_map(tokenizer))},
          {"tokenizer_config.json", kept_or(model.tokenizer_config, config)}};
}

void save_files(const std::string& dir, const FileTexts& files) {
  std::error_code failed;
  const bool is_new = !std::filesystem::exists(dir, failed);
  std::filesystem::create_directories(dir, failed);
  check(!failed, dir, ": cannot be created: ", failed.message());
  try {
    std::vector<std::unique_ptr<AtomicFile>> all;
    for (const auto& [name, text] : files) {
      all.push_back(std::make_unique<AtomicFile>(Path(dir) / name));
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
