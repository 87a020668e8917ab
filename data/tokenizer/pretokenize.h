// GPT-2's cut of text into words, within which byte-level BPE merges: the regular expression
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// matched by handwritten code.
#pragma once

#include <cstddef>
#include <string_view>

namespace brine::data {

// The end of the word that starts at `at` < text.size(); words are adjacent. `text` is well-formed
// UTF-8 and `at` the start of a character.
size_t gpt2_word_end(std::string_view text, size_t at);

}  // namespace brine::data
