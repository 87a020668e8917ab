// The kernels of tests/ops/kernel_table.h against their oracles.
#include "tests/ops/kernel_table.h"

using namespace brine;
using namespace brine::test;

namespace {

void check_all(const std::vector<table::KernelCase>& cases) {
  for (const table::KernelCase& c : cases) table::check_kernel(c);
}

}  // namespace

TEST_CASE("sums of all elements and of columns, and counts of what is not finite") {
  check_all(table::reduce_cases());
}

TEST_CASE("adamw follows the paper for several steps") { check_all(table::adamw_cases()); }

TEST_CASE("adamw of a zero gradient only decays; a NaN gradient is not hidden") {
  Tensor w = Tensor::full({5}, 2), m = Tensor::zeros({5}), v = Tensor::zeros({5});
  Tensor g = Tensor::zeros({5});
  g.data<float>()[4] = NAN;
  BRINE_CALL(w, adamw, w, m, v, g, {.learning_rate = 0.5, .weight_decay = 0.1});
  for (size_t i = 0; i < 4; ++i) CHECK(w.to_vector()[i] == doctest::Approx(1.9));
  CHECK(std::isnan(w.to_vector()[4]));
}

TEST_CASE("matmul of every transpose, of views and of batches") {
  check_all(table::matmul_sizes());
  check_all(table::matmul_batches());
}

TEST_CASE("matmul takes bf16 and f16 and adds up in f32") { check_all(table::matmul_halves()); }

TEST_CASE("thin_linear: any number of rows and odd sizes, strided weights") {
  check_all(table::thin_linear_cases());
}

TEST_CASE("log_sum_exp of any width and size of values") { check_all(table::log_sum_exp_cases()); }
