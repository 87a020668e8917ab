// Convolutions by cuDNN, in builds that have it. Each call says whether it did the work: false,
// with nothing done, where cuDNN has no way that gives the same bits every time.
#pragma once

#include "tensor/kernels_conv.h"

namespace brine::cuda {

#ifdef BRINE_CUDNN
// As conv2d.
bool cudnn_conv2d(Tensor y, Tensor x, Tensor w, Tensor b, const Convolution& conf);
// dx and dw of conv2d_backward.
bool cudnn_data_gradient(Tensor dx, Tensor dy, Tensor x, Tensor w, Tensor y,
                         const Convolution& conf);
bool cudnn_weight_gradient(Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor y,
                           const Convolution& conf);
#else
inline bool cudnn_conv2d(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                         const Convolution&) {
  return false;
}
inline bool cudnn_data_gradient(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                const Tensor&, const Convolution&) {
  return false;
}
inline bool cudnn_weight_gradient(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                  const Tensor&, const Convolution&) {
  return false;
}
#endif

}  // namespace brine::cuda
