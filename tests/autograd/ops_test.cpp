// Every op on shapes, elements, rows and losses: one case each, from which check_op derives f64
// against the oracle, f32 against f64, the gradient check, single gradients and equal bits for 1, 2
// and 3 threads.
#include "tests/ops/op_table.h"

using namespace brine::test;

namespace {

void check_all(const std::vector<OpCase>& cases) {
  for (const OpCase& c : cases) {
    CHECK_MESSAGE(bool(c.oracle), c.name << " has no oracle");
    check_op(c);
  }
}

}  // namespace

TEST_CASE("ops on shapes") { check_all(table::shape_cases()); }

TEST_CASE("elementwise ops") { check_all(table::all_elementwise()); }

TEST_CASE("sums") { check_all(table::all_sums()); }

TEST_CASE("ops on rows") { check_all(table::all_rows()); }

TEST_CASE("losses") { check_all(table::all_losses()); }
