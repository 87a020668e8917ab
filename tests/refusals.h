// Refusals, compared by what they must say: the operation, what it got and what it wanted. The
// wording between is free.
#pragma once

#include <doctest/doctest.h>

#include <cctype>
#include <initializer_list>
#include <string>

#include "tests/messages.h"

namespace brine::test {

// Whether the text has all of the parts in this order. A part is whole words: "16" is not in "160".
inline bool says(const std::string& text, std::initializer_list<std::string> parts) {
  auto in_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  if (parts.size() == 0) return false;  // nothing was asked for
  size_t at = 0;
  for (const std::string& part : parts) {
    if (part.empty()) return false;
    auto whole = [&](size_t begin) {
      const size_t end = begin + part.size();
      const bool cut_before = begin > 0 && in_word(part.front()) && in_word(text[begin - 1]);
      const bool cut_after = end < text.size() && in_word(part.back()) && in_word(text[end]);
      return !cut_before && !cut_after;
    };
    size_t found = text.find(part, at);
    while (found != text.npos && !whole(found)) found = text.find(part, found + 1);
    if (found == text.npos) return false;
    at = found + part.size();
  }
  return true;
}

inline void check_says(const std::string& text, std::initializer_list<std::string> parts) {
  CHECK_MESSAGE(says(text, parts), text);
}

}  // namespace brine::test

// The call throws an Error that has the parts: CHECK_REFUSES(add(a, b), "add", "[3]", "[4]").
#define CHECK_REFUSES(call, ...) \
  brine::test::check_says(brine::test::message([&] { (void)(call); }), {__VA_ARGS__})
