// Rotary positions (Su et al. 2021).
#include <cmath>

#include "autograd/ops.h"
#include "tensor/kernels/dense.h"

namespace brine {

Tensor rotary_frequencies(int64_t features, double theta) {
  check(features >= 2 && features % 2 == 0, "rotary: ", features,
        " features to rotate, wanted an even number");
  check(theta > 0, "rotary: theta ", theta, " must be above 0");
  Tensor out = Tensor::empty({features / 2}, Dtype::f64, Device{});
  for (int64_t i = 0; i < out.numel(); ++i) {
    out.data<double>()[i] = std::pow(theta, -2.0 * double(i) / double(features));
  }
  return out;
}

Tensor rotary(const Tensor& x, const Tensor& frequencies, const Tensor& first) {
  check(x.rank() == 4, "rotary: ", x.shape(), " is not [B, H, T, d]");
  check(frequencies.defined() && frequencies.dtype() == Dtype::f64 && frequencies.rank() == 1 &&
            2 * frequencies.numel() <= x.dim(3),
        "rotary: frequencies must be f64 [n] with n at most ", x.dim(3) / 2);
  check(!first.defined() || (first.dtype() == Dtype::i64 && first.shape() == Shape{x.dim(0)}),
        "rotary: first positions must be i64 [", x.dim(0), "]");
  Tensor start = first.defined() ? first.clone() : Tensor();  // the caller may increment it
  const Tensor rates = frequencies.contiguous();
  Tensor y = Tensor::like(x);
  BRINE_CALL(y, rotary, y, x.detach().contiguous(), start, rates, 1.0);
  return record_one("rotary", y, x, [=](const Tensor& dx, const Tensor& dy) {
    BRINE_CALL(dx, rotary, dx, dy, start, rates, -1.0);
  });
}

}  // namespace brine
