// A tensor and its name: an entry of a file, of a model's state or of a saved sequence.
#pragma once

#include <string>

#include "tensor/tensor.h"

namespace brine {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

}  // namespace brine
