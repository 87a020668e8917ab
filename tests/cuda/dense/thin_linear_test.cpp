// Linear layers of few rows on the device: their values, as on the CPU, and their bits.
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: thin_linear, with a bias, weights cut out of more, and few rows") {
  compare_all(table::thin_linear_cases());
}

TEST_CASE("cuda: a row of a thin product has the same bits among any others") {
  if (!has_device()) return;
  for (int64_t I : {64, 130}) {
    const Tensor x = normal({20, I}, 1), w = normal({37, I}, 2).to(kCuda);
    const Tensor b = normal({37}, 3).to(kCuda);
    auto rows = [&](int64_t start, int64_t n) {
      Tensor y = Tensor::empty({n, 37}, Dtype::f32, kCuda);
      cuda::thin_linear(y, x.slice(0, start, n).clone().to(kCuda), w, b);
      return y.to(kCpu);
    };
    const Tensor all = rows(0, 20);
    for (auto [start, n] : {std::pair{0, 1}, {7, 1}, {5, 2}, {3, 4}, {11, 5}, {4, 16}}) {
      CHECK(same_bits(rows(start, n), all.slice(0, start, n)));
    }
  }
}

TEST_CASE("cuda: thin_linear of weights in 16 bits has the bits of the same values in f32") {
  if (!has_device()) return;
  for (Dtype stored : {Dtype::bf16, Dtype::f16}) {
    for (int64_t I : {3, 64, 130}) {
      const Tensor x = normal({9, I}, 1).to(kCuda), w = normal({37, I}, 2).to(stored).to(kCuda);
      auto product = [&](const Tensor& weights) {
        Tensor y = Tensor::empty({9, 37}, Dtype::f32, kCuda);
        cuda::thin_linear(y, x, weights, Tensor());
        return y.to(kCpu);
      };
      CHECK(same_bits(product(w), product(w.to(Dtype::f32))));
    }
  }
}
