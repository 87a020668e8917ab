// What a suite of tasks gives: the mean scores of every method, and the sparsest sufficient k.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/config/schema.h"
#include "distill/evaluation/tasks/interval.h"
#include "distill/log/device_memory.h"

namespace brine::distill {

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
  std::vector<SuiteRow> rows = {};      // by task, length and depth
  std::vector<SuiteRow> tasks = {};     // means of a task, then of all
  std::vector<SuiteFloor> floors = {};  // if dense attention was scored
  std::optional<DevicePeak> peak = {};
};
// "suite", "model", "attention", "query_skip", "teacher", "seed", "lengths", "samples", "prompts",
// "rows", "tasks", "interval" (of dense) by task and "sparsest_k" by method and task.
data::Json to_json(const SuiteResult& result);

}  // namespace brine::distill
