// The attention of one student on the text of a report, from a pass of the model.
#pragma once

#include <string>
#include <vector>

#include "apps/inspect/text_input.h"
#include "distill/maps/text_pass.h"

namespace brine::report {

struct Attention {
  std::string name, method, teacher;  // `teacher` in words
  std::string source;                 // path of the model
  int64_t layers = 0, heads = 0;
  int64_t k = 0;         // kept keys; 0: all
  bool sparse = false;   // a mask says which
  std::string settings;  // of the attention method, as JSON
  std::vector<int32_t> ids;
  std::vector<std::string> tokens;  // the text of each id
  distill::TextAttention text;
};

struct AttentionCall {
  std::string teacher = {};  // path, or "" and "self": the model's dense attention
  int64_t k = 0;
  distill::MapRequest maps = {};
};

// `ids` of one text through a loaded model.
Attention attention_of(nn::LoadedModel& model, const std::string& name,
                       const std::vector<int32_t>& ids, const AttentionCall& call);
// The text of each token; "12" for an id without one. Never invalid UTF-8: what is not a part of a
// character is shown as "\xe2".
std::vector<std::string> token_texts(const data::Tokenizer* tokenizer,
                                     const std::vector<int32_t>& ids);

}  // namespace brine::report
