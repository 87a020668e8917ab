// LayerNorm and RMSNorm of sums, of constant rows and of NaN; their values and gradients are proved
// by tests/autograd/ops_test.cpp.
#include "tensor/kernels/dense.h"
#include "tests/gradcheck.h"

using namespace brine;
using namespace brine::test;

namespace {

struct Outputs {
  Tensor y, mean, rstd, dx, dw, db;
};

Outputs run_kernels(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& dy,
                    double eps) {
  Outputs o;
  o.y = Tensor::like(x);
  o.mean = Tensor::empty({x.dim(0)}, x.dtype());
  o.rstd = Tensor::like(o.mean);
  o.dx = Tensor::like(x);
  o.dw = Tensor::zeros_like(w);
  o.db = Tensor::zeros_like(w);
  BRINE_CALL(x, layernorm, o.y, {}, o.mean, o.rstd, x, {}, w, b, eps);
  BRINE_CALL(x, layernorm_backward, o.dx, o.dw, o.db, dy, {}, x, w, o.mean, o.rstd);
  return o;
}

Outputs run_rmsnorm(const Tensor& x, const Tensor& w, const Tensor& dy, double eps) {
  Outputs o;
  o.y = Tensor::like(x);
  o.rstd = Tensor::empty({x.dim(0)}, x.dtype());
  o.dx = Tensor::like(x);
  o.dw = Tensor::zeros_like(w);
  BRINE_CALL(x, rmsnorm, o.y, {}, o.rstd, x, {}, w, eps);
  BRINE_CALL(x, rmsnorm_backward, o.dx, o.dw, dy, {}, x, w, o.rstd);
  return o;
}

}  // namespace

TEST_CASE("layernorm of a sum has the bits of add() and layernorm") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    // The last size is written with non-temporal stores.
    for (const Shape& shape : {Shape{1, 1}, {3, 33}, {130, 40}, {5, 2100}, {4200, 2048}}) {
      if (dtype == Dtype::f64 && shape[0] == 4200) continue;
      INFO(shape << " " << name_of(dtype));
      const Shape channels{shape[1]};
      Tensor a = normal(shape, 1, dtype), r = normal(shape, 2, dtype), total = Tensor::like(a);
      Tensor w = normal(channels, 3, dtype), b = normal(channels, 4, dtype);
      BRINE_CALL(a, add, total, a, r);
      const Outputs o = run_kernels(total, w, b, r, 1e-5);
      Tensor y = Tensor::like(a), sum = Tensor::like(a), mean = Tensor::like(o.mean);
      Tensor rstd = Tensor::like(o.rstd);
      for (int n : {1, 3}) {
        Threads set(n);
        BRINE_CALL(a, layernorm, y, sum, mean, rstd, a, r, w, b, 1e-5);
        CHECK(same_bits(sum, total));
        CHECK(same_bits(y, o.y));
        CHECK(same_bits(mean, o.mean));
        CHECK(same_bits(rstd, o.rstd));
      }
    }
  }
}

namespace {

// Calls backward(dx, more) and compares with dx + more, bit for bit.
template <class F>
void check_more(const Tensor& dx, F backward) {
  const Tensor more = normal(dx.shape(), 8, dx.dtype());
  Tensor wanted = Tensor::like(dx), got = Tensor::like(dx);
  BRINE_CALL(dx, add, wanted, dx, more);
  backward(got, more);
  CHECK(same_bits(got, wanted));
}

}  // namespace

TEST_CASE("the backward passes of norms add what they are given, as add() does") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    for (const Shape& shape : {Shape{1, 5}, {130, 33}}) {
      const Shape channels{shape[1]};
      Tensor x = normal(shape, 1, dtype), w = normal(channels, 2, dtype), none;
      Tensor b = normal(channels, 3, dtype), dy = normal(shape, 4, dtype);
      const Outputs o = run_kernels(x, w, b, dy, 1e-5), rms = run_rmsnorm(x, w, dy, 1e-6);
      check_more(o.dx, [&](Tensor dx, Tensor more) {
        BRINE_CALL(x, layernorm_backward, dx, none, none, dy, more, x, w, o.mean, o.rstd);
      });
      check_more(rms.dx, [&](Tensor dx, Tensor more) {
        BRINE_CALL(x, rmsnorm_backward, dx, none, dy, more, x, w, rms.rstd);
      });
    }
  }
}

TEST_CASE("rmsnorm of a sum has the bits of add() and rmsnorm") {
  for (const Shape& shape : {Shape{1, 1}, {130, 40}, {5, 2100}, {4200, 2048}}) {
    INFO(shape);
    Tensor a = normal(shape, 1), r = normal(shape, 2), total = Tensor::like(a);
    Tensor w = normal({shape[1]}, 3), y = Tensor::like(a), sum = Tensor::like(a);
    BRINE_CALL(a, add, total, a, r);
    const Outputs o = run_rmsnorm(total, w, r, 1e-6);
    Tensor rstd = Tensor::like(o.rstd);
    BRINE_CALL(a, rmsnorm, y, sum, rstd, a, r, w, 1e-6);
    CHECK(same_bits(sum, total));
    CHECK(same_bits(y, o.y));
    CHECK(same_bits(rstd, o.rstd));
  }
}

TEST_CASE("layernorm of constant rows is the bias") {
  for (double value : {0.0, 3.0, 1e6}) {
    Tensor x = Tensor::full({2, 33}, value), w = normal({33}, 1), b = normal({33}, 2);
    const Outputs o = run_kernels(x, w, b, normal({2, 33}, 3), 1e-5);
    CHECK(close(o.y.select(0, 1).to_vector(), b.to_vector(), 1e-6, 0));
    CHECK(std::isfinite(largest(o.dx.to_vector())));
  }
}

TEST_CASE("layernorm keeps NaN in its row") {
  Tensor x = normal({3, 40}, 1);
  x.data<float>()[45] = NAN;
  const Outputs o = run_kernels(x, normal({40}, 2), normal({40}, 3), normal({3, 40}, 4), 1e-5);
  const auto y = o.y.to_vector();
  for (size_t i = 0; i < y.size(); ++i) CHECK(std::isnan(y[i]) == (i / 40 == 1));
}

TEST_CASE("layernorm_backward adds to dw and db and gives only the requested gradients") {
  Tensor x = normal({200, 33}, 1), w = normal({33}, 2), b = normal({33}, 3),
         dy = normal({200, 33}, 4);
  const Outputs o = run_kernels(x, w, b, dy, 1e-5);
  Tensor dw = Tensor::full({33}, 10), none;
  BRINE_CALL(x, layernorm_backward, none, dw, none, dy, {}, x, w, o.mean, o.rstd);
  for (size_t c = 0; c < 33; ++c) {
    CHECK(dw.to_vector()[c] == doctest::Approx(o.dw.to_vector()[c] + 10).epsilon(1e-5));
  }
  Tensor dx = Tensor::like(x);
  BRINE_CALL(x, layernorm_backward, dx, none, none, dy, {}, x, w, o.mean, o.rstd);
  CHECK(same_bits(dx, o.dx));
}

TEST_CASE("rmsnorm of zeros is zero; NaN stays in its row") {
  Tensor x = Tensor::zeros({3, 40}), w = normal({40}, 2), dy = normal({3, 40}, 4);
  Outputs o = run_rmsnorm(x, w, dy, 1e-6);
  CHECK(largest(o.y.to_vector()) == 0);
  const auto vw = w.to_vector(), vdy = dy.to_vector(), dx = o.dx.to_vector();
  for (size_t i = 0; i < dx.size(); ++i) {  // the root of eps is 1e-3
    CHECK(dx[i] == doctest::Approx(1e3 * vdy[i] * vw[i % 40]).epsilon(1e-5));
  }
  x.data<float>()[45] = NAN;
  o = run_rmsnorm(x, w, dy, 1e-6);
  const auto y = o.y.to_vector();
  for (size_t i = 0; i < y.size(); ++i) CHECK(std::isnan(y[i]) == (i / 40 == 1));
}

TEST_CASE("rmsnorm_backward adds to dw and gives only the requested gradients") {
  Tensor x = normal({200, 33}, 1), w = normal({33}, 2), dy = normal({200, 33}, 4);
  const Outputs o = run_rmsnorm(x, w, dy, 1e-6);
  Tensor dw = Tensor::full({33}, 10), dx = Tensor::like(x), none;
  BRINE_CALL(x, rmsnorm_backward, none, dw, dy, {}, x, w, o.rstd);
  for (size_t c = 0; c < 33; ++c) {
    CHECK(dw.to_vector()[c] == doctest::Approx(o.dw.to_vector()[c] + 10).epsilon(1e-5));
  }
  BRINE_CALL(x, rmsnorm_backward, dx, none, dy, {}, x, w, o.rstd);
  CHECK(same_bits(dx, o.dx));
}
