// What an objective gave: the values of its terms, and the gradient of the sum.
#pragma once

#include "distill/losses/losses.h"

namespace brine::test {

struct Evaluated {
  distill::LossTerms terms;
  Tensor gradients;
};

}  // namespace brine::test
