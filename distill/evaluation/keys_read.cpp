// Sums of the keys that rows read, over the rows of all layers.
#include "distill/evaluation/keys_read.h"

#include "autograd/node.h"
#include "tensor/comm/bytes.h"

namespace brine::distill {

Tensor KeysRead::observe(int64_t, const nn::Tap& tap, const Tensor& output) {
  const double rows = double(output.dim(0) * output.dim(1));
  if (tap.has("kept_keys")) {
    sum_.keys += tap.get("kept_keys").data<double>()[0] * rows;
  } else if (tap.has("row_pointers")) {
    const Tensor ends = tap.get("row_pointers").to(Device{});
    sum_.keys += double(ends.data<int64_t>()[ends.numel() - 1]) / double(tap.get("q").dim(1));
  } else {
    return {};
  }
  sum_.rows += rows;
  return {};
}

std::string KeysRead::take() {
  ByteWriter part;
  part.number(sum_);
  sum_ = {};
  return part.bytes();
}

void KeysRead::add(const std::string& part) {
  const Sum other = ByteReader(part).number<Sum>();
  sum_.keys += other.keys;
  sum_.rows += other.rows;
}

double keys_of_all(const nn::ModelShape& shape, int64_t T) {
  return shape.causal ? 0.5 * double(T + 1) : double(T);
}

double keys_read(nn::Model& model, const Tensor& ids, const nn::RuntimeOptions& options) {
  if (nn::is_full_attention(model.attention_name())) return keys_of_all(model.shape(), ids.dim(1));
  if (!model.attention_traits().sparse) return 0;
  NoGrad off;
  KeysRead read;
  model.hidden({.ids = ids, .options = options, .observer = &read});
  return read.mean();
}

}  // namespace brine::distill
