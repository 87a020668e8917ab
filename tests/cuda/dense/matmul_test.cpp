// Products of matrices and linear layers on the device, as on the CPU.
#include "tensor/cuda/core/blas.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: matrix products of every transpose, size and scale") {
  compare_all(table::matmul_sizes());
}

TEST_CASE("cuda: batches of matrix products") { compare_all(table::matmul_batches()); }

TEST_CASE("cuda: products of bf16 and f16, also with each other and with f32") {
  compare_all(table::matmul_halves());
}

TEST_CASE("cuda: linear layers in 16 bits") {
  for (Dtype half : {Dtype::bf16, Dtype::f16}) {
    compare(join("linear ", half), 2e-5, [&](const On& on) {
      Tensor x = on(normal({9, 21}, 1).to(half)), w = on(normal({7, 21}, 2).to(half));
      Tensor b = on(normal({7}, 3)), y = Tensor::empty({9, 7}, Dtype::f32, x.device());
      BRINE_CALL(x, linear, y, x, w, b);
      return std::vector{y};
    });
  }
}

TEST_CASE("cuda: TF32 only when it is requested, and only in f32") {
  if (!has_device()) return;
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    const Tensor a = normal({64, 48}, 1, dtype), b = normal({48, 40}, 2, dtype);
    Tensor wanted = Tensor::empty({64, 40}, dtype);
    BRINE_CALL(wanted, matmul, wanted, a, b, false, false, 1, 0);
    auto product = [&](bool tf32) {
      Tensor y = Tensor::empty({64, 40}, dtype, kCuda);
      cuda::set_tf32(tf32);
      cuda::matmul(y, a.to(kCuda), b.to(kCuda), false, false, 1, 0);
      cuda::set_tf32(false);
      return y.to(kCpu);
    };
    const Tensor before = product(false), fast = product(true), after = product(false);
    check_close("f32", wanted, before, 2e-6);
    check_close("tf32", wanted, fast, 2e-3);
    CHECK(same_bits(before, after));
    // A real library may find nothing faster than f32 for some sizes.
    if (cuda::emulated()) CHECK(same_bits(before, fast) == (dtype == Dtype::f64));
  }
}
