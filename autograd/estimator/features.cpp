// Random features of the Performer.
#include <cmath>

#include "autograd/ops.h"
#include "tensor/csr.h"
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

// [B, H, T, m] = x R^T d^-1/4
Tensor project(const Tensor& x, const Tensor& projection) {
  Tensor y =
      Tensor::empty({x.dim(0), x.dim(1), x.dim(2), projection.dim(0)}, x.dtype(), x.device());
  BRINE_CALL(y, matmul, y.view({y.rows(), y.dim(3)}), x.view({x.rows(), x.dim(3)}), projection,
             false, true, input_scale(x), 0.0);
  count_macs(double(y.numel()) * double(x.dim(3)));
  return y;
}

// dx (+)= dy R d^-1/4
void unproject(const Tensor& dx, const Tensor& dy, const Tensor& projection, double beta) {
  BRINE_CALL(dx, matmul, dx.view({dx.rows(), dx.dim(3)}), dy.view({dy.rows(), dy.dim(3)}),
             projection, false, false, input_scale(dx), beta);
}

}  // namespace

Tensor relu_features(const Tensor& x, const Tensor& projection, double eps, const Tensor& lengths) {
  check_features("relu_features", x, projection, eps, lengths);
  const Tensor R = projection.detach().contiguous();
  Tensor y = project(x.detach().contiguous(), R);
  BRINE_CALL(y, relu_features, y, eps, lengths);
  const Tensor phi = y.detach();
  const Shape shape = x.shape();
  return record("relu_features", y, {x},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dprojected = Tensor::like(phi);
                  BRINE_CALL(phi, relu_features_backward, dprojected, dy, phi, eps, lengths);
                  Tensor dx = Tensor::empty(shape, phi.dtype(), phi.device());
                  unproject(dx, dprojected, R, 0);
                  grads.set(0, dx);
                },
                {phi, R});
}

Tensor softmax_features(const Tensor& x, const Tensor& projection, double eps,
                        const Tensor& lengths, FeatureSide side) {
  check_features("softmax_features", x, projection, eps, lengths);
  const Tensor R = projection.detach().contiguous(), in = x.detach().contiguous();
  Tensor y = project(in, R);
  BRINE_CALL(y, softmax_features, y, in, eps, lengths, side == FeatureSide::keys);
  const Tensor phi = y.detach();
  return record("softmax_features", y, {x},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dprojected = Tensor::like(phi), dx = Tensor::like(in);
                  BRINE_CALL(phi, softmax_features_backward, dprojected, dx, dy, phi, in, eps,
                             lengths);
                  unproject(dx, dprojected, R, 1);
                  grads.set(0, dx);
                },
                {phi, in, R});
}

Tensor relu_features_step(const Tensor& x, const Tensor& projection, double eps) {
  Tensor scaled = Tensor::like(x);
  BRINE_CALL(x, axpby, scaled, x.detach().contiguous(), std::pow(double(x.dim(-1)), -0.25), 0.0);
  Tensor phi = thin_linear(scaled, projection, Tensor());
  BRINE_CALL(phi, relu_features, phi, eps, Tensor());
  return phi;
}

}  // namespace brine
