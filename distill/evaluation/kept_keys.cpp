// Sums of kept keys over the rows of all layers.
#include "distill/evaluation/kept_keys.h"

#include "tensor/comm/bytes.h"

namespace brine::distill {

Tensor KeptKeysObserver::observe(int64_t, const nn::Tap& tap, const Tensor& output) {
  const double* kept = tap.get("kept_keys").data<double>();
  const double rows = double(output.dim(0) * output.dim(1));
  sum_.row += kept[0] * rows;
  sum_.tile += kept[1] * rows;
  sum_.rows += rows;
  return {};
}

std::string KeptKeysObserver::take() {
  ByteWriter part;
  part.number(sum_);
  sum_ = {};
  return part.bytes();
}

void KeptKeysObserver::add(const std::string& part) {
  const Sum other = ByteReader(part).number<Sum>();
  sum_.row += other.row;
  sum_.tile += other.tile;
  sum_.rows += other.rows;
}

KeptKeys KeptKeysObserver::mean() const {
  if (sum_.rows == 0) return {};
  return {.row = sum_.row / sum_.rows, .tile = sum_.tile / sum_.rows};
}

}  // namespace brine::distill
