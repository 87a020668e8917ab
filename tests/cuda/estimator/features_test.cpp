// Random features on the device, as on the CPU, beyond the sizes of tests/autograd.
#include "tensor/kernels/estimator.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

// They make rows as long as a device needs them.
TEST_CASE("cuda: columns after the features are 0, forward and backward") {
  for (bool keys : {false, true}) {
    compare_both("features in wider rows", [&](const On& on, Dtype dtype) {
      const Shape shape{2, 3, 5, 10};
      const Tensor lengths = lengths_of({5, 4}), x = on(normal({2, 3, 5, 3}, 2, dtype));
      const Tensor relu = on(normal(shape, 1, dtype)), phi = on(normal(shape, 1, dtype));
      const Tensor dphi = on(normal(shape, 3, dtype)), dx = Tensor::like(x);
      const Tensor drelu = Tensor::like(phi), dprojected = Tensor::like(phi);
      BRINE_CALL(relu, relu_features, relu, 0.01, lengths, 7);
      BRINE_CALL(relu, relu_features_backward, drelu, dphi, relu, 0.01, on(lengths));
      BRINE_CALL(phi, softmax_features, phi, x, 1e-4, on(lengths), keys, 7);
      BRINE_CALL(phi, softmax_features_backward, dprojected, dx, dphi, phi, x, 1e-4, lengths, 7);
      for (const Tensor& y : {relu, drelu, phi, dprojected})
        CHECK(largest(y.to(kCpu).slice(3, 7, 3).contiguous().to_vector()) == 0);
      return std::vector{relu, drelu, phi, dprojected, dx};
    });
  }
}

TEST_CASE("cuda: the largest projection over many bands of keys") {
  // More rows than kBands bands of the smallest size have.
  const Shape shape{1, 1, 40000, 1};
  compare("softmax_features", 2e-5, [&](const On& on) {
    Tensor phi = on(normal(shape, 1)), x = on(normal(shape, 2));
    BRINE_CALL(phi, softmax_features, phi, x, 1e-4, Tensor::from(std::vector<int64_t>{39000}, {1}),
               true, 1);
    return std::vector{phi};
  });
}
