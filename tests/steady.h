// A kernel's output, checked to have the same bits for any number of threads.
#pragma once

#include "tests/gradcheck.h"

namespace brine::test {

// The output of f(); f() must give the same bits for 1, 2 and 3 threads.
inline Tensor steady(const std::function<Tensor()>& f) {
  Tensor first = f();
  for (int n : {1, 2, 3}) {
    Threads set(n);
    CHECK(same_bits(f(), first));
  }
  return first;
}

}  // namespace brine::test
