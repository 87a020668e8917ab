// LayerNorm and RMSNorm of sums, of constant rows and of NaN; their values and gradients are proved
// by tests/autograd/ops_test.cpp.
#include "tensor/kernels/dense.h"
#include "tests/gradcheck.h"

using namespace brine;
using namespace brine::test;

namespace {

enum class Norm { layer, rms };
constexpr Norm kNorms[] = {Norm::layer, Norm::rms};

struct Outputs {
  Tensor y, sum, mean, rstd, dx, dw, db;  // without mean and db of RMSNorm
};

struct Inputs {
  Norm norm;
  Tensor x, w, b, dy;
  double eps = 1e-5;

  Inputs(Norm norm, const Shape& shape, Dtype dtype = Dtype::f32)
      : norm(norm),
        x(normal(shape, 1, dtype)),
        w(normal({shape[1]}, 2, dtype)),
        b(normal({shape[1]}, 3, dtype)),
        dy(normal(shape, 4, dtype)) {}

  // Of x plus a residual, where that is given.
  Outputs forward(const Tensor& residual = {}) const {
    Outputs o;
    o.y = Tensor::like(x);
    o.rstd = Tensor::empty({x.dim(0)}, x.dtype());
    if (residual.defined()) o.sum = Tensor::like(x);
    if (norm == Norm::layer) o.mean = Tensor::like(o.rstd);
    BRINE_CALL(x, norm, o.y, o.sum, o.mean, o.rstd, x, residual, w,
               norm == Norm::layer ? b : Tensor(), eps);
    return o;
  }
  // Into the gradients that are given, dx with `more` added.
  void backward(const Outputs& o, const Tensor& dx, const Tensor& dw, const Tensor& db,
                const Tensor& more = {}) const {
    BRINE_CALL(x, norm_backward, dx, dw, db, dy, more, x, w, o.mean, o.rstd);
  }
  Outputs both() const {
    Outputs o = forward();
    o.dx = Tensor::like(x);
    o.dw = Tensor::zeros_like(w);
    o.db = norm == Norm::layer ? Tensor::zeros_like(w) : Tensor();
    backward(o, o.dx, o.dw, o.db);
    return o;
  }
};

}  // namespace

TEST_CASE("a norm of a sum has the bits of add() and the norm") {
  for (Norm norm : kNorms) {
    for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
      // The last size is written with non-temporal stores.
      for (const Shape& shape : {Shape{1, 1}, {3, 33}, {130, 40}, {5, 2100}, {4200, 2048}}) {
        if (dtype == Dtype::f64 && shape[0] == 4200) continue;
        INFO(int(norm) << " " << shape << " " << name_of(dtype));
        const Inputs in(norm, shape, dtype);
        const Tensor residual = normal(shape, 5, dtype);
        Inputs total = in;
        total.x = Tensor::like(in.x);
        BRINE_CALL(in.x, add, total.x, in.x, residual);
        const Outputs wanted = total.forward();
        for (int n : {1, 3}) {
          Threads set(n);
          const Outputs got = in.forward(residual);
          CHECK(same_bits(got.sum, total.x));
          CHECK(same_bits(got.y, wanted.y));
          CHECK(same_bits(got.rstd, wanted.rstd));
          if (norm == Norm::layer) CHECK(same_bits(got.mean, wanted.mean));
        }
      }
    }
  }
}

TEST_CASE("the backward passes of norms add what they are given, as add() does") {
  for (Norm norm : kNorms) {
    for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
      for (const Shape& shape : {Shape{1, 5}, {130, 33}}) {
        const Inputs in(norm, shape, dtype);
        const Outputs o = in.both();
        const Tensor more = normal(shape, 8, dtype);
        Tensor wanted = Tensor::like(more), got = Tensor::like(more);
        BRINE_CALL(wanted, add, wanted, o.dx, more);
        in.backward(o, got, {}, {}, more);
        CHECK(same_bits(got, wanted));
      }
    }
  }
}

TEST_CASE("layernorm of constant rows is the bias; rmsnorm of zeros is zero") {
  for (double value : {0.0, 3.0, 1e6}) {
    Inputs in(Norm::layer, {2, 33});
    in.x = Tensor::full({2, 33}, value);
    const Outputs o = in.both();
    CHECK(close(o.y.select(0, 1).to_vector(), in.b.to_vector(), 1e-6, 0));
    CHECK(std::isfinite(largest(o.dx.to_vector())));
  }
  Inputs in(Norm::rms, {3, 40});
  in.x = Tensor::zeros({3, 40});
  in.eps = 1e-6;
  const Outputs o = in.both();
  CHECK(largest(o.y.to_vector()) == 0);
  const auto w = in.w.to_vector(), dy = in.dy.to_vector(), dx = o.dx.to_vector();
  for (size_t i = 0; i < dx.size(); ++i) {  // the root of eps is 1e-3
    CHECK(dx[i] == doctest::Approx(1e3 * dy[i] * w[i % 40]).epsilon(1e-5));
  }
}

TEST_CASE("norms keep NaN in its row") {
  for (Norm norm : kNorms) {
    const Inputs in(norm, {3, 40});
    in.x.data<float>()[45] = NAN;
    const auto y = in.forward().y.to_vector();
    for (size_t i = 0; i < y.size(); ++i) CHECK(std::isnan(y[i]) == (i / 40 == 1));
  }
}

TEST_CASE("the backward passes of norms add to dw and give only the requested gradients") {
  for (Norm norm : kNorms) {
    const Inputs in(norm, {200, 33});
    const Outputs o = in.both();
    Tensor dw = Tensor::full({33}, 10), dx = Tensor::like(in.x);
    in.backward(o, {}, dw, {});
    for (size_t c = 0; c < 33; ++c) {
      CHECK(dw.to_vector()[c] == doctest::Approx(o.dw.to_vector()[c] + 10).epsilon(1e-5));
    }
    in.backward(o, dx, {}, {});
    CHECK(same_bits(dx, o.dx));
  }
}
