// Finds out which tokenizer a path holds.
#include "data/tokenizer.h"

#include <filesystem>

#include "data/bpe.h"
#include "tensor/error.h"

namespace brine::data {

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  auto has = [&](const char* name) { return fs::exists(fs::path(path) / name, ignored); };
  check(fs::exists(path, ignored), path, ": no such file or directory (a tokenizer was wanted)");
  if (!fs::is_directory(path, ignored)) return load_bpe_json(path);
  if (has("tokenizer.json")) return load_bpe_json((fs::path(path) / "tokenizer.json").string());
  if (has("vocab.json")) return load_bpe_vocab(path);
  check(!has("vocab.txt"), path, ": holds vocab.txt; WordPiece tokenizers are not supported");
  throw Error(join(path, ": holds no tokenizer.json and no vocab.json with merges.txt"));
}

}  // namespace brine::data
