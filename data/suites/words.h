// Words, names and numbers of which prompts are made, and the random choices of a prompt.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/base/random.h"

namespace brine::data {

// Random choices: a function of a seed and of a name, in order of the calls.
// A copy continues independently: a text made again from a copy makes the same choices.
class Draws {
 public:
  // `name` says what the choices are for: task, length, depth and sample.
  Draws(uint64_t seed, std::string_view name) : words_{.seed = seed, .stream = hash_of(name)} {}

  // 0 .. n - 1; 1 <= n < 2^32.
  uint64_t below(uint64_t n) { return uint64_t(words_.word(next_++)) * n >> 32; }

  template <class T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

  // FNV-1a of 64 bits (Fowler, Noll, Vo).
  static uint64_t hash_of(std::string_view name) {
    uint64_t h = 0xcbf29ce484222325u;
    for (char c : name) h = (h ^ uint64_t(static_cast<unsigned char>(c))) * 0x100000001b3u;
    return h;
  }

 private:
  RandomSlice words_;
  uint64_t next_ = 0;
};

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
