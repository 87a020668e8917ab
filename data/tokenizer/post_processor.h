// The special tokens around a text: the "post_processor" of tokenizer.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "data/tokenizer/pipeline.h"

namespace brine::data {

// From null, ByteLevel, BertProcessing, TemplateProcessing (its template for one text) or a
// Sequence of ByteLevel and one other. Errors start with `where`.
TokensAround read_post_processor(const nlohmann::json& description, const std::string& where);
// Gives a model and its frame BERT's template by the roles cls and sep: [CLS] A [SEP], of a pair
// [CLS] A [SEP] B [SEP], whose second text and last [SEP] have type 1.
void add_bert_template(TokenizerModel& model, nlohmann::ordered_json& frame,
                       const std::string& where);

}  // namespace brine::data
