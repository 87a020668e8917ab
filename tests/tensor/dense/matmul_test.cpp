// Products against a naive f64 sum: sizes around every edge, strides, transposes, alpha and beta.
#include <cmath>
#include <limits>

#include "tensor/cpu/core/onednn.h"
#include "tensor/kernels/dense.h"
#include "tests/gradcheck.h"

using namespace brine;
using namespace brine::test;

namespace {

struct ExpectedProduct {
  std::vector<double> y, bound;  // bound: sum |a| |b|, what rounding errors are measured against
};

// y [n, M, N] = alpha op(a) op(b) + beta y0; a and b [n or 1, ., .].
ExpectedProduct naive(const Tensor& a, const Tensor& b, bool ta, bool tb, double alpha, double beta,
                      const Tensor& y0) {
  int64_t n = y0.dim(0), M = y0.dim(1), N = y0.dim(2), K = ta ? a.dim(1) : a.dim(2);
  std::vector<double> x = a.to_vector(), w = b.to_vector(), old = y0.to_vector();
  ExpectedProduct e;
  for (int64_t s = 0; s < n; ++s) {
    const double* xs = x.data() + (a.dim(0) == 1 ? 0 : s * M * K);
    const double* ws = w.data() + (b.dim(0) == 1 ? 0 : s * K * N);
    for (int64_t i = 0; i < M; ++i) {
      for (int64_t j = 0; j < N; ++j) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < K; ++k) {
          double p = (ta ? xs[k * M + i] : xs[i * K + k]) * (tb ? ws[j * K + k] : ws[k * N + j]);
          sum += p;
          size += std::abs(p);
        }
        double before = beta == 0 ? 0 : beta * old[size_t((s * M + i) * N + j)];
        e.y.push_back(alpha * sum + before);
        e.bound.push_back(std::abs(alpha) * size + std::abs(before));
      }
    }
  }
  return e;
}

void check_near(const Tensor& y, const ExpectedProduct& e, double eps) {
  std::vector<double> got = y.to_vector();
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    double error = std::abs(got[i] - e.y[i]) / (e.bound[i] + 1e-300);
    worst = std::isnan(got[i]) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  }
  CHECK(worst < eps);
}

double eps_of(Dtype t) { return t == Dtype::f64 ? 1e-14 : 2e-6; }

void check_product(int64_t n, int64_t M, int64_t N, int64_t K, bool ta, bool tb, double alpha,
                   double beta, Dtype dtype) {
  INFO(join(n, " x ", M, " ", N, " ", K, ta ? " T" : " N", tb ? "T " : "N ", dtype));
  Tensor a = normal(ta ? Shape{n, K, M} : Shape{n, M, K}, 1, dtype);
  Tensor b = normal(tb ? Shape{n, N, K} : Shape{n, K, N}, 2, dtype);
  Tensor y = normal({n, M, N}, 3, dtype);
  if (beta == 0) y = Tensor::full({n, M, N}, std::nan(""), dtype);
  ExpectedProduct e = naive(a, b, ta, tb, alpha, beta, y);
  Tensor start = y.clone();
  cpu::matmul(y, a, b, ta, tb, alpha, beta);
  check_near(y, e, eps_of(dtype));
  for (int t : {1, 2, 3}) {
    test::Threads set(t);
    Tensor again = start.clone();
    cpu::matmul(again, a, b, ta, tb, alpha, beta);
    CHECK_MESSAGE(test::same_bits(again, y), t << " threads change the bits");
  }
}

}  // namespace

TEST_CASE("matmul equals the naive sum at odd sizes") {
  const int64_t sizes[] = {1, 2, 3, 31, 32, 33, 63, 100, 257};
  int turn = 0;
  for (int64_t M : sizes) {
    for (int64_t N : sizes) {
      for (int64_t K : {sizes[turn % 9], sizes[(turn * 5 + 3) % 9]}) {
        bool ta = turn & 1, tb = turn & 2;
        check_product(1 + turn % 2, M, N, K, ta, tb, turn % 3 ? 1.0 : 0.7, turn % 5 ? 0.0 : 1.0,
                      turn % 4 ? Dtype::f32 : Dtype::f64);
        ++turn;
      }
    }
  }
}

TEST_CASE("matmul in every transposition, alpha and beta") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    for (bool ta : {false, true}) {
      for (bool tb : {false, true}) {
        for (double beta : {0.0, 1.0, -0.5})
          check_product(2, 33, 65, 31, ta, tb, 0.25, beta, dtype);
      }
    }
  }
}

TEST_CASE("matmul cut into tiles and runs of K keeps its bits on any number of threads") {
  check_product(1, 48, 24, 9001, true, false, 1, 1, Dtype::f32);
  check_product(1, 63, 257, 3001, true, false, 1, 0, Dtype::f32);
  check_product(1, 600, 560, 2100, true, false, 1, 1, Dtype::f32);
  check_product(1, 1300, 128, 192, false, true, 1, 0, Dtype::f32);
  check_product(1, 577, 1155, 64, false, false, 1, 0, Dtype::f32);
  check_product(1, 2, 128, 5003, true, false, 1, 1, Dtype::f32);
  check_product(1, 3001, 2, 128, false, true, 1, 0, Dtype::f32);
  check_product(1, 1, 769, 1023, false, true, 1, 0, Dtype::f32);
  check_product(24, 65, 65, 64, false, true, 0.125, 0, Dtype::f32);
  check_product(2, 1031, 33, 300, true, false, 0.5, 1, Dtype::f32);
}

TEST_CASE("matmul reads heads out of [B, T, H, d] and writes into them") {
  const int64_t B = 2, T = 37, H = 3, d = 16;
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    Tensor qkv = normal({B, T, 3, H, d}, 5, dtype);
    auto head = [&](int part) { return qkv.select(2, part).permute({0, 2, 1, 3}); };
    Tensor q = head(0), k = head(1), v = head(2);  // [B, H, T, d], strided
    Tensor s = Tensor::empty({B, H, T, T}, dtype);
    cpu::matmul(s, q, k, false, true, 0.25, 0);
    Tensor zero = Tensor::zeros({B * H, T, T}, dtype);
    auto flat = [](const Tensor& x) {
      return x.contiguous().view({x.dim(0) * x.dim(1), x.dim(2), x.dim(3)});
    };
    check_near(s, naive(flat(q), flat(k), false, true, 0.25, 0, zero), eps_of(dtype));
    Tensor out = Tensor::full({B, T, H, d}, 7, dtype);
    Tensor y = out.permute({0, 2, 1, 3});
    cpu::matmul(y, s, v, false, false, 1, 0);
    Tensor none = Tensor::zeros({B * H, T, d}, dtype);
    check_near(flat(y), naive(flat(s), flat(v), false, false, 1, 0, none), eps_of(dtype));
  }
}

TEST_CASE("matmul shares an operand of batch size 1 and takes transposed views") {
  Tensor a = normal({4, 33, 20}, 1), b = normal({1, 17, 20}, 2);
  Tensor y = Tensor::empty({4, 33, 17});
  ExpectedProduct e = naive(a, b, false, true, 1, 0, Tensor::zeros({4, 33, 17}));
  cpu::matmul(y, a, b, false, true, 1, 0);
  check_near(y, e, 2e-6);
  cpu::matmul(y, a, b.select(0, 0), false, true, 1, 0);
  check_near(y, e, 2e-6);
  cpu::matmul(y, a, b.transpose(1, 2), false, false, 1, 0);
  check_near(y, e, 2e-6);
  // A stride of two between columns: no leading dimension describes it.
  Tensor wide = normal({4, 33, 40}, 3);
  Tensor thin = wide.as_strided({4, 33, 20}, {33 * 40, 40, 2});
  cpu::matmul(y, thin, b, false, true, 1, 0);
  check_near(y, naive(thin.contiguous(), b, false, true, 1, 0, Tensor::zeros({4, 33, 17})), 2e-6);
}

TEST_CASE("matmul over an empty inner size scales y alone") {
  Tensor a = Tensor::empty({3, 0}), b = Tensor::empty({0, 4});
  Tensor y = Tensor::full({3, 4}, 2);
  cpu::matmul(y, a, b, false, false, 1, 0.5);
  CHECK(y.to_vector() == std::vector<double>(12, 1.0));
  cpu::matmul(y, a, b, false, false, 1, 0);
  CHECK(y.to_vector() == std::vector<double>(12, 0.0));
}

TEST_CASE("matmul takes bf16 and f16 and adds up in f32") {
  for (Dtype half : {Dtype::bf16, Dtype::f16}) {
    for (int64_t K : {31, 257, 3001}) {
      for (bool t : {false, true}) {
        INFO(half);
        Tensor a = normal(t ? Shape{2, K, 33} : Shape{2, 33, K}, 1, half);
        Tensor b = normal(t ? Shape{2, 20, K} : Shape{2, K, 20}, 2, half);
        Tensor y = normal({2, 33, 20}, 3);
        ExpectedProduct e = naive(a, b, t, t, 0.5, 1, y);
        cpu::matmul(y, a, b, t, t, 0.5, 1);
        check_near(y, e, 2e-6);
        Tensor mixed = Tensor::empty({2, 33, 20});
        cpu::matmul(mixed, a.to(Dtype::f32), b, t, t, 1, 0);
        check_near(mixed, naive(a, b, t, t, 1, 0, mixed), 2e-6);
      }
    }
  }
}

TEST_CASE("linear adds the bias and reads a weight that is strided in rows") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    for (int64_t R : {1, 33, 700}) {
      Tensor x = normal({1, R, 50}, 1, dtype), wide = normal({31, 80}, 2, dtype);
      Tensor w = wide.slice(1, 10, 50), b = normal({31}, 3, dtype);
      Tensor y = Tensor::empty({R, 31}, dtype), rows = Tensor::empty({1, R, 31}, dtype);
      for (int64_t r = 0; r < R; ++r) cpu::copy(rows.select(0, 0).select(0, r), b);
      cpu::linear(y, x.select(0, 0), w, b);
      Tensor w3 = w.contiguous().view({1, 31, 50});
      check_near(y, naive(x, w3, false, true, 1, 1, rows), eps_of(dtype));
      cpu::linear(y, x.select(0, 0), w, {});
      check_near(y, naive(x, w3, false, true, 1, 0, rows), eps_of(dtype));
    }
  }
}

TEST_CASE("linear_activation has the bits of linear and activation") {
  struct Case {
    int64_t R, O, I;
  };
  // Few rows; one tile; many tiles; long sums that are cut into runs; an empty sum.
  const Case cases[] = {{3, 31, 50}, {33, 17, 70}, {1300, 700, 64}, {40, 48, 9000}, {50, 7, 0}};
  for (const auto& [R, O, I] : cases) {
    for (Dtype type : {Dtype::f32, Dtype::f64, Dtype::bf16}) {
      const Dtype result = type == Dtype::f64 ? type : Dtype::f32;
      const Tensor x = normal({R, I}, 1, type), w = normal({O, I}, 2, type);
      const Tensor b = normal({O}, 3, result);
      for (const Tensor& bias : {b, Tensor()}) {
        for (Activation f :
             {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
          INFO(R << " " << O << " " << I << " " << name_of(type) << " " << int(f));
          Tensor sums = Tensor::empty({R, O}, result), wanted = Tensor::like(sums);
          Tensor y = Tensor::like(sums), before = Tensor::like(sums), alone = Tensor::like(sums);
          cpu::linear(sums, x, w, bias);
          cpu::activation(wanted, sums, f);
          Threads set(f == Activation::gelu ? 3 : 1);
          cpu::linear_activation(y, before, x, w, bias, f);
          CHECK(same_bits(y, wanted));
          CHECK(same_bits(before, sums));
          cpu::linear_activation(alone, {}, x, w, bias, f);
          CHECK(same_bits(alone, wanted));
        }
      }
    }
  }
}
