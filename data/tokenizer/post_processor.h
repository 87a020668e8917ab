// The special tokens around a text: the "post_processor" of tokenizer.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "data/tokenizer/tokenizer.h"

namespace brine::data {

// From null, ByteLevel, BertProcessing, TemplateProcessing (its template for one text) or a
// Sequence of ByteLevel and one other. Errors start with `where`.
TokensAround read_post_processor(const nlohmann::json& description, const std::string& where);

}  // namespace brine::data
