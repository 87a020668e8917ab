// The one text that goes through a model: given as text, as ids, or as a window of files.
#pragma once

#include <string>
#include <vector>

#include "data/config/schema.h"
#include "nn/io/model_io.h"

namespace brine {

struct TextInput {
  std::string text;               // with the tokens that the tokenizer adds
  std::string tokens;             // ids, "1,2,3"
  std::vector<std::string> data;  // a window of these text files
  int64_t window = 0;             // number of the window in the files
  int64_t sequence_length = 0;    // tokens of a window; 0 = the model's positions
  int64_t k = 0;                  // kept keys; 0: as trained

  void describe(data::Schema& s);
  int sources() const { return int(!text.empty()) + int(!tokens.empty()) + int(!data.empty()); }
  // Exactly one of text, tokens and data must be given; `command` starts the message otherwise.
  std::vector<int32_t> ids(const nn::LoadedModel& model, const std::string& command) const;
};

}  // namespace brine
