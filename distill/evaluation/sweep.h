// One model under a grid of kept keys and query skipping: perplexity, time, memory, mask recall.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "distill/evaluation/evaluate.h"
#include "nn/io/model_io.h"

namespace brine::distill {

struct SweepRequest {
  std::vector<int64_t> k = {};  // kept keys; empty: as trained
  std::vector<int64_t> query_skip = {1};
  int64_t batch_size = 8, max_windows = 0;
  std::string teacher;  // whose attention the masks should cover; empty: no mask recall
  // Processes that divide the windows (EvaluateCall). Then times are those until all are done, and
  // memory is this one's.
  Communicator* ranks = nullptr;
};

struct SweepCell {
  int64_t k = 0, query_skip = 1;
  double perplexity = 0;
  double recall = 0;  // of the mask; 0 without a teacher
  double keys_read = 0;
  double ms = 0;     // of a window
  double bytes = 0;  // peak of allocated bytes, including the weights
};

// Every cell, passed on as soon as it is measured: for each k every query_skip. The model's
// attention must be sparse.
void sweep(const nn::LoadedModel& model, const WindowSource& windows, const SweepRequest& request,
           const std::function<void(const SweepCell&)>& measured);

}  // namespace brine::distill
