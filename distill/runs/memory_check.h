// Whether a training run fits into the machine's memory, before it starts.
#pragma once

#include "distill/runs/training_run.h"

namespace brine::distill {

// Bytes that a step of the run needs beyond those that are allocated, with the optimizer's moments:
// measured with one and with two samples of the longest kind, continued to those of a micro-batch.
double step_memory(TrainingRun& run, uint64_t seed);

// Throws when step_memory() is more than `available` bytes. A run that is small by the sizes of its
// tensors is not measured.
void check_memory(TrainingRun& run, uint64_t seed, double available);

}  // namespace brine::distill
