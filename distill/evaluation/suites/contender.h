// The attention methods that a suite compares on the weights of one base model.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nn/io/model_io.h"

namespace brine::distill {

// "recent:block=4:sinks=1:k=8": a registered method with settings of its config.
struct Contender {
  std::string name;    // as written
  std::string method;  // as registered
  std::vector<std::pair<std::string, std::string>> settings = {};
};

// Throws for an unknown method or setting, naming the known ones.
Contender parse_contender(const std::string& text);

// Full attention, the top keys, and recent keys with a sink block, as far as they are registered;
// in blocks as large as a student's `step` of k, or of 4 keys.
std::vector<std::string> default_contenders(int64_t step);

// Gives a loaded model this attention, with the method's tensors, if any, at their initial
// values.
void use_contender(nn::LoadedModel& model, const Contender& contender);

}  // namespace brine::distill
