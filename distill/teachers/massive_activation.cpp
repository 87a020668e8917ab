// Massive activations of a teacher.
#include "distill/teachers/massive_activation.h"

#include <algorithm>
#include <cmath>

namespace brine::distill {
namespace {

// Of the output [1, T, C] of a layer.
MassiveActivation largest_of(const Tensor& output, int64_t layer) {
  const int64_t T = output.dim(1), C = output.dim(2);
  const std::vector<double> x = output.to(Device{}).to_vector();
  MassiveActivation out{.layer = layer};
  double first = 0, others = 0;
  for (int64_t i = 0; i < T * C; ++i) (i < C ? first : others) += x[size_t(i)] * x[size_t(i)];
  for (int64_t i = 0; i < C; ++i) {
    if (std::abs(x[size_t(i)]) <= std::abs(out.value)) continue;
    out.feature = i;
    out.value = x[size_t(i)];
  }
  out.usual = std::sqrt(others / double((T - 1) * C));
  out.share = first / std::max(first + others, 1e-300);
  return out;
}

}  // namespace

std::string MassiveActivation::text() const {
  auto rounded = [](double v) { return std::round(v * 100) / 100; };
  return join("feature ", feature, " of the first token is ", rounded(value), " in layer ", layer,
              ", the other tokens' are about ", rounded(usual));
}

std::optional<MassiveActivation> massive_activation(nn::Model& teacher) {
  constexpr int64_t kTokens = 64;
  const nn::ModelShape& shape = teacher.shape();
  const int64_t T = std::min(kTokens, shape.max_positions);
  if (!shape.causal || T < 2) return std::nullopt;
  NoGrad off;
  // The first token has them whatever the text is.
  nn::ModelCall call{.ids = Tensor::empty({1, T}, Dtype::i32)};
  for (int64_t i = 0; i < T; ++i)
    call.ids.data<int32_t>()[i] = int32_t((i + 1) * 7919 % shape.vocab_size);
  MassiveActivation largest;
  Tensor x = teacher.embed(call);
  for (int64_t i = 0; i < shape.layers; ++i) {
    x = teacher.layer(i, x, call, nullptr).detach();
    const MassiveActivation here = largest_of(x, i);
    if (here.share > largest.share) largest = here;
  }
  if (largest.share <= 0.5) return std::nullopt;
  return largest;
}

}  // namespace brine::distill
