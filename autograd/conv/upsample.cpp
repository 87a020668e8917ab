// Upsampling of images.
#include "autograd/conv/image_checks.h"
#include "autograd/ops.h"

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
  const int64_t B = x.dim(0), W = x.dim(2), C = x.dim(3), K = conf.columns, step = conf.stride;
  Tensor y = x.dim(1) == rows ? x : slice(x, 1, 0, rows);
  if (K != W) {
    const Tensor column = Tensor::empty({1, 1, K, 1}, Dtype::i64);
    for (int64_t c = 0; c < K; ++c) column.data<int64_t>()[c] = c * W / K;
    y = gather(y, 2, column);
  }
  if (step > 1) {
    y = broadcast_to(reshape(y, {B, rows, 1, K, C}), {B, rows, step, K, C});
    y = slice(reshape(y, {B, rows * step, K, C}), 1, 0, conf.tokens);
  }
  if (conf.lengths.defined()) y = zero_padding(y, conf.lengths);
  return with_halo(y, {conf.halo_before, conf.halo_after});
}

}  // namespace brine
