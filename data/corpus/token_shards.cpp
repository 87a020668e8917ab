// Reading token shards: the manifest, the checks, what was hashed at an earlier start, and windows
// from mapped files.
#include "data/corpus/token_shards.h"

#include <sys/stat.h>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "data/codec/checksums.h"
#include "data/io/json.h"

namespace brine::data {
namespace {

constexpr uint64_t kMaxShardManifest = uint64_t(1) << 28;
constexpr int64_t kMaxTokens = int64_t(1) << 60;  // so that no sum or product below overflows
// The kernel maps this much around a page that is accessed.
constexpr uint64_t kForgotten = 64 << 10;

int64_t get_count(const std::string& where, const Json& object, const char* key) {
  const auto count = integer_at(where, object, key);
  check_format(count >= 0 && count <= kMaxTokens, where, ": key \"", key, "\" cannot be ", count);
  return count;
}

TokenShard read_shard(const std::string& where, const Json& entry, const char* count) {
  check_format(entry.is_object(), where, ": a shard is not an object");
  TokenShard shard{.name = text_at(where, entry, "name"),
                   .count = get_count(where, entry, count),
                   .sha256 = text_at(where, entry, "sha256")};
  check_format(is_plain_name(shard.name), where, ": shard \"", shard.name,
               "\" is not a plain file name");
  return shard;
}

void check_sums(const std::string& where, const TokenManifest& m) {
  int64_t tokens = 0;
  std::set<std::string> names = {kTokenManifest, kVerifiedFiles};
  check_format(names.insert(m.starts.name).second, where, ": file \"", m.starts.name,
               "\" is one of another purpose");
  for (const TokenShard& shard : m.shards) {
    check_format(shard.count > 0 && shard.count <= kMaxTokens - tokens, where, ": shard \"",
                 shard.name, "\" cannot contain ", shard.count, " tokens");
    check_format(names.insert(shard.name).second, where, ": file \"", shard.name,
                 "\" is a duplicate");
    tokens += shard.count;
  }
  check_format(tokens == m.tokens && tokens > 0, where, ": the shards contain ", tokens,
               " tokens, not ", m.tokens);
  check_format(m.starts.count == m.documents, where, ": key \"documents\" is ", m.documents,
               ", but the list of their starts has ", m.starts.count);
}

void verify(const Path& dir, const TokenShard& shard, int64_t width, VerifiedFiles& verified) {
  const Path path = dir / shard.name;
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(path, error);
  check_found(!error, path.string(), ": is missing");
  const uint64_t wanted = uint64_t(shard.count) * uint64_t(width);
  check_format(bytes == wanted, path.string(), ": has ", bytes, " bytes, wanted ", wanted);
  check_format(verified.has(shard.name, shard.sha256), path.string(),
               ": is damaged: its checksum differs from the manifest's");
}

}  // namespace

bool is_token_shards(const Path& dir) {
  std::error_code ignored;
  return std::filesystem::exists(dir / kTokenManifest, ignored);
}

TokenManifest read_token_manifest(const Path& dir) {
  const Path path = dir / kTokenManifest;
  const std::string where = path.string();
  check_format(is_token_shards(dir), dir.string(), ": is a directory without ", kTokenManifest,
               ": no token shards, or incomplete ones");
  const Json json = parse_json_or_discard(read_file(path, kMaxShardManifest), where);
  check_format(!json.is_discarded() && json.is_object(), where, ": is not a JSON object");
  check_format(text_at(where, json, "format") == kTokenFormat, where,
               ": is not a manifest of token shards");
  const auto version = integer_at(where, json, "version");
  check_format(version == kTokenShardsVersion, where, ": format version ", version,
               " is not supported, only ", kTokenShardsVersion);
  TokenManifest m;
  m.tokenizer_hash = text_at(where, json, "tokenizer");
  m.vocab_size = get_count(where, json, "vocab_size");
  const auto dtype = text_at(where, json, "dtype");
  const std::optional<int64_t> width = value_of(dtype, kTokenTypes);
  check_format(width.has_value(), where, ": dtype \"", dtype, "\" is neither u16 nor u32");
  m.width = *width;
  check_format(m.vocab_size > 0 && m.vocab_size <= INT32_MAX, where, ": vocab_size cannot be ",
               m.vocab_size);
  if (json.contains("separator") && !json["separator"].is_null()) {
    const auto id = integer_at(where, json, "separator");
    check_format(id >= 0 && id < m.vocab_size, where, ": separator ", id,
                 " is outside the vocabulary");
    m.separator = int32_t(id);
  }
  if (json.contains("joining")) {
    const auto joining = value_of(text_at(where, json, "joining"), kJoinings);
    check_format(joining.has_value(), where, ": joining is neither documents nor lines");
    m.joining = *joining;
  }
  check_format(m.joining == Joining::documents || !m.separator, where,
               ": joined lines have no separator");
  m.tokens = get_count(where, json, "tokens");
  m.documents = get_count(where, json, "documents");
  for (const Json& source : list_at(where, json, "sources")) {
    check_format(source.is_string(), where, ": key \"sources\" contains a value that is not text");
    m.sources.push_back(source.get<std::string>());
  }
  for (const Json& entry : list_at(where, json, "shards"))
    m.shards.push_back(read_shard(where, entry, "tokens"));
  check_format(json.contains("starts"), where, ": key \"starts\" is missing");
  m.starts = read_shard(where, json["starts"], "documents");
  check_sums(where, m);
  return m;
}

std::string describe(const TokenManifest& m, const Tokenizer& tokenizer) {
  const std::string between = m.separator
                                  ? join("each followed by ", tokenizer.token_of(*m.separator))
                                  : std::string("nothing between them");
  return join(m.tokens, " tokens of ", 8 * m.width, " bits, ", m.documents, " documents, ", between,
              ", ", m.shards.size(), " shards");
}

TokenShards::TokenShards(const Path& dir, Hashing hashing)
    : dir_(dir), manifest_(read_token_manifest(dir)), verified_(dir, hashing) {
  int64_t end = 0;
  for (const TokenShard& shard : manifest_.shards) {
    verify(dir, shard, manifest_.width, verified_);
    files_.emplace_back(dir / shard.name);
    check_format(files_.back().size() == uint64_t(shard.count * manifest_.width),
                 (dir / shard.name).string(), ": changed while it was opened");
    ends_.push_back(end += shard.count);
  }
  verify(dir, manifest_.starts, 8, verified_);
  verified_.keep();
}

template <class T>
void TokenShards::copy(size_t shard, int64_t from, std::span<int32_t> out) const {
  const MappedFile& file = files_[shard];
  const uint64_t begin = uint64_t(from) * sizeof(T), bytes = out.size() * sizeof(T);
  for (size_t i = 0; i < out.size(); ++i) {
    const T token = number_from<T>(file.data() + begin + i * sizeof(T));
    check_format(int64_t(token) < manifest_.vocab_size,
                 (dir_ / manifest_.shards[shard].name).string(), ": token ", int64_t(token),
                 " at position ", from + int64_t(i), " is outside the vocabulary of ",
                 manifest_.vocab_size);
    out[i] = int32_t(token);
  }
  // Single tokens from anywhere leave their pages until there are many.
  constexpr uint64_t kShort = 256;
  constexpr uint32_t kMaxShort = 1024;
  if (bytes <= kShort) {
    if (++short_reads_ % kMaxShort == 0)
      for (const MappedFile& each : files_) each.forget(0, each.size());
    return;
  }
  const uint64_t first = begin / kForgotten * kForgotten;
  file.forget(first, begin + bytes + kForgotten - first);
}

void TokenShards::read(int64_t from, std::span<int32_t> out) const {
  check(from >= 0 && from <= size() && int64_t(out.size()) <= size() - from, dir_.string(), ": ",
        out.size(), " tokens from ", from, " on are not within the ", size(), " that there are");
  read_parts(ends_, from, out, [&](size_t shard, int64_t at, std::span<int32_t> to) {
    manifest_.width == 2 ? copy<uint16_t>(shard, at, to) : copy<uint32_t>(shard, at, to);
  });
}

namespace {

constexpr uint64_t kMaxBytes = uint64_t(1) << 28;
constexpr const char* kFormat = "brine-verified";
constexpr int64_t kVersion = 1;

}  // namespace

VerifiedFiles::VerifiedFiles(const Path& dir, Hashing hashing) : dir_(dir), hashing_(hashing) {
  const Path path = dir / kVerifiedFiles;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return;
  try {
    const std::string where = path.string();
    const Json json = parse_json_or_discard(read_file(path, kMaxBytes), where);
    if (!json.is_object() || text_at(where, json, "format") != kFormat ||
        integer_at(where, json, "version") != kVersion)
      return;
    for (const Json& file : json.value("files", Json::array()))
      files_[text_at(where, file, "name")] = {.bytes = integer_at(where, file, "bytes"),
                                              .changed = integer_at(where, file, "changed"),
                                              .sha256 = text_at(where, file, "sha256")};
    for (const Json& corpus : json.value("corpora", Json::array()))
      corpora_[list_at(where, corpus, "manifests").get<std::vector<std::string>>()] =
          text_at(where, corpus, "sha256");
  } catch (const std::exception&) {  // only hashing again is lost
    files_.clear();
    corpora_.clear();
  }
}

VerifiedFiles::State VerifiedFiles::state_of(const Path& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return {};
  return {.bytes = int64_t(info.st_size),
          .changed = int64_t(info.st_ctim.tv_sec) * 1'000'000'000 + info.st_ctim.tv_nsec};
}

bool VerifiedFiles::has(const std::string& name, const std::string& sha256) {
  const Path path = dir_ / name;
  State now = state_of(path);
  now.sha256 = sha256;
  const auto known = files_.find(name);
  const bool same = known != files_.end() && known->second == now;
  if (hashing_ == Hashing::changed && same) return true;
  if (!same) new_ |= !std::exchange(corpora_, {}).empty();
  hashed_ += uint64_t(std::max<int64_t>(now.bytes, 0));
  const bool good = sha256_file(path.string()) == sha256;
  State after = state_of(path);
  after.sha256 = sha256;
  if (!good) {  // nor is it trusted at the next start
    new_ |= files_.erase(name) > 0;
    keep();
  } else if (after == now) {  // one that is being written is hashed again
    new_ |= !same;
    files_[name] = now;
  }
  return good;
}

std::string VerifiedFiles::corpus_hash(const std::vector<std::string>& manifests) const {
  const auto known = corpora_.find(manifests);
  return known == corpora_.end() ? "" : known->second;
}

void VerifiedFiles::keep_corpus(const std::vector<std::string>& manifests,
                                const std::string& hash) {
  corpora_[manifests] = hash;
  new_ = true;
  keep();
}

void VerifiedFiles::keep() {
  if (!std::exchange(new_, false)) return;
  Json json = {{"format", kFormat},
               {"version", kVersion},
               {"files", Json::array()},
               {"corpora", Json::array()}};
  for (const auto& [name, file] : files_)
    json["files"].push_back({{"name", name},
                             {"bytes", file.bytes},
                             {"changed", file.changed},
                             {"sha256", file.sha256}});
  for (const auto& [manifests, hash] : corpora_)
    json["corpora"].push_back({{"manifests", manifests}, {"sha256", hash}});
  try {
    remove_stale_temporaries(dir_);
    write_file_atomic(dir_ / kVerifiedFiles, json_text(json, 2) + "\n");
  } catch (const std::exception&) {  // read-only, or another process writes the same
  }
}

}  // namespace brine::data
