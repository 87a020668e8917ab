// Text files as token windows.
#include "data/corpus/corpus.h"

#include <algorithm>
#include <bit>
#include <filesystem>

#include "data/codec/checksums.h"
#include "data/corpus/joined_lines.h"
#include "data/io/file_io.h"
#include "data/io/utf8.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr size_t kReadAtOnce = 1 << 20;

// Empty unless every directory remembers it: the files of any may have changed.
std::string remembered_hash(const TokenCorpus& corpus) {
  std::string hash;
  for (const auto& shards : corpus.shards) {
    hash = shards->verified().corpus_hash(corpus.text_hashes);
    if (hash.empty()) break;
  }
  return hash;
}

}  // namespace

std::string read_joined_lines(const std::vector<std::string>& files) {
  JoinedLines lines(files);
  std::string out;
  for (size_t have = 0;;) {
    out.resize(have + kReadAtOnce);
    const size_t n = lines.read(out.data() + have, kReadAtOnce);
    out.resize(have += n);
    if (n == 0) return out;
  }
}

std::vector<int32_t> TokenCorpus::window(int64_t i) const {
  check(i >= 0 && i < windows(), "corpus: window ", i, " of ", windows());
  return tokens->slice(i * window_tokens, window_tokens);
}

std::string TokenCorpus::hash() const {
  static_assert(std::endian::native == std::endian::little);
  if (std::string known = remembered_hash(*this); !known.empty()) return known;
  Sha256 hash;
  std::vector<int32_t> part;
  for (int64_t from = 0; from < tokens->size(); from += int64_t(part.size())) {
    part.resize(size_t(std::min<int64_t>(1 << 20, tokens->size() - from)));
    tokens->read(from, part);
    hash.update(part.data(), part.size() * sizeof(int32_t));
  }
  for (const auto& each : shards) each->verified().keep_corpus(text_hashes, hash.hex());
  return hash.hex();
}

TokenCorpus load_corpus(const std::vector<std::string>& paths, const Tokenizer& tokenizer,
                        int64_t window_tokens) {
  check(!paths.empty(), "corpus: no text files");
  check(window_tokens >= 2, "corpus: windows of ", window_tokens,
        " tokens predict nothing, at least 2 are needed");
  TokenCorpus corpus{.tokens = nullptr, .window_tokens = window_tokens};
  std::vector<std::shared_ptr<const TokenSource>> parts;
  for (const std::string& path : paths) {
    if (std::filesystem::is_directory(path)) {
      auto shards = std::make_shared<TokenShards>(path);
      check(shards->manifest().tokenizer_hash == tokenizer.hash(), path,
            ": was made with another tokenizer, with the hash ", shards->manifest().tokenizer_hash,
            "; wanted ", tokenizer.hash());
      corpus.text_hashes.push_back(sha256_file((Path(path) / kTokenManifest).string()));
      corpus.shards.push_back(shards);
      parts.push_back(std::move(shards));
    } else {
      const std::string text = read_text(path);
      corpus.text_hashes.push_back(sha256_hex(text));
      parts.push_back(std::make_shared<TokenList>(tokenizer.encode(text)));
    }
  }
  // Another version of the program may tokenise the same text differently.
  if (corpus.shards.size() < paths.size()) corpus.shards.clear();
  corpus.tokens = parts.size() == 1 ? parts[0] : std::make_shared<JoinedTokens>(std::move(parts));
  check(corpus.windows() > 0, paths.front(), paths.size() > 1 ? " (and the others)" : "", ": ",
        corpus.tokens->size(), " tokens do not fill one window of ", window_tokens);
  return corpus;
}

}  // namespace brine::data
