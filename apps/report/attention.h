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
  int64_t k = 0;                      // kept keys; 0: all
  double keys_read = 0;
  std::string settings;             // of the attention method, as JSON
  std::vector<std::string> tokens;  // the text of each
  distill::TextAttention text;
};

// One text, the ids of `pass`, through a loaded model.
Attention attention_of(nn::LoadedModel& model, const std::string& name,
                       const distill::TextPass& pass);

}  // namespace brine::report
