// Upsampling of images.
#include "autograd/ops_conv.h"
#include "autograd/step_checks.h"
#include "tensor/kernels/conv.h"

namespace brine {

Tensor upsample(const Tensor& x, const Upsampling& conf) {
  check_image("upsample", x);
  check(conf.tokens >= 1 && conf.columns >= 1 && conf.stride >= 1 && conf.halo_before >= 0 &&
            conf.halo_after >= 0,
        "upsample: tokens, columns and stride must be >= 1 and halos >= 0");
  int64_t rows = (conf.tokens + conf.stride - 1) / conf.stride;
  check(x.dim(1) >= rows && x.dim(2) >= 1, "upsample: x ", x.shape(), " has fewer than ", rows,
        " rows, for ", conf.tokens, " tokens at stride ", conf.stride);
  check_lengths("upsample", conf.lengths, x.dim(0));
  Tensor in = x.detach().contiguous();
  Tensor y = Tensor::empty(
      {x.dim(0), conf.halo_before + conf.tokens + conf.halo_after, conf.columns, x.dim(3)},
      x.dtype(), x.device());
  BRINE_CALL(y, upsample, y, in, conf);
  return record_one("upsample", y, x, [=](const Tensor& dx, const Tensor& dy) {
    BRINE_CALL(dx, upsample_backward, dx, dy, conf);
  });
}

}  // namespace brine
