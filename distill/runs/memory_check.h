// Whether a training run fits into the machine's memory, before it starts.
#pragma once

#include <optional>

#include "distill/runs/training_run.h"

namespace brine::distill {

// Numbers of micro-batches of a run; of a very long one only its beginning is looked at.
struct RunBatches {
  int64_t longest = 0;  // of those with the most tokens in a row, the first
  int64_t usual = 0;    // the nearest to the mean
  bool differ = false;  // in their lengths
};
RunBatches batches_of(const TrainingRun& run);

// Bytes that a step of the run needs beyond those that are allocated, with the optimizer's moments:
// measured with one and two samples of the longest micro-batch, continued to all of its samples.
double step_memory(TrainingRun& run, uint64_t seed);

// Throws when step_memory() is more than `available` bytes, else returns it. A run of small batches
// that is small by the sizes of its tensors is not measured.
std::optional<double> check_memory(TrainingRun& run, uint64_t seed, double available);

}  // namespace brine::distill
