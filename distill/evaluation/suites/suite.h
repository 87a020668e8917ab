// A suite of tasks whose answers are in their prompts, over a grid of lengths and depths: a student
// next to other attention methods on the base's weights: at the same k, by default beside a mask of
// blocks at as many keys read, unless they name a k.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/config/schema.h"
#include "distill/evaluation/tasks/metrics.h"
#include "distill/log/device_memory.h"
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
  bool as_many = false;  // reads as many keys as the student, instead of having its k

  bool names(const std::string& key) const {
    return std::ranges::any_of(settings, [&](const auto& pair) { return pair.first == key; });
  }
};

// Throws for an unknown method or setting, naming the known ones.
Contender parse_contender(const std::string& text);

// Full attention, the top keys, and recent keys with a sink block, as far as they are registered;
// in blocks as large as a student's `step` of k, or of 4 keys; without the sink if `min_k` is one
// block; through a cache without the top keys, which have none.
std::vector<std::string> default_contenders(int64_t step, int64_t min_k, bool cached = false);

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

// What a suite gives: the mean scores of every method, and the sparsest sufficient k.

// Means over prompts.
struct MeanScore {
  double generated = 0, forced = 0, nll = 0;
  double keys_read = 0;  // 0: not counted
  int64_t prompts = 0, generated_prompts = 0;
};

// The smallest k at which the method's mean is not below the 95 % interval of dense's, nor at any
// larger k of the rows; nothing where the largest k is below it already or prompts were not scored
// so.
struct SparsestK {
  std::optional<int64_t> generated = {}, forced = {};
};

// A method at one k (none: it keeps every key) on a task, or on "all".
struct SuiteRow {
  std::string task;
  std::optional<int64_t> length = {}, depth = {};  // none: the mean over them
  std::string method = {};
  std::optional<int64_t> k = {};
  MeanScore mean = {};
};

// Of a task, or of "all": the intervals of dense attention, and what methods need to reach them.
struct SuiteFloor {
  std::string task;
  std::optional<Interval> generated = {}, forced = {};
  std::vector<std::pair<std::string, SparsestK>> sparsest = {};  // by method
};

struct SuiteResult {
  std::string suite, model, attention;
  std::optional<int64_t> query_skip = {};
  std::string teacher = {};
  uint64_t seed = 1;
  std::vector<int64_t> lengths = {};
  int64_t samples = 0, prompts = 0;
  std::vector<SuiteRow> rows = {};                            // by task, length and depth
  std::vector<SuiteRow> tasks = {};                           // means of a task, then of all
  std::vector<SuiteFloor> floors = {};                        // if dense attention was scored
  std::optional<std::pair<std::string, int64_t>> cache = {};  // name and prefill
  std::optional<DevicePeak> peak = {};
};
// "suite", "model", "attention", "query_skip", "teacher", "seed", "lengths", "samples", "prompts",
// "cache" and "prefill" if prompts were read through a cache, "rows", "tasks", "interval" (of
// dense) by task and "sparsest_k" by method and task.
data::Json to_json(const SuiteResult& result);

// The model has another attention or other weights afterwards. Throws for unknown tasks and
// methods, and for a length that is too short for a task or beyond the positions.
SuiteResult evaluate_suite(const std::string& name, nn::LoadedModel& model,
                           const data::Tokenizer& tokenizer, const SuiteCall& call,
                           const Messages& messages);

}  // namespace brine::distill
