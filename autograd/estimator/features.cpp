// Random features of the Performer, and learned ones.
#include <cmath>

#include "autograd/ops.h"
#include "tensor/kernels/dense.h"
#include "tensor/kernels/estimator.h"
#include "tensor/meter/cost_meter.h"

namespace brine {
namespace {

bool computes(const Tensor& x) { return x.dtype() == Dtype::f32 || x.dtype() == Dtype::f64; }

void check_features(const char* op, const Tensor& x, const Tensor& projection, double eps,
                    const Tensor& lengths) {
  check(x.rank() == 4 && x.dim(3) > 0 && computes(x), op, ": x must be [B, H, T, d], got ",
        x.dtype(), " ", x.shape());
  check(projection.rank() == 2 && projection.dim(0) > 0 && projection.dim(1) == x.dim(3) &&
            projection.dtype() == x.dtype(),
        op, ": the projection must be ", x.dtype(), " [m, ", x.dim(3), "], got ",
        projection.dtype(), " ", projection.shape());
  check(eps > 0, op, ": eps is ", eps, ", must be above 0");
  check_visibility(op, {.causal = false, .lengths = lengths}, x.dim(0), x.dim(2));
}

double input_scale(const Tensor& x) { return std::pow(double(x.dim(-1)), -0.25); }

// [B, H, T, m] = x R^T d^-1/4.
Tensor project(const Tensor& x, const Tensor& projection) {
  const int64_t B = x.dim(0), H = x.dim(1), T = x.dim(2), m = projection.dim(0);
  const Tensor rows = reshape(x, {B * H * T, x.dim(3)});
  return reshape(matmul(rows, projection.detach(), false, true, input_scale(x)), {B, H, T, m});
}

// phi, 0 at padding and with the columns that a GPU adds.
Tensor padded_features(const Tensor& phi, const Tensor& valid) {
  const int64_t m = phi.dim(3), more = feature_columns(m, phi.device()) - m;
  const Tensor kept = valid.defined() ? where(valid, phi, 0) : phi;
  if (more == 0) return kept;
  const Shape shape{phi.dim(0), phi.dim(1), phi.dim(2), more};
  return concat({kept, Tensor::zeros(shape, phi.dtype(), phi.device())}, 3);
}

// u8 [B, 1, T, 1], 0 at padding; undefined if there is none. zero_padding() uploads lengths once.
Tensor valid_tokens(const Tensor& x, const Tensor& lengths) {
  if (!lengths.defined()) return {};
  const int64_t B = x.dim(0), T = x.dim(2);
  const Tensor ones = Tensor::full({B, T, 1}, 1, x.dtype(), x.device());
  return reshape(greater(zero_padding(ones, lengths), 0), {B, 1, T, 1});
}

void check_exp_features(const Tensor& x, const Tensor& content, const ExpFeatureWeights& w,
                        const Tensor& lengths) {
  const char* op = "exp_features";
  check(x.rank() == 4 && x.dim(3) > 0 && computes(x), op, ": x must be [B, G, T, d], got ",
        x.dtype(), " ", x.shape());
  const int64_t G = x.dim(1), d = x.dim(3);
  const int64_t m = w.bias.defined() && w.bias.rank() == 2 ? w.bias.dim(1) : 0;
  check(m > 0 && w.bias.dim(0) == G && w.weight.shape() == Shape{G, m, d} &&
            w.weight.dtype() == x.dtype() && w.bias.dtype() == x.dtype(),
        op, ": weight and bias must be ", x.dtype(), " [", G, ", m, ", d, "] and [", G,
        ", m], got ", w.weight.shape(), " and ", w.bias.shape());
  check(content.defined() == w.content.defined() &&
            (!content.defined() ||
             (content.shape() == x.shape() && content.dtype() == x.dtype() &&
              w.content.shape() == w.weight.shape() && w.content.dtype() == x.dtype())),
        op, ": content must be ", x.shape(), " with a weight ", w.weight.shape(), ", or both none");
  check_visibility(op, {.causal = false, .lengths = lengths}, x.dim(0), x.dim(2));
}

// The gradient of an input: scale d W by heads.
void unproject_heads(Gradients& grads, int input, const Tensor& d, const Tensor& W, double scale,
                     const Shape& shape) {
  if (!grads.wanted(input)) return;
  Tensor dx = Tensor::empty(shape, d.dtype(), d.device());
  for (int64_t s = 0; s < d.dim(0); ++s) {
    BRINE_CALL(d, matmul, dx.select(0, s), d.select(0, s), W, false, false, scale, 0.0);
  }
  grads.set(input, dx);
}

// That of a weight [G, m, d]: scale d^T x, summed over the sequences.
void weight_gradient(Gradients& grads, int input, const Tensor& d, const Tensor& x, double scale) {
  if (!grads.wanted(input)) return;
  const Tensor dw = grads.accumulate(input);
  for (int64_t s = 0; s < d.dim(0); ++s) {
    BRINE_CALL(d, matmul, dw, d.select(0, s), x.select(0, s), true, false, scale, 1.0);
  }
}

// db [G, m] += the sums of d [B, G, T, m] over sequences and tokens.
void add_biases(const Tensor& db, const Tensor& d) {
  for (int64_t s = 0; s < d.dim(0); ++s) {
    for (int64_t g = 0; g < d.dim(1); ++g) {
      add_sum_of_rows(db.select(0, g), d.select(0, s).select(0, g));
    }
  }
}

}  // namespace

Tensor relu_features(const Tensor& x, const Tensor& projection, double eps, const Tensor& lengths) {
  check_features("relu_features", x, projection, eps, lengths);
  return padded_features(relu(project(x, projection)) + eps, valid_tokens(x, lengths));
}

Tensor softmax_features(const Tensor& x, const Tensor& projection, double eps,
                        const Tensor& lengths, FeatureSide side) {
  check_features("softmax_features", x, projection, eps, lengths);
  const Tensor u = project(x, projection), valid = valid_tokens(x, lengths);
  if (u.numel() == 0) return u;
  // At padding numbers are replaced before they could be the largest, or exp() infinite.
  auto kept = [&](const Tensor& y, double otherwise) {
    return valid.defined() ? where(valid, y, otherwise) : y;
  };
  Tensor largest = max(kept(u.detach(), -1e30), {3}, true);
  if (side == FeatureSide::keys) largest = max(largest, {2}, true);
  const Tensor square = sum(x * x, {3}, true) * (0.5 / std::sqrt(double(x.dim(3))));
  const Tensor phi = (exp(kept(u - (square + largest), 0)) + eps);
  return padded_features(phi * (1 / std::sqrt(double(u.dim(3)))), valid);
}

Tensor relu_features_step(const Tensor& x, const Tensor& projection, double eps) {
  return relu(thin_linear(scale(x.detach(), input_scale(x)), projection, Tensor())) + eps;
}

Tensor exp_features(const Tensor& x, const Tensor& content, const ExpFeatureWeights& weights,
                    const Tensor& lengths) {
  check_exp_features(x, content, weights, lengths);
  const Tensor in = x.detach().contiguous(), A = weights.weight.detach().contiguous();
  const Tensor b = weights.bias.detach().contiguous();
  Tensor more, U;
  if (content.defined()) {
    more = content.detach().contiguous();
    U = weights.content.detach().contiguous();
  }
  const int64_t B = x.dim(0), m = A.dim(1);
  Tensor y = Tensor::empty({B, x.dim(1), x.dim(2), m}, x.dtype(), x.device());
  for (int64_t s = 0; s < B; ++s) {
    BRINE_CALL(y, matmul, y.select(0, s), in.select(0, s), A, false, true, input_scale(x), 0.0);
    if (!more.defined()) continue;
    BRINE_CALL(y, matmul, y.select(0, s), more.select(0, s), U, false, true, 1.0, 1.0);
  }
  count_macs(double(y.numel()) * double(x.dim(3)) * (more.defined() ? 2 : 1));
  BRINE_CALL(y, exp_features, y, b, lengths);
  const Tensor phi = y.detach();
  return record("exp_features", y, {x, weights.weight, weights.bias, content, weights.content},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor d = Tensor::like(phi);  // of the exponent
                  BRINE_CALL(phi, exp_features_backward, d, dy, phi);
                  unproject_heads(grads, 0, d, A, input_scale(in), in.shape());
                  weight_gradient(grads, 1, d, in, input_scale(in));
                  if (grads.wanted(2)) add_biases(grads.accumulate(2), d);
                  if (!more.defined()) return;
                  unproject_heads(grads, 3, d, U, 1, in.shape());
                  weight_gradient(grads, 4, d, more, 1);
                },
                {phi, in, A, more, U});
}

}  // namespace brine
