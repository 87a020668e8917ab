// The example of autograd/README.md, a method composed from primitives, against the fused op.
#include "autograd/ops.h"
#include "tests/gradcheck.h"

using namespace brine;
using namespace brine::test;

namespace {

// x with an axis of size 1 inserted before `axis`.
Tensor insert_axis(const Tensor& x, int axis) {
  Shape shape;
  for (int i = 0; i <= x.rank(); ++i) {
    if (i == axis) shape.push_back(1);
    if (i < x.rank()) shape.push_back(x.dim(i));
  }
  return reshape(x, shape);
}

Tensor elu_features(const Tensor& x) {
  return where(greater(x, 0), x + 1, exp(where(greater(x, 0), 0, x)));
}
Tensor elu_attention(const Tensor& q, const Tensor& k, const Tensor& v) {  // [B, H, T, d]
  const Tensor a = elu_features(q), b = elu_features(k);
  const Tensor state = cumsum(insert_axis(b, 4) * insert_axis(v, 3), 2);  // [B, H, T, d, d]
  return sum(insert_axis(a, 4) * state, {3}) / sum(a * cumsum(b, 2), {-1}, true);
}

}  // namespace

TEST_CASE("a method in five lines of primitives is the fused linear attention without eps") {
  const std::vector<Tensor> x = {normal({2, 2, 9, 4}, 18, Dtype::f64),
                                 normal({2, 2, 9, 4}, 19, Dtype::f64),
                                 normal({2, 2, 9, 4}, 20, Dtype::f64)};
  const Tensor dy = normal({2, 2, 9, 4}, 21, Dtype::f64);
  const Run composed = run([](In in) { return elu_attention(in[0], in[1], in[2]); }, x, dy);
  const Run fused = run(
      [](In in) {
        return linear_attention(elu_features(in[0]), elu_features(in[1]), {}, in[2], {}, 0);
      },
      x, dy);
  CHECK(close_to_scale(fused.y, composed.y, 1e-12, "output"));
  for (size_t i = 0; i < 3; ++i) {
    CHECK(close_to_scale(fused.grads[i], composed.grads[i], 1e-12, join("gradient of ", i)));
  }
}
