// Whether there is a cuDNN to be used.
#pragma once

#include <string>

#include "tensor/cuda/loader/shared_library.h"

namespace brine::cuda::cudnn {

struct Found {
  SharedLibrary library;
  std::string version = {};  // "9.19.0"
  std::string why_not = {};  // empty where it can be used
};
// Looks for it at the first call.
const Found& library();

}  // namespace brine::cuda::cudnn
