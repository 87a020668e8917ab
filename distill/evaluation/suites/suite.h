// A suite of tasks whose answers are in their prompts, over a grid of lengths and depths: a student
// next to other attention methods on the base's weights, at equal numbers of kept keys.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "data/config/schema.h"
#include "distill/evaluation/suites/suite_result.h"
#include "distill/log/messages.h"
#include "nn/io/model_io.h"
#include "nn/models/model_state.h"
#include "tensor/comm/communicator.h"

namespace brine::distill {

// The attention methods that a suite compares on the weights of one base model.

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

struct SuiteGrid {
  std::string suite;               // "ruler"; empty: none
  std::vector<std::string> tasks;  // empty: all
  std::vector<int64_t> lengths = {1024};
  std::vector<int64_t> depths = {0, 25, 50, 75, 100};  // percent
  int64_t depth_count = 0;                             // if not 0, so many from 0 to 100 instead
  int64_t samples = 4;
  std::vector<std::string> compare;  // contenders; empty: default_contenders()
  bool generate = true;
  int64_t answer_tokens = 0;
  std::string write_prompts = {};  // file of JSON lines; empty: none

  void describe(data::Schema& s);
  // The keys that mean nothing without a suite.
  static std::initializer_list<const char*> keys();
};

struct SuiteCall {
  SuiteGrid grid;
  std::vector<std::string> data;  // text files of the haystack; empty: noise
  std::string teacher;            // the base of the contenders; empty: the student's weights
  std::vector<int64_t> k;         // empty: the student's
  nn::RuntimeOptions options;     // but k
  std::optional<nn::CachedReading> reading = {};  // as EvaluateCall::reading
  int64_t batch_size = 8;
  uint64_t seed = 1;
  Communicator* ranks = nullptr;  // that divide the prompts; null: this process alone
};

// The model has another attention or other weights afterwards. Throws for unknown tasks and
// methods, and for a length that is too short for a task or beyond the positions.
SuiteResult evaluate_suite(const std::string& name, nn::LoadedModel& model,
                           const data::Tokenizer& tokenizer, const SuiteCall& call,
                           const Messages& messages);

}  // namespace brine::distill
