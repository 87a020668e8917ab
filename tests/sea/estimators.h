// Estimators of settings, and their parameters by path.
#pragma once

#include "sea/columns/estimator.h"

namespace brine::test {

inline Tensor& parameter_of(nn::Module& module, const std::string& path) {
  for (const auto& p : module.named_parameters()) {
    if (p.path == path) return p.parameter->value;
  }
  throw Error("no parameter " + path);
}
inline Tensor& buffer_of(nn::Module& module, const std::string& path) {
  for (const auto& b : module.named_buffers()) {
    if (b.path == path) return b.buffer->value;
  }
  throw Error("no buffer " + path);
}

}  // namespace brine::test
