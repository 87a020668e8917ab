// Words, names and numbers of which prompts are made.
#pragma once

#include <string>
#include <vector>

#include "data/suites/draws.h"

namespace brine::data {

// n different items each.
std::vector<std::string> draw_keys(Draws& draws, size_t n);                 // "quiet-harbor"
std::vector<std::string> draw_numbers(Draws& draws, size_t n, int digits);  // without leading 0
// Words of an English list; when it is used up, words made of syllables.
std::vector<std::string> draw_words(Draws& draws, size_t n);
// Words of `size` letters from `first` ('a' or 'A') on.
std::vector<std::string> draw_codes(Draws& draws, size_t n, size_t size, char first);

// "a", "a and b", "a, b, and c".
std::string enumerated(const std::vector<std::string>& items);

}  // namespace brine::data
