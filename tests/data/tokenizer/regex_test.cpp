// Regular expressions of tokenizer.json: refusals, bounds, and matches by a second way of counting.
// The golden pieces of families_test.cpp compare them with Oniguruma.
#include "data/tokenizer/regex/regex.h"

#include <doctest/doctest.h>

#include "data/tokenizer/pretokenize.h"
#include "tensor/base/error.h"
#include "tests/refusals.h"

using namespace brine;
using namespace brine::data;

namespace {

std::vector<std::string> matches_of(const std::string& pattern, std::string_view text) {
  const Regex regex(pattern, "test");
  RegexMatches matches(regex, text);
  std::vector<std::string> out;
  for (size_t begin = 0, end = 0; matches.next(begin, end);)
    out.emplace_back(text.substr(begin, end - begin));
  return out;
}

using Words = std::vector<std::string>;

const std::string kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

TEST_CASE("regex: the first alternative that matches, the leftmost position") {
  CHECK(matches_of("ab|abc", "xabcab") == Words{"ab", "ab"});
  CHECK(matches_of("abc|ab", "xabcab") == Words{"abc", "ab"});
  CHECK(matches_of("a+b|a", "aaac") == Words{"a", "a", "a"});
  CHECK(matches_of("a++ab|b", "aaab") == Words{"b"});
  CHECK(matches_of("a+ab", "aaab") == Words{"aaab"});
  CHECK(matches_of("a{2,3}", "aaaaaaaa") == Words{"aaa", "aaa", "aa"});
  CHECK(matches_of(R"(\s+(?!\S))", "a  b   ") == Words{" ", "   "});
  CHECK(matches_of("(?i:it's)", "IT'S iT'\u017f") == Words{"IT'S", "iT'\u017f"});
  CHECK(matches_of("[^\u00e9]+", "a\u00e9b\u4e2d") == Words{"a", "b\u4e2d"});
}

TEST_CASE("regex: GPT-2's expression cuts as the function made for it") {
  const Regex regex(kGpt2, "test");
  for (uint32_t c = 1; c < 0x3000; c += 1) {
    std::string text = "it's ";
    for (uint32_t x : {c, uint32_t('a'), c, uint32_t(' '), c, uint32_t('1'), c, c, uint32_t('\n')})
      append_utf8(text, x);
    RegexMatches matches(regex, text);
    size_t at = 0;
    bool same = true;
    for (size_t begin = 0, end = 0; matches.next(begin, end); at = end)
      same = same && begin == at && end == gpt2_word_end(text, at);
    CHECK((same && at == text.size()));
  }
}

TEST_CASE("regex: what it does not know is refused by name") {
  auto refuses = [](const std::string& pattern, const std::string& what) {
    CAPTURE(pattern);
    CHECK_REFUSES(Regex(pattern, "file"), "file", what, "not supported");
  };
  refuses("(?<=a)b", "'(?<='");
  refuses("(?<name>b)", "'(?<n'");
  refuses("(?i)b", "'(?i)'");
  refuses("(?m:b)", "'(?m:'");
  refuses("(*FAIL)", "'(*FA'");
  refuses("^a", "'^' here");
  refuses("a$", "'$' here");
  refuses("a**", "a quantifier after a quantifier");
  refuses("a{2}+", "a quantifier after a quantifier");
  refuses("a+?", "a quantifier after a quantifier");
  refuses("(?:ab)++", "a possessive quantifier after a group");
  refuses("(?>a)", "'(?>a'");
  refuses("+a", "'+' here");
  refuses("a{x}", "a '{' that is not a quantifier {n,m}");
  refuses("a{3,2}", "a '{' that is not a quantifier {n,m}");
  refuses("a{0}b", "a '{' that is not a quantifier {n,m}");
  refuses("a{1001}", "a quantifier above 1000");
  refuses("\\d+", "'\\d'");
  refuses("a\\1", "'\\1'");
  refuses("\\p{Lu}", "'\\p{Lu}'");
  refuses("\\pL", "'\\p'");
  refuses("a\\", "a '\\' at the end");
  refuses("[a", "a '[' without ']'");
  refuses("[]", "an empty set");
  refuses("[a[b]]", "'[' here");
  refuses("[a&&b]", "'&&' in a set");
  refuses("[z-a]", "a range that does not ascend");
  refuses("(?i:\u00e9)", "a character above ASCII in (?i:)");
  refuses("(?i:[\\p{L}])", "a class in (?i:)");
  refuses("(a", "a '(' without ')'");
  refuses("a)", "a ')' without '('");
  refuses("(?=a)+b", "a quantifier after a lookahead");
  refuses("a*", "a match of the empty text");
  refuses("a|", "a match of the empty text");
  refuses("", "a match of the empty text");
  refuses("(?:a?)+b", "an unlimited repetition of what may be empty");
  refuses(std::string(40, '(') + "a" + std::string(40, ')'), "a nesting of more than 32 groups");
  refuses("(?:(?:ab{2}c){100}){200}", "a size of more than 10000 steps");
  refuses("a((((){1000}){1000}){1000}){1000}", "a size of more than 10000 steps");
  CHECK_REFUSES(Regex(std::string(20000, 'a'), "file"), "file", "20000", "10000");
}

TEST_CASE("regex: a pattern that backtracks without end is stopped") {
  const std::string text(3000, 'a');
  for (const char* pattern : {"(?:a+)+b", "(?:a|aa)+b", "a+a+a+b", "(?:a?){30}b"}) {
    CAPTURE(pattern);
    CHECK_REFUSES(matches_of(pattern, text), "test", pattern, "512", "3000");
  }
}

TEST_CASE("regex: a megabyte of any one character takes a bounded number of steps") {
  const Regex regex(kGpt2 + "|.", "test");
  for (const char* part : {" ", "a", "\n", "\u00a0", "1", "'", "\u4e2d", "!\n", " a"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += part;
    RegexMatches matches(regex, text);
    size_t done = 0;
    for (size_t begin = 0, end = 0; matches.next(begin, end); done = end) CHECK(begin == done);
    CHECK(done == text.size());
  }
}
