// Text files as windows of tokens.
#include "data/corpus/corpus.h"

#include <doctest/doctest.h>

#include "data/corpus/joined_lines.h"
#include "data/io/utf8.h"
#include "tensor/base/error.h"
#include "tests/data/bpe_golden.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

TEST_CASE("corpus: windows follow each other, the rest is dropped and counted") {
  const auto tokenizer = load_tokenizer(kTokenizerGolden + "tokenizer.json");
  const std::string path = kTokenizerGolden + "text.txt";
  const auto ids = tokenizer->encode(read_text(path));
  const auto n = int64_t(ids.size());
  for (int64_t T : {int64_t(2), int64_t(3), int64_t(64), n - 1, n}) {
    const TokenCorpus corpus = load_corpus({path}, *tokenizer, T);
    REQUIRE(corpus.windows() == n / T);
    CHECK(corpus.dropped() == n % T);
    for (int64_t i = 0; i < corpus.windows(); ++i) {
      const auto window = corpus.window(i);
      CHECK(std::equal(window.begin(), window.end(), ids.begin() + i * T, ids.begin() + i * T + T));
    }
    CHECK_THROWS_WITH_AS(corpus.window(n / T), doctest::Contains("window"), Error);
    CHECK_THROWS_WITH_AS(corpus.window(-1), doctest::Contains("window -1"), Error);
  }
  CHECK_REFUSES(load_corpus({path}, *tokenizer, n + 1), "do not fill one window");
  CHECK_THROWS_WITH_AS(load_corpus({path}, *tokenizer, 1), doctest::Contains("at least 2"), Error);
  CHECK_THROWS_WITH_AS(load_corpus({}, *tokenizer, 8), doctest::Contains("no text"), Error);
}

TEST_CASE("corpus: files are joined as tokens; the hash is of the tokens") {
  Scratch scratch;
  const auto tokenizer = load_tokenizer(kTokenizerGolden + "tokenizer.json");
  const std::string one = scratch / "one", two = scratch / "two";
  write_text(one, "the heaven and the");
  write_text(two, "earth");
  const TokenCorpus both = load_corpus({one, two}, *tokenizer, 2);
  auto expected = tokenizer->encode("the heaven and the");
  for (int32_t id : tokenizer->encode("earth")) expected.push_back(id);
  CHECK(both.tokens->slice(0, both.tokens->size()) == expected);
  CHECK(both.hash() == load_corpus({one, two}, *tokenizer, 3).hash());
  CHECK(both.hash() != load_corpus({two, one}, *tokenizer, 2).hash());
  // The little-endian bytes 01 00 00 00 ff ff ff 7f, hashed by another program.
  CHECK(TokenCorpus{.tokens = std::make_shared<TokenList>(std::vector<int32_t>{1, 0x7fffffff}),
                    .window_tokens = 2}
            .hash() == "a661f1dcc99368272e181fa526d4a14b4314ef56efab5b747f638b54430b915b");
}

TEST_CASE("corpus: bad text is named with file and offset") {
  Scratch scratch;
  const std::string path = scratch / "text";
  write_text(path, "\xef\xbb\xbfhello");
  CHECK(read_text(path) == "hello");
  write_text(path, "\xef\xbb\xbf");
  CHECK_THROWS_WITH_AS(read_text(path), (path + ": the file contains no text").c_str(), Error);
  write_text(path, "");
  CHECK_THROWS_WITH_AS(read_text(path), (path + ": the file contains no text").c_str(), Error);
  write_text(path,
             "\xef\xbb\xbf"
             "abc\xfe");
  CHECK_THROWS_WITH_AS(read_text(path), (path + ": not UTF-8 at byte offset 6 (0xfe)").c_str(),
                       Error);
  write_text(path, std::string("caf\xe9 au lait", 12));
  CHECK_THROWS_WITH_AS(read_text(path), (path + ": not UTF-8 at byte offset 3 (0xe9)").c_str(),
                       Error);
  const std::string none = scratch / "none", dir = scratch.path();
  CHECK_THROWS_WITH_AS(read_text(none), doctest::Contains((none + ": ").c_str()), Error);
  CHECK_THROWS_WITH_AS(read_text(dir), doctest::Contains((dir + ": ").c_str()), Error);
}

TEST_CASE("corpus: lines joined by two newlines, blank ones as empty texts") {
  Scratch scratch;
  const std::string one = scratch.write("one", " = Title = \n \n\nText .\n"),
                    two = scratch.write("two", "more\n\t\nno newline at the end");
  CHECK(read_joined_lines({one}) == " = Title = \n\n\n\n\n\n\nText .\n");
  CHECK(read_joined_lines({two}) == "more\n\n\n\n\nno newline at the end");
  CHECK(read_joined_lines({one, two}) ==
        read_joined_lines({one}) + "\n\n" + read_joined_lines({two}));
  CHECK_THROWS_WITH_AS(read_joined_lines({}), doctest::Contains("no text"), Error);
}

TEST_CASE("corpus: joined lines are the same for reads of any size, and bad ones are named") {
  Scratch scratch;
  const std::string mark = "\xef\xbb\xbf";
  const std::string one = scratch.write("one", mark + "caf\xc3\xa9\r\n\xc2\xa0\n\nend"),
                    two = scratch.write("two", mark + "\n" + mark + "x");
  const std::string joined =
      "caf\xc3\xa9\r\n"
      "\n\n"
      ""
      "\n\n"
      ""
      "\n\n"
      "end"
      "\n\n"
      ""
      "\n\n" +
      mark + "x";
  CHECK(read_joined_lines({one, two}) == joined);
  for (size_t size : {1, 2, 3, 7, 1000}) {
    JoinedLines lines({one, two});
    std::string out, part(size, '\0');
    while (size_t n = lines.read(part.data(), size)) out += part.substr(0, n);
    CHECK(out == joined);
    CHECK(lines.name() == two);
  }
  std::string many, expected;  // more than a block, lines across its border
  for (int i = 0; i < 60000; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    many += line;
    expected += (i ? "\n\n" : "") + line;
  }
  CHECK(read_joined_lines({scratch.write("many", many)}) == expected);
  auto said = [&](const std::string& text, size_t max_line = 1 << 20) {
    const std::string path = scratch.write("bad", text);
    try {
      JoinedLines lines({one, path}, max_line);
      char part[64];
      while (lines.read(part, sizeof part) > 0) continue;
    } catch (const Error& e) {
      return std::string(e.what()).substr(path.size());
    }
    return std::string("no error");
  };
  CHECK(said("") == ": the file contains no text");
  CHECK(said(mark) == ": the file contains no text");
  CHECK(said("good\nb\xe9\n") == ": not UTF-8 at byte offset 6 (0xe9)");
  CHECK(said(mark + "good\nb\xe9") == ": not UTF-8 at byte offset 9 (0xe9)");
  CHECK(said("a\n" + std::string(300 << 10, 'x'), 1000) ==
        ": the line at byte offset 2 is longer than 1000 bytes");
}
