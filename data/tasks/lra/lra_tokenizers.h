// Tokenizers of models that start without weights: a token for each word of ListOps, or each value
// of a pixel. Ids 0 to 4 are [PAD] [UNK] [CLS] [SEP] [MASK].
#pragma once

#include <memory>

#include "data/tokenizer/tokenizer.h"

namespace brine::data {

// 20 tokens: those of listops_tokens() from id 5 on.
std::unique_ptr<Tokenizer> listops_tokenizer();
// 261 tokens: the numbers 0 to 255 in decimal, separated by spaces in a text.
std::unique_ptr<Tokenizer> pixel_tokenizer();

}  // namespace brine::data
