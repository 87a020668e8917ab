// Running means against sums in f64, whole and one row at a time.
#include "tensor/kernels/dense.h"
#include "tests/steady.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("running_mean and its backward") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    const double tolerance = dtype == Dtype::f32 ? 1e-6 : 1e-13;
    for (int64_t T : {1, 2, 33, 257}) {
      for (int64_t C : {1, 3, 64, 100}) {
        const int64_t R = 3;
        Tensor x = normal({R, T, C}, 8, dtype, 1e3), dy = normal({R, T, C}, 9, dtype);
        const auto v = x.to_vector(), g = dy.to_vector();
        std::vector<double> mean(v.size()), dx(v.size());
        for (int64_t r = 0; r < R; ++r) {
          for (int64_t c = 0; c < C; ++c) {
            double sum = 0;
            for (int64_t t = 0; t < T; ++t) {
              const size_t i = size_t((r * T + t) * C + c);
              sum += v[i];
              mean[i] = sum / double(t + 1);
              for (int64_t s = 0; s <= t; ++s) {
                dx[size_t((r * T + s) * C + c)] += g[i] / double(t + 1);
              }
            }
          }
        }
        Tensor y = steady([&] {
          Tensor out = Tensor::like(x);
          BRINE_CALL(out, running_mean, out, x);
          return out;
        });
        CHECK(close(y.to_vector(), mean, 0, tolerance, "running_mean"));
        Tensor back = steady([&] {
          Tensor out = Tensor::like(x);
          BRINE_CALL(out, running_mean_backward, out, dy);
          return out;
        });
        CHECK(close(back.to_vector(), dx, tolerance, tolerance, "running_mean_backward"));
      }
    }
  }
}

TEST_CASE("running_mean_step gives the means of the rows so far, of each sequence by its count") {
  const int64_t B = 2, H = 3, T = 40, d = 5;
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    const double tolerance = dtype == Dtype::f32 ? 1e-6 : 1e-13;
    Tensor x = normal({B, H, T, d}, 1, dtype, 3);
    const std::vector<double> v = x.to_vector();
    // The second sequence begins with seven rows.
    std::vector<double> start(size_t(B * H * d), 0.0);
    for (int64_t n = H; n < B * H; ++n) {
      for (int64_t i = 0; i < 7 * d; ++i) start[size_t(n * d + i % d)] += v[size_t(n * T * d + i)];
    }
    Tensor sums = Tensor::from(start, {B, H, d}), row = Tensor::empty({B, H, 1, d}, dtype);
    std::vector<double> mean = start;
    for (int64_t step = 0; step < T - 7; ++step) {
      const std::vector<int64_t> counts = {step + 1, step + 8};
      for (int64_t b = 0; b < B; ++b) {
        assign(row.slice(0, b, 1), x.slice(0, b, 1).slice(2, counts[size_t(b)] - 1, 1));
      }
      const std::vector<double> values = row.to_vector();
      std::vector<double> expected(values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        mean[i] += values[i];
        expected[i] = mean[i] / double(counts[i / size_t(H * d)]);
      }
      Tensor y = Tensor::like(row);
      BRINE_CALL(y, running_mean_step, y, sums, row, Tensor::from(counts, {B}));
      CHECK(close(y.to_vector(), expected, 0, tolerance, "running_mean_step"));
    }
  }
}
