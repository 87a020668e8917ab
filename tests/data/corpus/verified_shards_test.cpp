// Token shards that were verified are not hashed again until they change, nor is a corpus of them,
// whatever is remembered about them and whether or not it can be.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "data/corpus/corpus.h"
#include "data/corpus/token_shards.h"
#include "data/io/json.h"
#include "tests/data/bpe_golden.h"
#include "tests/messages.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kShard = 300, kStarts = 8, kAll = 3 * kShard + kStarts;
const char* const kSecond = "tokens-00001.u16";

// Three shards of 150 tokens, one document.
std::string make_shards(const Scratch& scratch, const std::string& tokenizer_hash = "t") {
  std::string dir = scratch / "shards";
  TokenShardWriter writer(dir, {.tokenizer_hash = tokenizer_hash, .vocab_size = 500}, kShard);
  writer.begin_document();
  for (int32_t i = 0; i < 450; ++i) writer.add(std::vector<int32_t>{i});
  writer.end_document();
  writer.finish();
  return dir;
}

uint64_t hashed(const std::string& dir, Hashing hashing = Hashing::changed) {
  const TokenShards shards(dir, hashing);
  CHECK(shards.slice(148, 4) == std::vector<int32_t>{148, 149, 150, 151});
  return shards.hashed_bytes();
}

// The same content under the same name with another time of change.
void write_again(const std::string& path) {
  struct stat before = {}, now = {};
  REQUIRE(::stat(path.c_str(), &before) == 0);
  const std::string bytes = read_file(path);
  do {  // the clock of a file system may be coarse
    test::write_text(path, bytes);
    REQUIRE(::stat(path.c_str(), &now) == 0);
  } while (now.st_ctim.tv_sec == before.st_ctim.tv_sec &&
           now.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
}

// The hash of all tokens of make_shards(), that many times.
std::string hash_of_tokens(int times) {
  std::vector<int32_t> tokens(450), all;
  std::iota(tokens.begin(), tokens.end(), 0);
  for (int i = 0; i < times; ++i) all.insert(all.end(), tokens.begin(), tokens.end());
  return TokenCorpus{.tokens = std::make_shared<TokenList>(all), .window_tokens = 2}.hash();
}

const std::string kForged(64, '0');  // no tokens have this hash

// Changes every remembered hash of a corpus: who gets it has read no token.
void forge_corpora(const std::string& dir) {
  Json kept = parse_ordered_json(read_file(dir + "/" + kVerifiedFiles));
  for (Json& corpus : kept["corpora"]) corpus["sha256"] = kForged;
  test::write_text(dir + "/" + kVerifiedFiles, json_text(kept));
}

}  // namespace

TEST_CASE("verified shards: hashed once, and again those that changed, or all when asked") {
  Scratch scratch;
  const std::string dir = make_shards(scratch), second = dir + "/" + kSecond;
  CHECK(hashed(dir) == kAll);
  CHECK(hashed(dir) == 0);
  write_again(second);
  CHECK(hashed(dir) == kShard);
  CHECK(hashed(dir) == 0);
  CHECK(hashed(dir, Hashing::all) == kAll);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // or a copy may be as old
  fs::copy(dir, scratch / "copy");                             // with what is remembered
  write_again(scratch / "copy/documents.u64");
  CHECK(hashed(scratch / "copy") == kAll);
  write_again(dir + "/documents.u64");
  CHECK(hashed(dir) == kStarts);
  fs::remove(dir + "/" + kVerifiedFiles);
  CHECK(hashed(dir) == kAll);
}

TEST_CASE("verified shards: damage is found when the file or the manifest changes") {
  Scratch scratch;
  const std::string dir = make_shards(scratch), second = dir + "/" + kSecond;
  CHECK(hashed(dir) == kAll);
  std::string bytes = read_file(second);
  bytes[7] ^= 1;
  write_again(second);
  test::write_text(second, bytes);
  for (int i = 0; i < 2; ++i)
    CHECK(contains(message([&] { TokenShards shards(dir); }), "tokens-00001.u16: is damaged"));
  bytes[7] ^= 1;
  test::write_text(second, bytes);
  CHECK(hashed(dir) <= kShard);
  Json manifest = parse_ordered_json(read_file(dir + "/manifest.json"));
  manifest["shards"][0]["sha256"] = std::string(64, '0');
  test::write_text(dir + "/manifest.json", json_text(manifest));
  CHECK(contains(message([&] { TokenShards shards(dir); }), "tokens-00000.u16: is damaged"));
}

TEST_CASE("verified shards: hidden damage is found when all are hashed, and not trusted after") {
  Scratch scratch;
  const std::string dir = make_shards(scratch), second = dir + "/" + kSecond;
  hashed(dir);
  std::string bytes = read_file(second);
  bytes[7] ^= 1;
  test::write_text(second, bytes);
  struct stat info = {};
  REQUIRE(::stat(second.c_str(), &info) == 0);
  // As if the disk had changed the file.
  Json kept = parse_ordered_json(read_file(dir + "/" + kVerifiedFiles));
  for (Json& file : kept["files"])
    if (file["name"] == kSecond)
      file["changed"] = int64_t(info.st_ctim.tv_sec) * 1'000'000'000 + info.st_ctim.tv_nsec;
  test::write_text(dir + "/" + kVerifiedFiles, json_text(kept));
  CHECK(hashed(dir) == 0);
  CHECK(contains(message([&] { TokenShards shards(dir, Hashing::all); }), "is damaged"));
  CHECK(contains(message([&] { TokenShards shards(dir); }), "is damaged"));
}

TEST_CASE("verified shards: what cannot be read or written is no error") {
  Scratch scratch;
  const std::string dir = make_shards(scratch), file = dir + "/" + kVerifiedFiles;
  hashed(dir);
  const std::string good = read_file(file);
  auto with = [&](const char* from, const char* to) {
    std::string text = good;
    const size_t at = text.find(from);
    REQUIRE(at != text.npos);
    return text.replace(at, std::string_view(from).size(), to);
  };
  for (const std::string& text :
       {std::string(), good.substr(0, good.size() / 2), std::string("[]"), std::string("{}"),
        with("\"version\": 1", "\"version\": 2"), with("brine-verified", "other"),
        with("\"bytes\": ", "\"bytes\": -"), with("\"changed\": ", "\"changed\": 1e3, \"x\": "),
        with("\"files\"", "\"others\""), with("\"name\"", "\"others\"")}) {
    CAPTURE(text);
    test::write_text(file, text);
    CHECK(hashed(dir) > 0);
    CHECK(hashed(dir) == 0);
    CHECK(read_file(file) == good);
  }
  fs::remove(file);
  fs::create_directory(file);  // nothing can take this name
  CHECK(hashed(dir) == kAll);
  CHECK(hashed(dir) == kAll);
  CHECK(std::distance(fs::directory_iterator(dir), {}) == 6);
}

TEST_CASE("verified shards: the hash of all tokens is computed once, and again after a change") {
  Scratch scratch;
  const auto tokenizer = load_tokenizer(kTokenizerGolden + "tokenizer.json");
  const std::string dir = make_shards(scratch, tokenizer->hash()), other = scratch / "other";
  const std::string once = hash_of_tokens(1), twice = hash_of_tokens(2);
  auto hash = [&](const std::vector<std::string>& paths) {
    return load_corpus(paths, *tokenizer, 2).hash();
  };
  auto remembers = [&](const std::vector<std::string>& paths, const std::string& expected) {
    CHECK(hash(paths) == expected);
    for (const std::string& path : paths) forge_corpora(path);
    CHECK(hash(paths) == kForged);
  };
  remembers({dir}, once);
  write_again(dir + "/" + kSecond);
  remembers({dir}, once);
  CHECK(hash({dir, dir}) == twice);  // another corpus
  fs::copy(dir, other);
  write_again(other + "/" + kSecond);
  remembers({dir, other}, twice);
  for (const std::string& changed : {dir, other}) {
    write_again(changed + "/tokens-00000.u16");
    remembers({dir, other}, twice);
  }
  const Json manifest = parse_ordered_json(read_file(dir + "/manifest.json"));
  test::write_text(dir + "/manifest.json", json_text(manifest, 7));
  remembers({dir}, once);
  const std::string text = scratch.write("text", "in the beginning");
  const std::string with_text = hash({dir, text});
  forge_corpora(dir);
  CHECK(hash({dir, text}) == with_text);
  fs::remove(dir + "/" + kVerifiedFiles);
  fs::create_directory(dir + "/" + kVerifiedFiles);  // nothing can be remembered
  for (int i = 0; i < 2; ++i) CHECK(hash({dir}) == once);
}

TEST_CASE("verified shards: several may be opened at once") {
  Scratch scratch;
  const auto tokenizer = load_tokenizer(kTokenizerGolden + "tokenizer.json");
  const std::string dir = make_shards(scratch, tokenizer->hash()), right = hash_of_tokens(1);
  std::atomic<int> failed = 0;
  std::vector<std::thread> ranks;
  for (int i = 0; i < 8; ++i)
    ranks.emplace_back([&] {
      try {
        if (load_corpus({dir}, *tokenizer, 2).hash() != right) ++failed;
      } catch (const std::exception&) {
        ++failed;
      }
    });
  for (std::thread& rank : ranks) rank.join();
  CHECK(failed == 0);
  CHECK(hashed(dir) == 0);
  CHECK(std::distance(fs::directory_iterator(dir), {}) == 6);  // no temporary
}
