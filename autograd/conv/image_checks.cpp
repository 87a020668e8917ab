// What the image ops share: argument checks, rows of zeros around an image.
#include "autograd/conv/image_checks.h"

#include "autograd/ops.h"

namespace brine {

void check_image(const char* op, const Tensor& x) {
  check(x.defined() && x.rank() == 4, op, ": x must be an image [B, tokens, columns, channels]");
  check(x.dtype() == Dtype::f32 || x.dtype() == Dtype::f64, op, ": x is ", x.dtype(),
        ", wanted f32 or f64");
}

void check_lengths(const char* op, const Tensor& lengths, int64_t B) {
  if (!lengths.defined()) return;
  check(lengths.dtype() == Dtype::i64 && lengths.shape() == Shape{B} && lengths.is_contiguous(), op,
        ": lengths are ", lengths.dtype(), " ", lengths.shape(), ", wanted i64 [", B, "]");
}

Tensor with_halo(const Tensor& image, const Halo& halo) {
  if (halo.before == 0 && halo.after == 0) return image;
  auto zeros = [&](int64_t rows) {
    return Tensor::zeros({image.dim(0), rows, image.dim(2), image.dim(3)}, image.dtype(),
                         image.device());
  };
  return concat({zeros(halo.before), image, zeros(halo.after)}, 1);
}

}  // namespace brine
