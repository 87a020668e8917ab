// Softmax over the visible keys against the definition in double.
#include "tensor/kernels/dense.h"
#include "tests/gradcheck.h"

using namespace brine;
using namespace brine::test;

namespace {

// The number of keys that row t sees, as an independent definition.
int64_t visible_keys(int64_t t, int64_t S, bool causal, int64_t length) {
  if (length >= 0 && t >= length) return 0;
  if (causal) return std::min(t + 1, S);
  return length >= 0 ? length : S;
}

std::vector<double> softmax_oracle(const Tensor& x, double scale, bool causal,
                                   const std::vector<int64_t>& lengths) {
  const int64_t H = x.dim(1), T = x.dim(2), S = x.dim(3);
  const auto v = x.to_vector();
  std::vector<double> y(v.size(), 0.0);
  for (int64_t r = 0; r < x.rows(); ++r) {
    const int64_t length = lengths.empty() ? -1 : lengths[size_t(r / (H * T))];
    const int64_t w = visible_keys(r % T, S, causal, length);
    double top = -1e300, sum = 0;
    for (int64_t j = 0; j < w; ++j) top = std::max(top, scale * v[size_t(r * S + j)]);
    for (int64_t j = 0; j < w; ++j) sum += std::exp(scale * v[size_t(r * S + j)] - top);
    for (int64_t j = 0; j < w; ++j) {
      y[size_t(r * S + j)] = std::exp(scale * v[size_t(r * S + j)] - top) / sum;
    }
  }
  return y;
}

}  // namespace

TEST_CASE("softmax over the visible keys; the rest is zero, whatever the scores there") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    for (int64_t T : {1, 2, 3, 31, 32, 33, 63, 100, 257}) {
      for (bool causal : {true, false}) {
        for (const auto& lengths :
             std::vector<std::vector<int64_t>>{{}, {T, 0}, {(T + 1) / 2, T}}) {
          Tensor x = normal({2, 2, T, T}, 1, dtype, 5, 4);
          const auto expected = softmax_oracle(x, 0.7, causal, lengths);
          for (size_t i = 0; i < expected.size(); ++i) {
            const int64_t r = int64_t(i) / T, length = lengths.empty() ? -1 : lengths[r / (2 * T)];
            if (int64_t(i) % T < visible_keys(r % T, T, causal, length)) continue;
            dispatch_float(dtype, [&]<class F>() { x.data<F>()[i] = F(NAN); });
          }
          Tensor y = Tensor::like(x);
          const Visibility visible{.causal = causal, .lengths = lengths_of(lengths)};
          BRINE_CALL(x, softmax, y, x, 0.7, visible);
          CHECK(close(y.to_vector(), expected, 0, dtype == Dtype::f32 ? 3e-6 : 1e-13, "softmax"));
          Threads one(1);
          Tensor z = Tensor::like(x);
          BRINE_CALL(x, softmax, z, x, 0.7, visible);
          CHECK(same_bits(y, z));
        }
      }
    }
  }
}

TEST_CASE("softmax of ties, huge scores, another scale's sign, more keys than rows") {
  const Visibility all{.causal = false, .lengths = {}};
  Tensor ties = Tensor::full({1, 1, 2, 33}, 1e30), y = Tensor::like(ties);
  BRINE_CALL(y, softmax, y, ties, 1.0, all);
  CHECK(close(y.to_vector(), std::vector<double>(66, 1.0 / 33), 0, 1e-6));
  Tensor wide = normal({1, 2, 3, 100}, 2, Dtype::f32, 0, 3000);
  for (double scale : {1.0, -1.0, 1e-3}) {
    Tensor z = Tensor::like(wide);
    BRINE_CALL(z, softmax, z, wide, scale, all);
    CHECK(close(z.to_vector(), softmax_oracle(wide, scale, false, {}), 1e-30, 1e-3));
  }
}

TEST_CASE("a visible NaN spoils its row and no other; minus infinity weighs nothing") {
  const Visibility all{.causal = false, .lengths = {}};
  Tensor x = normal({1, 1, 3, 40}, 3), y = Tensor::like(x);
  x.data<float>()[41] = NAN;
  x.data<float>()[5] = -INFINITY;
  BRINE_CALL(y, softmax, y, x, 1.0, all);
  const auto v = y.to_vector();
  for (size_t i = 0; i < v.size(); ++i) CHECK(std::isnan(v[i]) == (i / 40 == 1));
  CHECK(v[5] == 0);
}
