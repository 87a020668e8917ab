// What the tokens of a text begin with when a model reads it from its first position.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace brine::data {

// A warning when the tokens of a text begin with one of `front`, which will be put in front of
// them; empty otherwise.
std::string repeated_front(const Tokenizer& tokenizer, std::span<const int32_t> front,
                           std::span<const int32_t> text);

// A text that a model reads from its first position: its ids with those around(), as `tokenizers`
// gives them. A text without any is the BOS alone; without a BOS it is an error. `warn`, which may
// be null, gets a repeated_front().
std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, std::string_view text,
                                   const std::function<void(const std::string&)>& warn);

// A text that continues another one: nothing is put in front of it, neither the tokens of the
// template nor the space that some tokenizers add to a text.
std::vector<int32_t> continuation_tokens(const Tokenizer& tokenizer, const std::string& text);

}  // namespace brine::data
