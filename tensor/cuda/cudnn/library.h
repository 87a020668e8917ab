// Whether a usable cuDNN is present.
#pragma once

#include <string>

#include "tensor/base/shared_library.h"

namespace brine::cuda::cudnn {

struct Found {
  SharedLibrary library;
  std::string version = {};  // "9.19.0"
  std::string why_not = {};  // empty if it can be used
};
// Searches for it at the first call.
const Found& library();

}  // namespace brine::cuda::cudnn
