// The regular expressions of tokenizer.json (Split, Replace), matched as Oniguruma does it for
// Hugging Face's `tokenizers`, with the tables of Unicode 16.0, and in bounded time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/unicode/unicode.h"

namespace brine::data {

// A set of characters: classes, ranges, or all others.
class CharSet {
 public:
  struct Range {
    uint32_t first, last;
  };
  void add(uint32_t first, uint32_t last) { ranges_.push_back({first, last}); }
  void add(CharClass kind) { classes_ |= uint8_t(1 << int(kind)); }
  void add_others(CharClass kind) { classes_ |= uint8_t(~(1 << int(kind)) & 15); }
  void negate() { negated_ = !negated_; }
  // The other case of every letter of ASCII, and the two other letters that fold to one of them
  // (U+017F, U+212A).
  void ignore_case();
  void finish();  // to be called after the last change

  bool has(uint32_t c) const { return c < 128 ? (ascii_[c >> 6] >> (c & 63) & 1) != 0 : found(c); }
  const std::array<uint64_t, 2>& ascii() const { return ascii_; }
  bool empty() const { return ranges_.empty() && classes_ == 0; }
  // Whether all of it is ASCII.
  bool narrow() const;

 private:
  bool found(uint32_t c) const;

  std::vector<Range> ranges_;
  std::array<uint64_t, 2> ascii_ = {};
  uint8_t classes_ = 0;  // a bit for each CharClass
  bool negated_ = false;
};

// The characters with which a part of an expression can start.
struct RegexStart {
  std::array<uint64_t, 2> ascii = {};
  bool wide = false;    // characters above ASCII, too
  bool always = false;  // the part may match the empty text
};

// One step of a compiled expression. A match is a path from the first one to `accept`.
struct RegexStep {
  enum class Kind : uint8_t { set, repeat, split, jump, look, accept };
  Kind kind;
  bool possessive = false;                // repeat: characters are not given back
  bool negative = false;                  // look
  uint32_t set = 0;                       // set, repeat: which one
  uint32_t min_count = 1, max_count = 1;  // repeat: how many characters
  uint32_t next = 0, other = 0;           // split: tried first, then; look: after, inside
  RegexStart start = {};                  // split: of `next`
};

// Supported are alternatives, the groups (?:a) (a) (?i:a), lookahead (?=a) (?!a), the quantifiers
// ? * + {n,m}, of sets also possessive, sets with ranges, the classes \s \S \p{L} \p{N} \P{L}
// \P{N}, and '.'. Everything else, and an expression that matches the empty text, is
// refused by name.
class Regex {
 public:
  // Errors start with `where`, also those of matching.
  Regex(std::string_view pattern, const std::string& where);

  // The expression as messages show it.
  const std::string& name() const { return name_; }
  const std::string& where() const { return where_; }
  const RegexStart& start() const { return start_; }
  const std::vector<RegexStep>& steps() const { return steps_; }
  const std::vector<CharSet>& sets() const { return sets_; }

 private:
  std::string name_, where_;
  std::vector<RegexStep> steps_;
  std::vector<CharSet> sets_;
  RegexStart start_;
};

// The successive matches in one text of well-formed UTF-8: the leftmost one, of alternatives the
// first. Takes at most kMaxSteps steps for each byte of the text on average; a pattern that needs
// more, by backtracking, is an error.
class RegexMatches {
 public:
  static constexpr uint64_t kMaxSteps = 512;
  RegexMatches(const Regex& regex, std::string_view text);
  // The next match, [begin, end) with begin < end; false if there is none.
  bool next(size_t& begin, size_t& end);

 private:
  struct Choice {
    uint32_t step;   // where to continue
    size_t at, low;  // ... at `at`, or one character earlier each time, down to `low`
  };
  static constexpr size_t kNone = SIZE_MAX;
  size_t run(uint32_t step, size_t at);
  bool repeat(const RegexStep& step, uint32_t index, size_t& at);
  size_t after_run(const CharSet& set, uint32_t max_count, size_t at, uint32_t& count);
  bool starts(const RegexStart& start, size_t at) const;
  void spend(uint64_t steps);

  const Regex& regex_;
  std::string_view text_;
  size_t from_ = 0;
  uint64_t left_;
  std::vector<Choice> choices_;
};

// What is searched for: a text or an expression, or nothing.
struct TextPattern {
  std::string literal = {};
  std::shared_ptr<const Regex> regex = {};

  bool empty() const { return literal.empty() && !regex; }
  // Calls f(begin, end) for the successive matches until it returns false.
  template <class F>
  void each_match(std::string_view text, F&& f) const {
    size_t begin = 0, end = 0;
    if (regex) {
      RegexMatches matches(*regex, text);
      while (matches.next(begin, end) && f(begin, end)) continue;
    } else if (!literal.empty()) {
      while ((begin = text.find(literal, end)) != text.npos && f(begin, begin + literal.size()))
        end = begin + literal.size();
    }
  }
};

}  // namespace brine::data
