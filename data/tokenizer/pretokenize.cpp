// The alternatives of GPT-2's regular expression, in their order.
#include "data/tokenizer/pretokenize.h"

#include "data/unicode/unicode.h"

namespace brine::data {
namespace {

// End of the longest run of `kind` from `at` on.
size_t run_end(std::string_view text, size_t at, CharClass kind) {
  while (at < text.size()) {
    size_t next = at;
    if (next_class<char_class>(text, next) != kind) break;
    at = next;
  }
  return at;
}

// Length of the contraction at `at`, which is an apostrophe; 0 if there is none.
size_t contraction(std::string_view text, size_t at) {
  std::string_view rest = text.substr(at + 1, 2);
  if (rest.empty()) return 0;
  char c = rest[0];
  if (c == 's' || c == 't' || c == 'm' || c == 'd') return 2;
  return rest == "re" || rest == "ve" || rest == "ll" ? 3 : 0;
}

// White space: all of it at the end of the text; else all except the last character, which is left
// for the next word, or that one character if it is the only one.
size_t space_end(std::string_view text, size_t at) {
  size_t last = at, end = at;
  while (end < text.size()) {
    size_t next = end;
    if (next_class<char_class>(text, next) != CharClass::kSpace) return last > at ? last : end;
    last = end;
    end = next;
  }
  return end;
}

}  // namespace

size_t gpt2_word_end(std::string_view text, size_t at) {
  if (text[at] == '\'') {
    if (size_t length = contraction(text, at)) return at + length;
  }
  size_t after = at;
  CharClass kind = next_class<char_class>(text, after);
  if (kind != CharClass::kSpace) return run_end(text, after, kind);
  if (text[at] == ' ' && after < text.size()) {
    size_t second = after;
    CharClass next = next_class<char_class>(text, second);
    if (next != CharClass::kSpace) return run_end(text, second, next);
  }
  return space_end(text, at);
}

}  // namespace brine::data
