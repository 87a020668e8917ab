// What the dense ops share: their inputs as kernels take them.
#pragma once

#include "tensor/tensor.h"

namespace brine {

// x off the tape, copied where its elements are not contiguous.
inline Tensor dense(const Tensor& x) { return x.detach().contiguous(); }

}  // namespace brine
