// The table of targets, and the rules that every reader keeps.
#include "tests/fuzz/targets.h"

#include <algorithm>
#include <fstream>

#include "tensor/base/error.h"
#include "tests/fuzz/readers.h"

namespace brine::fuzz {

namespace fs = std::filesystem;

const std::vector<FuzzTarget>& targets() {
  static const std::vector<FuzzTarget> all = {
      {"safetensors", read_safetensors},
      {"gguf", read_gguf},
      {"torch", read_torch},
      {"pickle", read_pickle},
      {"index", read_index},
      {"config", read_config},
      {"toml", read_toml},
      {"tokenizer", read_tokenizer},
      {"bpe", read_bpe},
      {"wordpiece", read_wordpiece},
      {"tsv", read_tsv},
      {"dump", read_dump},
      {"checkpoint", read_checkpoint},
      {"text", read_text_corpus},
      {"lines", read_joined},
      {"jsonl", read_json_lines},
      {"shards", read_token_shards},
  };
  return all;
}

const FuzzTarget& target_named(const std::string& name) {
  std::string known;
  for (const FuzzTarget& target : targets()) {
    if (target.name == name) return target;
    known += " " + target.name;
  }
  throw Error(join("fuzz: unknown target '", name, "'; known are", known));
}

std::string feed(const FuzzTarget& target, const fs::path& dir, std::string_view bytes) {
  for (const fs::directory_entry& old : fs::directory_iterator(dir)) fs::remove_all(old.path());
  try {
    target.read(dir, bytes);
  } catch (const Error& e) {
    std::string said = e.what();
    if (std::any_of(said.begin(), said.end(), [](char c) { return c == '\n' || c == '\0'; }))
      throw Find("a refusal is not one line: " + said);
    if (said.find(dir.string()) == said.npos) throw Find("a refusal names no file: " + said);
    return said;
  }
  return "";
}

std::vector<std::string_view> parts_of(std::string_view bytes, size_t max_parts) {
  constexpr std::string_view kLine = "\n---\n";
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < max_parts) {
    size_t at = bytes.find(kLine);
    if (at == bytes.npos) break;
    parts.push_back(bytes.substr(0, at + 1));
    bytes.remove_prefix(at + kLine.size());
  }
  parts.push_back(bytes);
  return parts;
}

void write_input(const fs::path& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), std::streamsize(bytes.size()));
  check(out.good(), path.string(), ": cannot write");
}

}  // namespace brine::fuzz
