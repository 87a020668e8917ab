// The kernels of tests/ops/kernel_table.h on the device, as on the CPU.
#include "tests/ops/kernel_table.h"

#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

void compare_all(const std::vector<table::KernelCase>& cases) {
  for (const table::KernelCase& c : cases) {
    for (Dtype type : c.types) {
      const SmallDevice small(type);
      compare(join(c.name, " ", type), Tolerance{}.of(type), [&](const On& on) {
        std::vector<Tensor> x = to_dtype(c.inputs, type);
        for (Tensor& input : x) input = on(input);
        return c.run(x);
      });
    }
  }
}

}  // namespace

TEST_CASE("cuda: sums of all elements and of columns, and counts of what is not finite") {
  compare_all(table::reduce_cases());
}

TEST_CASE("cuda: more elements than a piece each for all blocks") {
  const int64_t n = 1024 * 8192 + 5;
  compare("sum_all", 0, [&](const On& on) {
    Tensor x = on(ids({n}, 1, 7, Dtype::f32)), y = Tensor::empty({1}, Dtype::f32, x.device());
    BRINE_CALL(x, sum_all, y, x);
    return std::vector{y};
  });
}

TEST_CASE("cuda: adamw over several steps") { compare_all(table::adamw_cases()); }

TEST_CASE("cuda: matrix products of every transpose, size and scale") {
  compare_all(table::matmul_sizes());
}

TEST_CASE("cuda: batches of matrix products") { compare_all(table::matmul_batches()); }

TEST_CASE("cuda: products of bf16 and f16, also with each other and with f32") {
  compare_all(table::matmul_halves());
}

TEST_CASE("cuda: thin_linear, with a bias, weights cut out of more, and few rows") {
  compare_all(table::thin_linear_cases());
}

TEST_CASE("cuda: log_sum_exp") { compare_all(table::log_sum_exp_cases()); }
