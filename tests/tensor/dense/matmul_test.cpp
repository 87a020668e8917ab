// Products of odd sizes and of many tiles, and linear layers; others are in
// tests/ops/kernel_table.h.
#include "tests/ops/kernel_table.h"

using namespace brine;
using namespace brine::test;

namespace {

void check_product(int64_t n, int64_t M, int64_t N, int64_t K, bool ta, bool tb, double alpha,
                   double beta, Dtype dtype) {
  const Shape a = ta ? Shape{n, K, M} : Shape{n, M, K}, b = tb ? Shape{n, N, K} : Shape{n, K, N};
  table::KernelCase c = table::matmul_case(
      join(n, " x ", M, " ", N, " ", K),
      {.y = {n, M, N}, .a = a, .b = b, .ta = ta, .tb = tb, .alpha = alpha, .beta = beta});
  c.types = {dtype};
  table::check_kernel(c);
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

TEST_CASE("linear adds the bias and reads a weight that is strided in rows") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    for (int64_t R : {1, 33, 700}) {
      Tensor x = normal({R, 50}, 1, dtype), wide = normal({31, 80}, 2, dtype);
      Tensor w = wide.slice(1, 10, 50), b = normal({31}, 3, dtype);
      Tensor y = Tensor::empty({R, 31}, dtype), rows = Tensor::empty({R, 31}, dtype);
      for (int64_t r = 0; r < R; ++r) cpu::copy(rows.select(0, r), b);
      const double eps = dtype == Dtype::f64 ? 1e-14 : 2e-6;
      cpu::linear(y, x, w, b);
      CHECK(table::within(y, table::product(rows, x, w, {.tb = true, .beta = 1}), eps));
      cpu::linear(y, x, w, {});
      CHECK(table::within(y, table::product(rows, x, w, {.tb = true}), eps));
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
