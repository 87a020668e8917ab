// Token shards: a corpus that is tokenised once and then memory-mapped; docs/formats.md describes
// the format. What was hashed at an earlier start.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/codec/checksums.h"
#include "data/config/named.h"
#include "data/corpus/token_source.h"
#include "data/io/file_io.h"
#include "data/io/temporary.h"
#include "data/tokenizer/tokenizer.h"

namespace brine::data {

inline constexpr int64_t kTokenShardsVersion = 1;

// What a corpus is made of: each file's documents, or one document, JoinedLines of all files.
enum class Joining : uint8_t { documents, lines };
inline constexpr Named<Joining> kJoinings[] = {{Joining::documents, "documents"},
                                               {Joining::lines, "lines"}};

struct TokenShard {
  std::string name;
  int64_t count = 0;  // tokens, or in documents.u64 documents
  std::string sha256 = {};
};

// manifest.json
struct TokenManifest {
  std::string tokenizer_hash;
  int64_t vocab_size = 0;                 // every id is below it
  int64_t width = 2;                      // bytes of a token, 2 or 4, little-endian
  std::optional<int32_t> separator = {};  // the token after every document
  Joining joining = Joining::documents;
  int64_t tokens = 0, documents = 0;      // separators are among the tokens
  std::vector<std::string> sources = {};  // names of the input files
  std::vector<TokenShard> shards = {};    // in order
  TokenShard starts = {};                 // starts of the documents: u64, in tokens
};

// Throws an Error naming the file and the reason when the manifest is malformed, of a newer version
// or inconsistent. Does not access other files.
TokenManifest read_token_manifest(const Path& dir);
bool is_token_shards(const Path& dir);
// Tokens, documents, shards and the separator in words; `tokenizer` spells it.
std::string describe(const TokenManifest& manifest, const Tokenizer& tokenizer);

// Files of a directory whose checksums were compared, remembered beside them, so that a large file
// is hashed when it is new or has changed, not at every start.
enum class Hashing : uint8_t { changed, all };  // files that are new or have changed; every file

// What is remembered is the file kVerifiedFiles of the directory. One that cannot be read remembers
// nothing, in a directory that cannot be written nothing is remembered: files are hashed then.
inline constexpr const char* kVerifiedFiles = "verified.json";

class VerifiedFiles {
 public:
  explicit VerifiedFiles(const std::filesystem::path& dir, Hashing hashing = Hashing::changed);

  // Whether the file has this checksum (64 hex digits). It is not read if it had it before and its
  // size and time of change (ctime, which copying and setting its dates change, too) are the same.
  bool has(const std::string& name, const std::string& sha256);
  // Remembers what has() found, replacing the file at once: several processes may do so together.
  void keep();

  // TokenCorpus::hash() of the directories of token shards whose manifests have these SHA-256;
  // empty: keep_corpus() was not told it since has() read a file that was new or had changed.
  std::string corpus_hash(const std::vector<std::string>& manifests) const;
  void keep_corpus(const std::vector<std::string>& manifests, const std::string& hash);

  uint64_t hashed_bytes() const { return hashed_; }  // by has()

 private:
  struct State {
    int64_t bytes = -1, changed = 0;  // ctime in nanoseconds; bytes -1: there is no such file
    std::string sha256 = {};
    bool operator==(const State&) const = default;
  };
  static State state_of(const std::filesystem::path& path);

  std::filesystem::path dir_;
  Hashing hashing_;
  std::map<std::string, State> files_ = {};
  std::map<std::vector<std::string>, std::string> corpora_ = {};  // hashes by manifests
  bool new_ = false;  // files_ or corpora_ differs from what is stored
  uint64_t hashed_ = 0;
};

// The tokens of a directory of shards. Windows are copied, and their pages released, so that the
// memory of a reader does not grow with the amount it has read.
class TokenShards : public TokenSource {
 public:
  // Verifies sizes and checksums of all files, by reading those that were not verified before
  // (VerifiedFiles).
  explicit TokenShards(const Path& dir, Hashing hashing = Hashing::changed);
  const TokenManifest& manifest() const { return manifest_; }
  uint64_t hashed_bytes() const { return verified_.hashed_bytes(); }  // when it was opened
  VerifiedFiles& verified() { return verified_; }
  int64_t size() const override { return manifest_.tokens; }
  // A token outside the vocabulary is an error.
  void read(int64_t from, std::span<int32_t> out) const override;

 private:
  template <class T>
  void copy(size_t shard, int64_t from, std::span<int32_t> out) const;

  Path dir_;
  TokenManifest manifest_;
  std::vector<MappedFile> files_;
  std::vector<int64_t> ends_;
  VerifiedFiles verified_;
  mutable std::atomic<uint32_t> short_reads_ = 0;
};

// Writes a directory of shards under a temporary name; finish() renames it. Without finish()
// nothing is left; the next writer deletes the remains of a killed process.
class TokenShardWriter {
 public:
  // `about`: tokenizer, vocabulary, separator and sources; the other members are computed. An
  // existing `dir` and a second writer of the same one are errors.
  TokenShardWriter(const Path& dir, TokenManifest about,
                   uint64_t shard_bytes = uint64_t(256) << 20);
  ~TokenShardWriter();

  void begin_document();
  void add(std::span<const int32_t> tokens);
  void end_document();
  // At least one token must have been added.
  TokenManifest finish();

 private:
  struct OpenFile;
  void put(int32_t token);
  void close_shard();

  TemporaryDir dir_;
  TokenManifest manifest_;
  int64_t shard_tokens_;  // tokens of a shard
  std::unique_ptr<OpenFile> shard_, starts_;
};

// Names that the writer and the reader share.
inline constexpr const char* kTokenFormat = "brine-tokens";
inline constexpr const char* kTokenManifest = "manifest.json";
inline constexpr const char* kTokenStarts = "documents.u64";
// The types of stored tokens, by the bytes of a token.
inline constexpr Named<int64_t> kTokenTypes[] = {{2, "u16"}, {4, "u32"}};

}  // namespace brine::data
