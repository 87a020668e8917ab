// Running means one row at a time against sums in f64.
#include "autograd/ops.h"
#include "tests/gradcheck.h"

using namespace brine;
using namespace brine::test;

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
      const Tensor y = running_mean_step(sums, row, Tensor::from(counts, {B}));
      CHECK(close(y.to_vector(), expected, 0, tolerance, "running_mean_step"));
    }
  }
}
