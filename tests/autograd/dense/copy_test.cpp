// Rows by steps: which rows are taken and repeated, and the gradients.
#include "autograd/ops.h"
#include "tests/estimator_oracle.h"

namespace brine::test {

TEST_CASE("every_nth_row and repeat_rows undo each other on constant stretches") {
  for (int64_t step : {1, 2, 4, 9, 1 << 28}) {  // no memory for rows that are cut off
    check_op({.name = join("every_nth_row ", step),
              .inputs = {normal({2, 2, 7, 3}, 1)},
              .f = [=](In x) { return every_nth_row(x[0], step); },
              .oracle =
                  [=](In x) {
                    Values in = x[0].to_vector(), y;
                    for (int64_t r = 0; r < 28; ++r) {
                      if (r % 7 % step) continue;
                      for (int64_t c = 0; c < 3; ++c) y.push_back(in[size_t(r * 3 + c)]);
                    }
                    return y;
                  }});
    const int64_t R = (7 + step - 1) / step;
    check_op({.name = join("repeat_rows ", step),
              .inputs = {normal({2, 2, R, 3}, 1)},
              .f = [=](In x) { return repeat_rows(x[0], step, 7); },
              .oracle =
                  [=](In x) {
                    Values in = x[0].to_vector(), y;
                    for (int64_t r = 0; r < 28; ++r) {
                      for (int64_t c = 0; c < 3; ++c) {
                        y.push_back(in[size_t((r / 7 * R + r % 7 / step) * 3 + c)]);
                      }
                    }
                    return y;
                  }});
  }
}

}  // namespace brine::test
