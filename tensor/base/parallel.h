// Loops over threads. The pieces depend only on the sizes, never on the number of threads, so that
// a sum over pieces has the same bits with 1, 2 or 64 threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>

namespace brine {

// Calls f(begin, end) on pieces of at most `grain` items that cover [0, n). Serial inside another
// parallel loop or when one piece is enough. An exception of a piece is rethrown at the end.
template <class F>
void parallel_for(int64_t n, int64_t grain, F&& f) {
  grain = std::max<int64_t>(grain, 1);
  int64_t pieces = (n + grain - 1) / grain;
  if (pieces <= 1 || omp_in_parallel() || omp_get_max_threads() == 1) {
    for (int64_t p = 0; p < pieces; ++p) f(p * grain, std::min(n, (p + 1) * grain));
    return;
  }
  std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t p = 0; p < pieces; ++p) {
    try {
      f(p * grain, std::min(n, (p + 1) * grain));
    } catch (...) {
#pragma omp critical(brine_parallel_failure)
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace brine
