// Sums on the device, as on the CPU.
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: sums of all elements") {
  for (int64_t n : {0, 1, 31, 300, 8192, 8193, 100001}) {
    compare_both(join("sum_all ", n), [&](const On& on, Dtype dtype) {
      Tensor x = on(normal({n}, 1, dtype, 0.1));
      Tensor y = Tensor::empty({1}, dtype, x.device()),
             z = Tensor::empty({1}, Dtype::f64, x.device());
      BRINE_CALL(x, sum_all, y, x);
      BRINE_CALL(x, square_sum, z, x);
      return std::vector{y, z};
    });
  }
}

TEST_CASE("cuda: more elements than a piece each for all blocks") {
  const int64_t n = 1024 * 8192 + 5;
  compare("sum_all", 0, [&](const On& on) {
    Tensor x = on(ids({n}, 1, 7, Dtype::f32)), y = Tensor::empty({1}, Dtype::f32, x.device());
    BRINE_CALL(x, sum_all, y, x);
    return std::vector{y};
  });
}

TEST_CASE("cuda: count_nonfinite") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16, Dtype::i32, Dtype::u8}) {
    for (int64_t n : {0, 1, 90, 20001}) {
      compare(join("count_nonfinite ", dtype, " ", n), 0, [&](const On& on) {
        Tensor x = normal({n}, 1, Dtype::f64, 0, 3);
        if (is_float(dtype)) {
          for (int64_t i = 0; i < n; i += 7) {
            x.data<double>()[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
          }
        }
        x = on(x.to(dtype));
        Tensor y = Tensor::empty({1}, Dtype::i64, x.device());
        BRINE_CALL(x, count_nonfinite, y, x);
        return std::vector{y};
      });
    }
  }
}

TEST_CASE("cuda: sum_rows adds") {
  for (const Shape& shape : {Shape{0, 5}, Shape{5, 0}, Shape{1, 1}, Shape{3, 7}, Shape{100, 33},
                             Shape{9000, 1}, Shape{5000, 6}, Shape{700, 200}, Shape{65, 5000}}) {
    compare_both(join("sum_rows ", shape), [&](const On& on, Dtype dtype) {
      Tensor x = on(normal(shape, 1, dtype)), y = on(normal({shape[1]}, 2, dtype));
      BRINE_CALL(x, sum_rows, y, x);
      return std::vector{y};
    });
  }
}
