// Measuring whole steps.
#pragma once

#include "apps/bench/bench.h"
#include "distill/batch.h"

namespace brine::bench {

// Medians of a step; its share inside products and its system calls after the third.
BenchRow step_row(const std::string& name, const std::string& shape, int64_t tokens,
                  const std::function<void()>& step);

// B windows of T random tokens.
distill::Batch random_batch(int64_t B, int64_t T, int64_t vocab);

}  // namespace brine::bench
