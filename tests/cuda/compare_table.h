// The cases of tests/ops/kernel_table.h on the device, as on the CPU.
#pragma once

#include "tests/cuda/compare.h"
#include "tests/ops/kernel_table.h"

namespace brine::test {

inline void compare_all(const std::vector<table::KernelCase>& cases) {
  for (const table::KernelCase& c : cases) {
    for (Dtype type : c.types) {
      const SmallDevice small(type);
      compare(join(c.name, " ", type), Tolerance{}.of(type), [&](const On& on) {
        std::vector<Tensor> x = to_dtype(c.inputs, type);
        for (Tensor& input : x) input = on(input);
        return c.run(x);
      });
    }
  }
}

}  // namespace brine::test
