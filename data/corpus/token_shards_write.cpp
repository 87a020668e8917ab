// Writing token shards: files grow in a temporary directory; the manifest is written last.
#include <bit>
#include <nlohmann/json.hpp>

#include "data/corpus/token_shards.h"
#include "data/io/json.h"

namespace brine::data {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr size_t kBuffer = 1 << 20;

// Throws before anything is read.
std::string new_name(const Path& dir) {
  std::error_code ignored;
  check(!std::filesystem::exists(std::filesystem::symlink_status(dir, ignored)), dir.string(),
        ": exists already; token shards are written to a new directory");
  return without_slash(dir).filename().string();
}

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

// A file that is hashed while it is written.
struct TokenShardWriter::OpenFile {
  explicit OpenFile(const Path& path) : name(path.filename().string()), file(path) {}
  std::string name, buffer;
  NewFile file;
  Sha256 hash;
  int64_t count = 0;

  void flush() {
    hash.update(buffer);
    file.write(buffer);
    buffer.clear();
  }
  TokenShard close() {
    flush();
    file.sync();
    return {.name = name, .count = count, .sha256 = hash.hex()};
  }
};

TokenShardWriter::TokenShardWriter(const Path& dir, TokenManifest about, uint64_t shard_bytes)
    : dir_(directory_of(without_slash(dir)), new_name(dir)), manifest_(std::move(about)) {
  check(manifest_.vocab_size > 0, "token shards: the tokenizer has no vocabulary");
  manifest_.width = manifest_.vocab_size <= 65536 ? 2 : 4;
  shard_tokens_ = std::max<int64_t>(int64_t(shard_bytes) / manifest_.width, 1);
  starts_ = std::make_unique<OpenFile>(dir_.path() / kTokenStarts);
}

TokenShardWriter::~TokenShardWriter() = default;

void TokenShardWriter::begin_document() {
  append(starts_->buffer, uint64_t(manifest_.tokens));
  ++starts_->count;
  ++manifest_.documents;
  if (starts_->buffer.size() >= kBuffer) starts_->flush();
}

void TokenShardWriter::put(int32_t token) {
  check(token >= 0 && token < manifest_.vocab_size, "token shards: token ", token,
        " is outside the vocabulary of ", manifest_.vocab_size);
  if (!shard_) {
    std::string number = std::to_string(manifest_.shards.size());
    number.insert(0, number.size() < 5 ? 5 - number.size() : 0, '0');
    const std::string type = name_of(manifest_.width, kTokenTypes);
    shard_ = std::make_unique<OpenFile>(dir_.path() / ("tokens-" + number + "." + type));
  }
  if (manifest_.width == 2)
    append(shard_->buffer, uint16_t(token));
  else
    append(shard_->buffer, uint32_t(token));
  ++manifest_.tokens;
  if (++shard_->count == shard_tokens_)
    close_shard();
  else if (shard_->buffer.size() >= kBuffer)
    shard_->flush();
}

void TokenShardWriter::close_shard() {
  manifest_.shards.push_back(shard_->close());
  shard_.reset();
}

void TokenShardWriter::add(std::span<const int32_t> tokens) {
  for (int32_t token : tokens) put(token);
}

void TokenShardWriter::end_document() {
  if (manifest_.separator) put(*manifest_.separator);
}

TokenManifest TokenShardWriter::finish() {
  check(manifest_.tokens > 0, "token shards: the files contain no text");
  if (shard_) close_shard();
  manifest_.starts = starts_->close();
  nlohmann::ordered_json json = {{"format", kTokenFormat},
                                 {"version", kTokenShardsVersion},
                                 {"tokenizer", manifest_.tokenizer_hash},
                                 {"vocab_size", manifest_.vocab_size},
                                 {"dtype", name_of(manifest_.width, kTokenTypes)},
                                 {"separator", nullptr},
                                 {"joining", name_of(manifest_.joining, kJoinings)},
                                 {"tokens", manifest_.tokens},
                                 {"documents", manifest_.documents},
                                 {"sources", manifest_.sources}};
  if (manifest_.separator) json["separator"] = *manifest_.separator;
  for (const TokenShard& shard : manifest_.shards) {
    json["shards"].push_back(
        {{"name", shard.name}, {"tokens", shard.count}, {"sha256", shard.sha256}});
  }
  const TokenShard& starts = manifest_.starts;
  json["starts"] = {{"name", starts.name}, {"documents", starts.count}, {"sha256", starts.sha256}};
  NewFile file(dir_.path() / kTokenManifest);
  file.write(json_text(json, 2) + "\n");
  file.sync();
  dir_.publish_new();
  return manifest_;
}

}  // namespace brine::data
