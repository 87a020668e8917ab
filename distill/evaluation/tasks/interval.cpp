// Confidence intervals of a mean score.
#include "distill/evaluation/tasks/interval.h"

#include <algorithm>
#include <cmath>

#include "tensor/base/error.h"

namespace brine::distill {

Interval wilson(double mean, int64_t n) {
  check(n >= 0 && mean >= 0 && mean <= 1, "wilson: a mean of ", mean, " over ", n, " trials");
  if (n == 0) return {};
  constexpr double z = 1.959963984540054;  // of 97.5 %
  const double N = double(n), z2 = z * z;
  const double center = (mean + z2 / (2 * N)) / (1 + z2 / N);
  const double half = z / (1 + z2 / N) * std::sqrt(mean * (1 - mean) / N + z2 / (4 * N * N));
  return {std::max(0., center - half), std::min(1., center + half)};
}

}  // namespace brine::distill
