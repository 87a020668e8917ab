// The table of dense ops on the device, forward and backward, as on the CPU.
#include "tests/ops/op_table.h"

#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

void compare_all(const std::vector<OpCase>& cases) {
  for (const OpCase& c : cases) {
    compare_both(c.name,
                 [&](const On& on, Dtype dtype) {
                   std::vector<Tensor> leaves, results;
                   for (const Tensor& x : to_dtype(c.inputs, dtype)) {
                     leaves.push_back(differentiable(x) ? require_grad(on(x)) : on(x));
                   }
                   const Tensor y = c.f(leaves);
                   backward(y, on(cotangent(y)));
                   results.push_back(y.detach());
                   for (const Tensor& x : leaves)
                     results.push_back(x.node() && has_grad(x) ? grad(x) : Tensor());
                   return results;
                 },
                 {std::max(2e-5, c.tolerance), 1e-11});
  }
}

}  // namespace

TEST_CASE("cuda: ops on rows, of the table") { compare_all(table::all_rows()); }

TEST_CASE("cuda: ops on shapes, of the table") { compare_all(table::shape_cases()); }

TEST_CASE("cuda: elementwise ops, of the table") { compare_all(table::all_elementwise()); }

TEST_CASE("cuda: sums, of the table") { compare_all(table::all_sums()); }

TEST_CASE("cuda: losses, of the table") { compare_all(table::all_losses()); }
