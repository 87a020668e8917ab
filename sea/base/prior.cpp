// The features of the learned prior.
#include "sea/base/prior.h"

namespace brine::sea {
namespace {

// R / 2 [heads, m, d] of a projection R [m, d].
Tensor half_in_every_head(const nn::Init& init, int64_t heads, const Tensor& R) {
  const Shape shape{heads, R.dim(0), R.dim(1)};
  return Tensor::filled(shape, init.dtype, init.device, [&](const Tensor& y) {
    dispatch_float(y.dtype(), [&]<class F>() {
      for (int64_t i = 0; i < y.numel(); ++i) {
        y.data<F>()[i] = F(R.data<double>()[i % R.numel()] / 2);
      }
    });
  });
}

}  // namespace

PriorFeatures::PriorFeatures(nn::Init& init, int64_t heads, const Tensor& projection, bool rotary)
    : weight(parameter("weight", half_in_every_head(init, heads, projection))),
      bias(parameter("bias", init.zeros({heads, projection.dim(0)}), false)) {
  if (!rotary) return;
  content = parameter("content", init.normal({heads, projection.dim(0), projection.dim(1)}, 0.01));
}

Tensor PriorFeatures::operator()(const Tensor& x, const Tensor& x_content,
                                 const Tensor& lengths) const {
  check(!content || x_content.defined(),
        "sea: the learned prior of a model with rotary positions needs q and k before rotation");
  return exp_features(
      x, content ? x_content : Tensor(),
      {.weight = weight, .bias = bias, .content = content ? content->get().value : Tensor()},
      lengths);
}

Tensor PriorPair::projection(nn::Init& init, const nn::AttentionShape& shape, int64_t features) {
  const int64_t d = shape.head_size;
  const RandomSlice slice = init.random.take(uint64_t(nn::random_projection_draws(features, d)));
  return nn::random_projection(features, d, slice, Dtype::f64);
}

}  // namespace brine::sea
