// Token shards: reading returns what was written, with any number of threads; damaged shards and
// those of another tokenizer are refused.
#include "data/corpus/token_shards.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "data/corpus/corpus.h"
#include "data/corpus/tokenize_request.h"
#include "tests/data/bpe_golden.h"
#include "tests/data/io/gzip.h"
#include "tests/messages.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

std::vector<std::unique_ptr<Tokenizer>> tokenizers(int count) {
  std::vector<std::unique_ptr<Tokenizer>> out;
  for (int i = 0; i < count; ++i)
    out.push_back(load_tokenizer(kTokenizerGolden + "tokenizer.json"));
  return out;
}

std::map<std::string, std::string> files_of(const fs::path& dir) {
  std::map<std::string, std::string> out;
  for (const auto& e : fs::directory_iterator(dir)) out[e.path().filename()] = read_file(e.path());
  return out;
}

// Lines of JSON: document i has i % 7 words.
std::string lines(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) {
    out += "{\"text\": \"d" + std::to_string(i);
    for (int w = 0; w < i % 7; ++w) out += " heaven";
    out += "\"}\n";
  }
  return out;
}

}  // namespace

TEST_CASE("token shards: the documents with their separators, whatever the threads and shards") {
  Scratch scratch;
  const std::string text = scratch.write("a.txt", "in the beginning");
  const std::string json = scratch.write("b.jsonl.gz", test::gzip_of(lines(500)));
  const auto tokenizer = std::move(tokenizers(1)[0]);
  const int32_t separator = *tokenizer->id_of("</s>");
  std::vector<int32_t> expected = tokenizer->encode("in the beginning");
  expected.push_back(separator);
  std::vector<uint64_t> starts = {0};
  for (int i = 0; i < 500; ++i) {
    starts.push_back(expected.size());
    std::string document = "d" + std::to_string(i);
    for (int w = 0; w < i % 7; ++w) document += " heaven";
    for (int32_t id : tokenizer->encode(document)) expected.push_back(id);
    expected.push_back(separator);
  }
  std::map<std::string, std::string> first;
  for (int threads : {1, 2, 3}) {
    const fs::path dir = scratch / ("out" + std::to_string(threads));
    const TokenManifest m = tokenize_files(
        {text, json}, dir, tokenizers(threads),
        {.documents = {.piece_bytes = 256}, .separator = separator, .shard_bytes = 300});
    CHECK(m.documents == 501);
    CHECK(m.tokens == int64_t(expected.size()));
    CHECK(m.width == 2);
    CHECK(m.shards.size() == (expected.size() + 149) / 150);
    if (threads == 1) first = files_of(dir);
    CHECK(files_of(dir) == first);
    const TokenShards shards(dir);
    CHECK(shards.manifest().tokenizer_hash == tokenizer->hash());
    CHECK(shards.manifest().separator == separator);
    CHECK(shards.manifest().sources == std::vector<std::string>{"a.txt", "b.jsonl.gz"});
    CHECK(shards.slice(0, shards.size()) == expected);
    for (int64_t at : {0, 1, 149, 150, 151, 299, 449})  // across the borders of shards
      CHECK(shards.slice(at, 200) ==
            std::vector<int32_t>(expected.begin() + at, expected.begin() + at + 200));
    CHECK(shards.slice(shards.size(), 0).empty());
    CHECK(contains(message([&] { shards.slice(shards.size() - 1, 2); }), "not within"));
  }
  REQUIRE(first["documents.u64"].size() == starts.size() * 8);
  CHECK(std::memcmp(first["documents.u64"].data(), starts.data(), starts.size() * 8) == 0);
}

TEST_CASE("token shards: a corpus of them is that of the text, alone and joined with text") {
  Scratch scratch;
  const std::string path = kTokenizerGolden + "text.txt";
  const auto tokenizer = std::move(tokenizers(1)[0]);
  tokenize_files({path}, scratch / "shards/", tokenizers(2),
                 {.documents = {.piece_bytes = 100}, .shard_bytes = 1000});
  const TokenCorpus text = load_corpus({path}, *tokenizer, 16);
  const std::string dir = scratch / "shards";
  const TokenCorpus mapped = load_corpus({dir}, *tokenizer, 16);
  CHECK(mapped.hash() == text.hash());
  REQUIRE(mapped.windows() == text.windows());
  for (int64_t i = 0; i < text.windows(); ++i) CHECK(mapped.window(i) == text.window(i));
  const TokenCorpus both = load_corpus({dir, path, dir}, *tokenizer, 16);
  const int64_t n = text.tokens->size();
  CHECK(both.tokens->size() == 3 * n);
  for (int64_t part = 0; part < 3; ++part)
    CHECK(both.tokens->slice(part * n, n) == text.tokens->slice(0, n));
  CHECK(both.tokens->slice(n - 5, n + 10) ==
        load_corpus({path, path, path}, *tokenizer, 16).tokens->slice(n - 5, n + 10));
  CHECK(both.text_hashes.size() == 3);
  CHECK(both.text_hashes[0] == both.text_hashes[2]);
}

TEST_CASE("token shards: 16 bits for up to 65536 tokens, else 32") {
  Scratch scratch;
  for (const auto& [vocab, width] : {std::pair{int64_t(65536), 2}, {int64_t(65537), 4}}) {
    const std::string dir = scratch / std::to_string(vocab);
    TokenShardWriter writer(dir, {.tokenizer_hash = "t", .vocab_size = vocab});
    const std::vector<int32_t> tokens = {0, 1, 65535, int32_t(vocab) - 1};
    writer.begin_document();
    writer.add(tokens);
    writer.end_document();
    CHECK_REFUSES(writer.add(std::vector<int32_t>{int32_t(vocab)}), "is outside the vocabulary");
    CHECK(writer.finish().width == width);
    CHECK(TokenShards(dir).slice(0, 4) == tokens);
  }
}

TEST_CASE("token shards: a directory that appears while they are written stays as it is") {
  Scratch scratch;
  const std::string dir = scratch / "out";
  {
    TokenShardWriter writer(dir, {.tokenizer_hash = "t", .vocab_size = 9});
    writer.begin_document();
    writer.add(std::vector<int32_t>{1, 2});
    writer.end_document();
    fs::create_directories(dir);
    scratch.write("out/mine", "keep");
    CHECK(contains(message([&] { writer.finish(); }), dir));
  }
  CHECK(read_file(dir + "/mine") == "keep");
  CHECK(std::distance(fs::directory_iterator(scratch.path()), {}) == 1);
}

TEST_CASE("token shards: single tokens from anywhere do not map their pages each time") {
  Scratch scratch;
  const std::string file = scratch.write("a.jsonl", lines(3000)), dir = scratch / "tokens";
  tokenize_files({file}, dir, tokenizers(1), {.separator = 2});
  const TokenShards shards(dir);
  const std::vector<int32_t> all = shards.slice(0, shards.size());
  auto faults = [] {
    struct rusage used {};
    ::getrusage(RUSAGE_SELF, &used);
    return used.ru_minflt;
  };
  const auto before = faults();
  int wrong = 0;
  for (int64_t i = 0; i < 8000; ++i) {
    const int64_t at = i * 7919 % shards.size();
    int32_t token = -1;
    shards.read(at, {&token, 1});
    wrong += token != all[size_t(at)];
  }
  CHECK(wrong == 0);
  CHECK(faults() - before < 1000);
}

TEST_CASE("token shards: the joined lines of files, exactly, whatever the pieces and threads") {
  Scratch scratch;
  const auto tokenizer = std::move(tokenizers(1)[0]);
  std::string text;
  for (int i = 0; i < 300; ++i)
    text += i % 4 == 1 ? " \n"
            : i % 7    ? "the  heaven " + std::to_string(i) + " \n"
                       : " = Title = \n";
  const std::string one = scratch.write("one", text),
                    two = scratch.write("two", "last\n\n the end");
  const std::vector<int32_t> expected = tokenizer->encode(read_joined_lines({one, two}));
  for (int threads : {1, 3}) {
    for (size_t piece : {20, 100, 1 << 20}) {
      const fs::path dir = scratch / join("out", threads, "-", piece);
      tokenize_files({one, two}, dir, tokenizers(threads),
                     {.documents = {.piece_bytes = piece}, .joining = Joining::lines});
      const TokenShards shards(dir);
      CHECK(shards.manifest().joining == Joining::lines);
      CHECK(shards.manifest().documents == 1);
      CHECK(shards.slice(0, shards.size()) == expected);
    }
  }
  CHECK_REFUSES(tokenize_files({one}, scratch / "sep", tokenizers(1),
                               {.separator = 2, .joining = Joining::lines}),
                "no separator");
  tokenize_files({one}, scratch / "plain", tokenizers(1), {});
  CHECK(TokenShards(scratch / "plain").manifest().joining == Joining::documents);
}

TEST_CASE("token shards: of another tokenizer, half-written or damaged ones are refused") {
  Scratch scratch;
  const std::string good = scratch / "good", bad = scratch / "bad";
  const auto tokenizer = std::move(tokenizers(1)[0]);
  tokenize_files({kTokenizerGolden + "text.txt"}, good, tokenizers(1), {.shard_bytes = 1000});
  const Json manifest = Json::parse(read_file(Path(good) / "manifest.json"));
  auto refused = [&](const std::function<void()>& damage) {
    fs::remove_all(bad);
    fs::copy(good, bad);
    damage();
    const std::string said = message([&] { load_corpus({bad}, *tokenizer, 8); });
    CHECK_MESSAGE(said.rfind(bad, 0) == 0, said);
    CHECK_FALSE(contains(said, "\n"));
    return said;
  };
  auto change = [&](const std::function<void(Json&)>& edit) {
    return refused([&] {
      Json json = manifest;
      edit(json);
      test::write_text(bad + "/manifest.json", json.dump());
    });
  };
  auto rewrite = [&](const std::string& name, const std::function<void(std::string&)>& edit) {
    std::string bytes = read_file(Path(bad) / name);
    edit(bytes);
    test::write_text(bad + "/" + name, bytes);
  };
  const std::string shard = "tokens-00001.u16";
  CHECK(contains(refused([&] { fs::remove(bad + "/manifest.json"); }), "incomplete"));
  CHECK(
      contains(refused([&] { rewrite("manifest.json", [](auto& s) { s.resize(s.size() / 2); }); }),
               "manifest.json: is not a JSON object"));
  CHECK(contains(refused([&] {
                   rewrite("manifest.json", [](auto& s) {
                     s[0] = ',';
                     s = "{\"version\": 1" + s;
                   });
                 }),
                 "manifest.json: key \"version\" is a duplicate"));
  CHECK(contains(refused([&] { fs::remove(bad + "/" + shard); }), shard + ": is missing"));
  CHECK(contains(refused([&] { rewrite(shard, [](auto& s) { s.pop_back(); }); }),
                 shard + ": has 999 bytes, wanted 1000"));
  CHECK(contains(refused([&] { rewrite(shard, [](auto& s) { s += "x"; }); }), "has 1001 bytes"));
  CHECK(contains(refused([&] { rewrite(shard, [](auto& s) { s[500] ^= 1; }); }),
                 shard + ": is damaged: its checksum differs"));
  CHECK(contains(refused([&] { rewrite("documents.u64", [](auto& s) { s[0] ^= 1; }); }),
                 "documents.u64: is damaged"));
  CHECK(contains(change([](Json& j) { j["tokenizer"] = std::string(64, '0'); }),
                 "was made with another tokenizer, with the hash 0000"));
  CHECK(contains(change([](Json& j) { j["version"] = 2; }), "format version 2"));
  CHECK(contains(change([](Json& j) { j["format"] = "other"; }),
                 "is not a manifest of token shards"));
  CHECK(contains(change([](Json& j) { j["dtype"] = "f16"; }), "neither u16 nor u32"));
  CHECK(contains(change([](Json& j) { j["tokens"] = 7; }), "not 7"));
  CHECK(contains(change([](Json& j) { j["documents"] = 7; }), "\"documents\" is 7"));
  CHECK(contains(change([](Json& j) { j["shards"][1]["tokens"] = INT64_MAX; }), "cannot be"));
  CHECK(contains(change([](Json& j) { j["shards"][1]["tokens"] = UINT64_MAX; }), "too large"));
  CHECK(contains(change([](Json& j) { j["shards"][1]["tokens"] = -500; }), "cannot be -500"));
  CHECK(contains(change([](Json& j) {
                   j["shards"][0]["tokens"] = int64_t(1) << 60;
                   j["shards"][1]["tokens"] = int64_t(1) << 60;
                 }),
                 "cannot contain"));
  CHECK(contains(change([](Json& j) { j["shards"][1] = j["shards"][0]; }), "is a duplicate"));
  CHECK(contains(change([](Json& j) { j["shards"][0]["name"] = "../x"; }), "plain file name"));
  for (const char* name : {"documents.u64", "manifest.json"})
    CHECK(contains(change([&](Json& j) { j["shards"][0]["name"] = name; }), "is a duplicate"));
  for (const char* name : {"manifest.json", "verified.json"})
    CHECK(contains(change([&](Json& j) { j["starts"]["name"] = name; }),
                   "is one of another purpose"));
  CHECK(contains(change([](Json& j) { j["shards"] = 3; }), "is not a list"));
  CHECK(contains(change([](Json& j) { j.erase("starts"); }), "\"starts\" is missing"));
  CHECK(contains(change([](Json& j) { j["separator"] = 1 << 20; }), "outside the vocabulary"));
  CHECK(contains(change([](Json& j) { j["joining"] = "words"; }), "neither documents nor lines"));
  CHECK(contains(change([](Json& j) { j["joining"] = true; }), "\"joining\" is not text"));
  CHECK(contains(change([](Json& j) {
                   j["joining"] = "lines";
                   j["separator"] = 2;
                 }),
                 "no separator"));
  // With a right checksum a token that the model has no row for is still found.
  refused([&] {
    rewrite(shard, [](auto& s) { s[0] = s[1] = '\xff'; });
    Json json = manifest;
    json["shards"][1]["sha256"] = sha256_file(bad + "/" + shard);
    test::write_text(bad + "/manifest.json", json.dump());
    const TokenCorpus corpus = load_corpus({bad}, *tokenizer, 8);
    CHECK(contains(message([&] { corpus.tokens->slice(490, 20); }),
                   shard + ": token 65535 at position 0 is outside the vocabulary"));
    fs::remove(bad + "/manifest.json");
  });
}

TEST_CASE("token shards: an error leaves nothing, a directory that is there stays as it is") {
  Scratch scratch;
  const std::string good = scratch.write("good.txt", "the heaven and the earth");
  const std::string bad = scratch.write("bad.jsonl", lines(2000) + "oops\n");
  const std::string out = scratch / "out";
  for (int threads : {1, 3}) {
    CHECK_REFUSES(tokenize_files({good, bad}, out, tokenizers(threads),
                                 {.documents = {.piece_bytes = 64}, .shard_bytes = 64}),
                  "bad.jsonl:2001: is not a JSON object");
    CHECK(std::distance(fs::directory_iterator(scratch.path()), {}) == 2);
  }
  CHECK(contains(
      message([&] { tokenize_files({scratch.write("empty", "")}, out, tokenizers(1), {}); }),
      "contain no text"));
  fs::create_directories(out);
  CHECK_REFUSES(tokenize_files({good}, out, tokenizers(1), {}), out, "already", "new directory");
  fs::remove(out);
  // What a killed process left.
  fs::create_directories(scratch / ".out.brine-tmp");
  scratch.write(".out.brine-tmp/tokens-00000.u16", "half");
  tokenize_files({good}, out, tokenizers(1), {});
  CHECK(TokenShards(out).size() > 0);
  CHECK_FALSE(fs::exists(scratch / ".out.brine-tmp"));
}
