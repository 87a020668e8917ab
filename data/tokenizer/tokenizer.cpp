// Loading a tokenizer: detects which one a path contains.
#include "data/tokenizer/tokenizer.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/gguf/gguf_file.h"
#include "data/io/file_io.h"
#include "data/tokenizer/bpe/bpe.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/vocabulary.h"
#include "data/tokenizer/wordpiece.h"
#include "data/weights/hub_cache.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

std::unique_ptr<Tokenizer> load_json(const std::string& path) {
  TokenizerFile file{.path = path, .text = read_file(path), .root = {}};
  file.root = std::make_shared<SortedJson>(parse_json(file.text, path));
  check_format(file.root->is_object(), path, ": must contain an object");
  const SortedJson& model = object_member(*file.root, "model", path);
  const SortedJson& type = member(model, "type");
  check_format(type.is_null() || type.is_string(), path, ": model: 'type' must be a string");
  // Old files do not have the type.
  const bool old = type.is_null();
  const std::string name = old ? "BPE" : type.get<std::string>();
  if (name == "WordPiece" || (old && model.contains("max_input_chars_per_word")))
    return load_wordpiece_json(std::move(file));
  check_format(name == "BPE", path, ": a model of type \"", name,
               "\" is not supported, wanted \"BPE\" or \"WordPiece\"");
  return load_bpe_json(file);
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name) {
  namespace fs = std::filesystem;
  const std::string path = local_model(name);
  std::error_code ignored;
  auto has = [&](const char* name) { return fs::exists(fs::path(path) / name, ignored); };
  check_found(fs::exists(path, ignored), path, ": no such file or directory (expected a tokenizer)",
              how_to_fetch(path));
  if (is_gguf(path)) return make_tokenizer(gguf_vocabulary(Path(path)), path);
  if (!fs::is_directory(path, ignored)) return load_json(path);
  if (has("tokenizer.json")) return load_json((fs::path(path) / "tokenizer.json").string());
  if (has("vocab.json")) return load_bpe_vocab(path);
  if (has("vocab.txt")) return load_wordpiece_vocab(path);
  throw Error(join(path,
                   ": contains no tokenizer.json, no vocab.json with merges.txt and no "
                   "vocab.txt"));
}

}  // namespace brine::data
