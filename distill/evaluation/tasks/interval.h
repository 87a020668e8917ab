// Confidence intervals of a mean score.
#pragma once

#include <cstdint>

namespace brine::distill {

struct Interval {
  double low = 0, high = 1;
};

// The 95 % score interval of Wilson (1927) of a share among n independent trials. For a mean of n
// scores between 0 and 1 it is at least as wide as theirs, whose variance is at most that of hits
// and misses. n = 0: [0, 1].
Interval wilson(double mean, int64_t n);

}  // namespace brine::distill
