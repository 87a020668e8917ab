// Argument checks that the image ops share.
#include "autograd/conv/image_checks.h"

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

}  // namespace brine
