// Learned and rotary positions.
#include "nn/layers/positions.h"

namespace brine::nn {

Tensor position_ids(int64_t B, int64_t T, const Tensor& first, int64_t offset) {
  Tensor ids = Tensor::empty({B, T}, Dtype::i32, Device{});
  for (int64_t b = 0; b < B; ++b) {
    const int64_t start = (first.defined() ? first.data<int64_t>()[b] : 0) + offset;
    for (int64_t t = 0; t < T; ++t) ids.data<int32_t>()[b * T + t] = int32_t(start + t);
  }
  return ids;
}

Tensor Positions::added(const Tensor& x, const Tensor& first) const {
  return table ? added_at(x, position_ids(x.dim(0), x.dim(1), first, offset)) : x;
}

Tensor Positions::added_at(const Tensor& x, const Tensor& rows) const {
  return table ? add(x, (*table)(rows)) : x;
}

Tensor Positions::rotated(const Tensor& heads, const Tensor& first) const {
  return rotary() ? brine::rotary(heads, frequencies, first) : heads;
}

Positions Positions::reversed() const {
  Positions out = *this;
  if (!rotary()) return out;
  out.frequencies = frequencies.clone();
  double* angle = out.frequencies.data<double>();
  for (int64_t i = 0; i < out.frequencies.numel(); ++i) angle[i] = -angle[i];
  return out;
}

}  // namespace brine::nn
