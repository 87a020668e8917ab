// AdamW against the paper's algorithm in double.
#include "tensor/kernels/dense.h"
#include "tests/gradcheck.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("adamw follows the paper for several steps") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    for (int64_t n : {1, 3, 33, 257, 40001}) {
      Tensor w = normal({n}, 1, dtype), m = Tensor::zeros({n}, dtype),
             v = Tensor::zeros({n}, dtype);
      std::vector<double> ew = w.to_vector(), em(ew.size(), 0.0), ev(ew.size(), 0.0);
      for (int64_t step = 1; step <= 4; ++step) {
        Tensor g = normal({n}, 10 + uint64_t(step), dtype, 0, step == 3 ? 1e-6 : 2);
        const AdamwStep a{.learning_rate = 0.01 * double(step),
                          .beta1 = 0.9,
                          .beta2 = 0.98,
                          .eps = 1e-6,
                          .weight_decay = 0.1,
                          .grad_scale = 0.5,
                          .step = step};
        BRINE_CALL(w, adamw, w, m, v, g, a);
        const auto vg = g.to_vector();
        for (size_t i = 0; i < ew.size(); ++i) {
          const double gradient = 0.5 * vg[i];
          em[i] = 0.9 * em[i] + 0.1 * gradient;
          ev[i] = 0.98 * ev[i] + 0.02 * gradient * gradient;
          const double mean = em[i] / (1 - std::pow(0.9, double(step)));
          const double square = ev[i] / (1 - std::pow(0.98, double(step)));
          ew[i] -= a.learning_rate * (mean / (std::sqrt(square) + 1e-6) + 0.1 * ew[i]);
        }
      }
      const double t = dtype == Dtype::f32 ? 1e-6 : 1e-14;
      CHECK(close(w.to_vector(), ew, t, t, "w"));
      CHECK(close(m.to_vector(), em, t, t, "m"));
      CHECK(close(v.to_vector(), ev, t, t, "v"));
    }
  }
}

TEST_CASE("adamw of a zero gradient only decays; a NaN gradient is not hidden") {
  Tensor w = Tensor::full({5}, 2), m = Tensor::zeros({5}), v = Tensor::zeros({5});
  Tensor g = Tensor::zeros({5});
  g.data<float>()[4] = NAN;
  BRINE_CALL(w, adamw, w, m, v, g, {.learning_rate = 0.5, .weight_decay = 0.1});
  for (size_t i = 0; i < 4; ++i) CHECK(w.to_vector()[i] == doctest::Approx(1.9));
  CHECK(std::isnan(w.to_vector()[4]));
}
