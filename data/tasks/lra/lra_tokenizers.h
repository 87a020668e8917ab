// The tokenizer of models of ListOps that start without weights: a token for each word. Ids 0 to 4
// are [PAD] [UNK] [CLS] [SEP] [MASK].
#pragma once

#include <memory>

#include "data/tokenizer/tokenizer.h"

namespace brine::data {

// 20 tokens: those of listops_tokens() from id 5 on.
std::unique_ptr<Tokenizer> listops_tokenizer();

}  // namespace brine::data
