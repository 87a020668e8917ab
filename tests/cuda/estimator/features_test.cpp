// Random features on the device, as on the CPU.
#include "tensor/kernels/estimator.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

struct FeatureSize {
  int64_t B, H, T, m, d;
  std::vector<int64_t> lengths;  // none: no padding

  Tensor visible() const { return lengths.empty() ? Tensor() : Tensor::from(lengths, Shape{B}); }
};

const std::vector<FeatureSize> kFeatureSizes{
    {1, 1, 1, 1, 1, {}},           {2, 3, 5, 7, 3, {0, 4}}, {3, 2, 9, 33, 40, {9, 1, 8}},
    {2, 1, 300, 5, 4, {270, 129}}, {1, 2, 0, 4, 4, {}},     {2, 1, 3, 4, 2, {0, 0}}};

bool all_zero(const Tensor& x) {
  for (double number : x.to_vector()) {
    if (number != 0) return false;
  }
  return true;
}

// Columns after the features, which make rows as long as a device needs them.
constexpr int64_t kMore[] = {0, 3};

}  // namespace

TEST_CASE("cuda: relu features and their gradient") {
  for (const FeatureSize& s : kFeatureSizes) {
    for (int64_t more : kMore) {
      const Shape shape{s.B, s.H, s.T, s.m + more};
      compare_both(join("relu_features ", shape), [&](const On& on, Dtype dtype) {
        Tensor phi = on(normal(shape, 1, dtype)), dphi = on(normal(shape, 2, dtype));
        Tensor dx = Tensor::like(phi);
        BRINE_CALL(phi, relu_features, phi, 0.01, s.visible(), s.m);
        BRINE_CALL(phi, relu_features_backward, dx, dphi, phi, 0.01, on(s.visible()));
        for (const Tensor& x : {phi, dx}) CHECK(all_zero(x.to(kCpu).slice(3, s.m, more)));
        return std::vector{phi, dx};
      });
    }
  }
}

TEST_CASE("cuda: learned features and their gradient, with exponents beyond both limits") {
  for (const FeatureSize& s : kFeatureSizes) {
    const Shape shape{s.B, s.H, s.T, s.m};
    compare_both(join("exp_features ", shape), [&](const On& on, Dtype dtype) {
      Tensor phi = on(normal(shape, 1, dtype)), dphi = on(normal(shape, 2, dtype));
      Tensor bias = on(normal({s.H, s.m}, 3, dtype, -4, 12)), dx = Tensor::like(phi);
      BRINE_CALL(phi, exp_features, phi, bias, on(s.visible()));
      BRINE_CALL(phi, exp_features_backward, dx, dphi, phi);
      return std::vector{phi, dx};
    });
  }
}

TEST_CASE("cuda: softmax features and their gradient") {
  for (const FeatureSize& s : kFeatureSizes) {
    const Shape inputs{s.B, s.H, s.T, s.d};
    for (int kind = 0; kind < 4; ++kind) {
      const bool keys = kind % 2 == 1;
      const int64_t more = kMore[kind / 2];
      const Shape shape{s.B, s.H, s.T, s.m + more};
      compare_both(join("softmax_features ", shape, keys), [&](const On& on, Dtype dtype) {
        Tensor phi = on(normal(shape, 1, dtype)), x = on(normal(inputs, 2, dtype));
        Tensor dphi = on(normal(shape, 3, dtype));
        Tensor dprojected = Tensor::like(phi), dx = Tensor::like(x);
        BRINE_CALL(phi, softmax_features, phi, x, 1e-4, on(s.visible()), keys, s.m);
        BRINE_CALL(phi, softmax_features_backward, dprojected, dx, dphi, phi, x, 1e-4, s.visible(),
                   s.m);
        for (const Tensor& y : {phi, dprojected}) {
          CHECK(all_zero(y.to(kCpu).slice(3, s.m, more)));
        }
        return std::vector{phi, dprojected, dx};
      });
    }
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
