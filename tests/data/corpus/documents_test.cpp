// Corpora as documents: pieces lose no token, gzip is read, damage is named.
#include "data/corpus/documents.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/corpus/corpus.h"
#include "data/io/utf8.h"
#include "tests/data/bpe_golden.h"
#include "tests/data/io/gzip.h"
#include "tests/messages.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

const Tokenizer& bpe() {
  static const auto tokenizer = load_tokenizer(kTokenizerGolden + "tokenizer.json");
  return *tokenizer;
}

std::vector<std::string> documents(const std::string& path, const DocumentOptions& options = {},
                                   const Tokenizer& tokenizer = bpe()) {
  std::vector<std::string> out;
  bool open = false;
  read_documents(path, tokenizer, options, [&](const DocumentPiece& piece) {
    CHECK(piece.begins != open);
    if (piece.begins) out.emplace_back();
    out.back() += piece.text;
    open = !piece.ends;
  });
  CHECK_FALSE(open);
  return out;
}

using Strings = std::vector<std::string>;

// Words, runs of every kind of white space, characters of one to four bytes, spelled-out tokens.
std::string adversarial() {
  const char* parts[] = {"word",      " ",     "  ",       "\n",           "\n\n",
                         " \n ",      "\t",    "\xc3\xa9", "\xe3\x80\x80", "\xf0\x9f\x98\x80",
                         "</s>",      "don't", "12",       "...",          "\xc2\xa0",
                         "e\xcc\x81", "\r\n",  "[MASK]",   "<mask>",       "\xe6\xbc\xa2"};
  std::string out;
  uint32_t state = 7;
  for (int i = 0; i < 3000; ++i) {
    state = state * 1664525u + 1013904223u;
    out += parts[(state >> 16) % std::size(parts)];
  }
  return out;
}

}  // namespace

TEST_CASE("documents: pieces of any size have the tokens of the whole text") {
  Scratch scratch;
  std::string json = read_text(kTokenizerGolden + "tokenizer.json");
  const std::string off = "\"add_prefix_space\": false", on = "\"add_prefix_space\": true";
  for (size_t at = json.find(off); at != std::string::npos; at = json.find(off))
    json.replace(at, off.size(), on);
  REQUIRE(contains(json, on));
  const std::string prefixed = scratch.write("prefixed.json", json);
  for (const std::string& tokenizer_file :
       {kTokenizerGolden + "tokenizer.json", kTokenizerGolden + "wordpiece.json", prefixed}) {
    const auto tokenizer = load_tokenizer(tokenizer_file);
    for (const std::string& text : {read_text(kTokenizerGolden + "text.txt"), adversarial()}) {
      const std::string path = scratch.write("text", text);
      const std::vector<int32_t> whole = tokenizer->encode(text);
      for (size_t size : {20, 100, 1000, 1 << 20}) {
        INFO(tokenizer_file << " pieces of " << size);
        std::vector<int32_t> tokens;
        std::string joined;
        size_t pieces = 0;
        read_documents(path, *tokenizer, {.piece_bytes = size}, [&](const DocumentPiece& piece) {
          const std::vector<int32_t> ids = tokenizer->encode(piece.text);
          tokens.insert(tokens.end(), ids.begin(), ids.end());
          joined += piece.text;
          ++pieces;
        });
        CHECK(joined == text);
        CHECK(tokens == whole);
        if (size >= 100) CHECK((pieces > 1) == (size < text.size()));
      }
    }
  }
}

TEST_CASE("documents: a text is not cut inside a long added token, wherever a piece ends") {
  Scratch scratch;
  std::string token = "The quick brown fox jumps over the lazy dog";
  while (token.size() < 300) token += " and then some more words follow here";
  nlohmann::json files = nlohmann::json::parse(read_text(kTokenizerGolden + "tokenizer.json"));
  nlohmann::json added = files["added_tokens"].back();
  added["content"] = token;
  added["special"] = true;
  files["added_tokens"].push_back(added);
  const auto tokenizer = load_tokenizer(scratch.write("tokenizer.json", files.dump()));
  const int32_t id = tokenizer->id_of(token).value();
  CHECK(tokenizer->longest_token() >= token.size());
  std::string text;
  for (int i = 0; i < 40; ++i) text += token + (i % 3 == 0 ? " the king" : " ");
  const std::vector<int32_t> whole = tokenizer->encode(text);
  CHECK(std::count(whole.begin(), whole.end(), id) == 40);
  const std::string plain = scratch.write("text", text);
  const std::string lines =
      scratch.write("text.jsonl", nlohmann::json{{"text", text}}.dump() + "\n");
  for (const std::string& path : {plain, lines}) {
    for (size_t size = 400; size < 1100; size += 7) {
      // In every other case no piece has a position to cut, and a longer text is searched.
      DocumentOptions options{.piece_bytes = size};
      if (size % 2) options = {.piece_bytes = 20, .max_uncut = 400 + size};
      std::vector<int32_t> tokens;
      size_t pieces = 0;
      read_documents(path, *tokenizer, options, [&](const DocumentPiece& piece) {
        const std::vector<int32_t> ids = tokenizer->encode(piece.text);
        tokens.insert(tokens.end(), ids.begin(), ids.end());
        ++pieces;
      });
      INFO(path << " pieces of " << size);
      CHECK(tokens == whole);
      CHECK(pieces > 5);
    }
  }
}

TEST_CASE("documents: text, lines of JSON, and both compressed") {
  Scratch scratch;
  const std::string text = "the king\nwent up\n";
  const std::string lines =
      "{\"text\": \"one\"}\r\n\n{\"id\": 3, \"text\": \"tw\\u00f6\\n\"}\n{\"text\": \"\"}\n"
      "{\"text\": \"last\"}";
  const Strings whole = {text}, three = {"one", "tw\xc3\xb6\n", "last"};
  CHECK(documents(scratch.write("a.txt", text)) == whole);
  CHECK(documents(scratch.write("b.txt", "\xef\xbb\xbf" + text)) == whole);
  CHECK(documents(scratch.write("a.txt.gz", gzip_of(text))) == whole);
  CHECK(documents(scratch.write("two.gz", gzip_of("the king\n") + gzip_of("went up\n"))) == whole);
  CHECK(documents(scratch.write("a.jsonl", lines)) == three);
  CHECK(documents(scratch.write("a.jsonl.gz", gzip_of(lines))) == three);
  CHECK(documents(scratch.write("empty.txt", "")).empty());
  CHECK(documents(scratch.write("k.jsonl", "{\"body\": \"x\"}\n"), {.key = "body"}) ==
        Strings{"x"});
  for (size_t size : {3, 8, 64})
    CHECK(documents(scratch / "a.jsonl", {.piece_bytes = size}) == three);
}

TEST_CASE("documents: damaged gzip is named, at every length that it is cut to") {
  Scratch scratch;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "line " + std::to_string(i * i) + "\n";
  const std::string whole = gzip_of(text);
  CHECK(message([&] { documents(scratch.write("f", whole)); }) == "no error");
  for (size_t size = 8; size < whole.size(); size += 1 + whole.size() / 40) {
    const std::string said = message([&] { documents(scratch.write("f", whole.substr(0, size))); });
    CHECK_MESSAGE(contains(said, "too early"), size << ": " << said);
    CHECK(said.rfind((scratch / "f").string() + ": ", 0) == 0);
  }
  std::string flipped = whole;
  flipped[whole.size() / 2] ^= 0x10;
  CHECK(contains(message([&] { documents(scratch.write("f", flipped)); }), "damaged"));
  CHECK(message([&] { documents(scratch.write("f", whole + "rest")); }) != "no error");
}

TEST_CASE("documents: archives and other compression are refused with the command that unpacks") {
  Scratch scratch;
  const std::string tar = std::string(257, 'a') + "ustar" + std::string(400, '\0');
  struct Case {
    std::string file, bytes, name, unpack;
  };
  const Case cases[] = {{"a", tar, "tar archive", "tar xf"},
                        {"a.tgz", gzip_of(tar), "tar archive", "tar xf"},
                        {"a.xz", "\xfd\x37zXZ", "xz file", "unxz"},
                        {"a.tar.xz", "\xfd\x37zXZ", "xz file", "tar xf"},
                        {"a.bz2", "BZh91AY&SY", "bzip2 file", "bunzip2"},
                        {"a.zip", "PK\x03\x04", "zip archive", "unzip"},
                        {"empty.zip", "PK\x05\x06", "zip archive", "unzip"},
                        {"a.7z", "7z\xbc\xaf\x27\x1c", "7z archive", "7z x"},
                        {"a.zst", "\x28\xb5\x2f\xfd", "zstd file", "unzstd"},
                        {"two.gz", gzip_of(gzip_of("text")), "gzip file", "gunzip"}};
  for (const Case& c : cases) {
    const std::string path = scratch.write(c.file, c.bytes);
    const std::string said =
        join(path, ": a ", c.name, ", which is not read; unpack it first: ", c.unpack, " ", path);
    CHECK(message([&] { documents(path); }) == said);
    CHECK(message([&] { read_joined_lines({path}); }) == said);
    if (!c.bytes.starts_with("\x1f")) CHECK(message([&] { read_text(path); }) == said);
  }
  const std::string gz = scratch.write("a.gz", gzip_of("text"));
  CHECK(message([&] { read_text(gz); }) ==
        gz + ": a gzip file, which is not read; unpack it first: gunzip " + gz);
  CHECK(read_joined_lines({gz}) == "text");
}

TEST_CASE("documents: bad lines, bad bytes and text without a position to cut") {
  Scratch scratch;
  const std::string path = (scratch / "a.jsonl").string();
  auto refused = [&](const std::string& content, const DocumentOptions& options = {}) {
    return message([&] { documents(scratch.write("a.jsonl", content), options); });
  };
  const std::string good = "{\"text\": \"x\"}\n";
  CHECK(refused(good + "{\"text\": \n") == path + ":2: is not a JSON object in UTF-8");
  CHECK(refused(good + good + "[1]\n") == path + ":3: is not a JSON object in UTF-8");
  CHECK(refused("{\"text\": \"caf\xe9\"}\n") == path + ":1: is not a JSON object in UTF-8");
  CHECK(refused(good + "\n{\"txt\": \"x\"}\n") == path + ":3: key \"text\" is missing");
  CHECK(refused("{\"text\": 3}\n") == path + ":1: key \"text\" is not text");
  CHECK(refused(good + "{\"text\": \"x\", \"text\": \"y\"}\n") ==
        path + ":2: key \"text\" is a duplicate");
  CHECK(refused(good + std::string(400, ' '), {.piece_bytes = 64, .max_line = 100}) ==
        path + ":2: the line is longer than 100 bytes");
  const std::string words(400, 'a');
  check_says(refused("{\"text\": \"" + words + "\"}\n", {.piece_bytes = 64, .max_uncut = 128}),
             {path, ":1", "400", "white space"});

  const std::string text = (scratch / "a.txt").string();
  auto refused_text = [&](const std::string& content, const DocumentOptions& options = {}) {
    return message([&] { documents(scratch.write("a.txt", content), options); });
  };
  const std::string start = "some words and ";
  CHECK(contains(refused_text(start + words, {.piece_bytes = 64, .max_uncut = 128}), text + ": "));
  CHECK(contains(refused_text(start + words, {.piece_bytes = 64, .max_uncut = 128}),
                 "no white space before which the text could be cut"));
  std::string long_text;
  while (long_text.size() < 1000) long_text += start;
  const std::string at = std::to_string(long_text.size() + 2);
  CHECK(refused_text(long_text + "ok\xff words " + long_text, {.piece_bytes = 64}) ==
        text + ": not UTF-8 at byte offset " + at + " (0xff)");
  CHECK(contains(message([&] { documents(scratch / "none"); }), "cannot open"));
  CHECK(contains(message([&] { documents(scratch.path()); }), "neither a file nor a pipe"));
}
