// UTF-8, the character classes against the golden ones, the byte alphabet, GPT-2's words.
#include "data/unicode/unicode.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "data/codec/checksums.h"
#include "data/io/utf8.h"
#include "data/tokenizer/bpe/byte_alphabet.h"
#include "data/tokenizer/pretokenize.h"
#include "tests/paths.h"

using namespace brine::data;
using namespace std::string_literals;

namespace {

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    end = gpt2_word_end(text, at);
    REQUIRE(end > at);
    words.emplace_back(text.substr(at, end - at));
  }
  return words;
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("unicode: the classes of all characters are those that made the golden ids") {
  std::ifstream file(brine::test::source_dir() + "/tests/golden/tokenizer/classes.json");
  const auto golden = nlohmann::json::parse(file);
  std::string found;
  int64_t count[4] = {};
  for (uint32_t c = 0; c < 0x110000; ++c) {
    ++count[int(char_class(c))];
    found += "OLNS"[int(char_class(c))];
  }
  CHECK(count[1] == golden["letters"]);
  CHECK(count[2] == golden["numbers"]);
  CHECK(count[3] == golden["spaces"]);
  CHECK(sha256_hex(found) == golden["sha256"]);
}

TEST_CASE("unicode: every character survives UTF-8") {
  std::string text;
  for (uint32_t c = 0; c < 0x110000; ++c)
    if (c < 0xd800 || c > 0xdfff) append_utf8(text, c);
  REQUIRE(find_invalid_utf8(text) == kValidUtf8);
  size_t at = 0;
  bool same = true;
  for (uint32_t c = 0; c < 0x110000; ++c)
    if (c < 0xd800 || c > 0xdfff) same = same && next_char(text, at) == c;
  CHECK(same);
  CHECK(at == text.size());
}

TEST_CASE("unicode: malformed UTF-8 is found at its first byte, wherever it is") {
  const std::vector<std::string> malformed = {"\x80",
                                              "\xbf",
                                              "\xc0\x80",
                                              "\xc1\xbf",
                                              "\xc3",
                                              "\xc3\x28",
                                              "\xe0\x80\x80",
                                              "\xe0\x9f\xbf",
                                              "\xe2\x82",
                                              "\xe2\x28\xa1",
                                              "\xed\xa0\x80",
                                              "\xed\xbf\xbf",
                                              "\xf0\x80\x80\x80",
                                              "\xf0\x8f\xbf\xbf",
                                              "\xf0\x9f\x98",
                                              "\xf4\x90\x80\x80",
                                              "\xf5\x80\x80\x80",
                                              "\xfe",
                                              "\xff"};
  for (const std::string& bytes : malformed) {
    for (size_t before = 0; before < 18; ++before) {
      CHECK(find_invalid_utf8(std::string(before, 'a') + bytes) == before);
      CHECK(find_invalid_utf8("\xc3\xa9" + std::string(before, 'a') + bytes + "tail of text") ==
            before + 2);
    }
  }
  CHECK(find_invalid_utf8("") == kValidUtf8);
  CHECK(find_invalid_utf8("\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80") == kValidUtf8);
}

TEST_CASE("byte alphabet: one character a byte, there and back") {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += char(byte);
  const std::string spelled = spell_bytes(all);
  CHECK(spelled.size() == 94 + 162 * 2);
  CHECK(unspell_bytes(spelled) == all);
  CHECK(spell_bytes(" \n") == "\u0120\u010a");
  CHECK(spell_bytes("\xad\xff"s) == "\u0143\u00ff");
  CHECK_FALSE(unspell_bytes("a b").has_value());
  CHECK_FALSE(unspell_bytes("\u0144").has_value());
  CHECK(bytes_by_character()[0] == '!');
  CHECK(bytes_by_character()[255] == 0xad);
}

TEST_CASE("words: the alternatives of GPT-2's expression") {
  CHECK(words_of("Hello, it's 1st!") == Words{"Hello", ",", " it", "'s", " 1", "st", "!"});
  CHECK(words_of("they'll've'd'sx") == Words{"they", "'ll", "'ve", "'d", "'s", "x"});
  CHECK(words_of("'S 's ''s 'l") == Words{"'", "S", " '", "s", " ''", "s", " '", "l"});
  CHECK(words_of("'") == Words{"'"});
  CHECK(words_of("a  b") == Words{"a", " ", " b"});
  CHECK(words_of("a   \n") == Words{"a", "   \n"});
  CHECK(words_of("a \n b\n\nc") == Words{"a", " \n", " b", "\n", "\n", "c"});
  CHECK(words_of("\n\n\n") == Words{"\n\n\n"});
  CHECK(words_of(" a") == Words{" a"});
  CHECK(words_of("\ta") == Words{"\t", "a"});
}

TEST_CASE("words: other white space, marks and numbers") {
  // Only U+0020 joins the word after it.
  CHECK(words_of("a\u00a0b") == Words{"a", "\u00a0", "b"});
  CHECK(words_of("a\u00a0 b") == Words{"a", "\u00a0", " b"});
  CHECK(words_of("a\u0085\u3000b") == Words{"a", "\u0085", "\u3000", "b"});
  // U+200B and U+FEFF are not white space; a combining mark is not a letter.
  CHECK(words_of("a\u200bb") == Words{"a", "\u200b", "b"});
  CHECK(words_of("e\u0301e") == Words{"e", "\u0301", "e"});
  CHECK(words_of("\u0661\u00bd\u2167 \u4e09") == Words{"\u0661\u00bd\u2167", " \u4e09"});
  CHECK(words_of("\u041f\u0440\u0438 \U0001f600!\U00020000") ==
        Words{"\u041f\u0440\u0438", " \U0001f600!", "\U00020000"});
}
