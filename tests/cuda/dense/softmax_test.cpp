// Softmax over keys and under a mask on the device, as on the CPU.
#include "tensor/kernels/dense.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: softmax of rows with infinities and NaN, lengths on the device") {
  for (int64_t keys : {6, 1030}) {
    compare_both(join("softmax of special rows, ", keys, " keys"), [&](const On& on, Dtype dtype) {
      Tensor x = normal({1, 1, 6, keys}, 1, Dtype::f64, 0, 30);
      double* p = x.data<double>();
      p[0 * keys + 3] = -INFINITY;
      p[1 * keys + 2] = INFINITY;
      p[2 * keys + 5] = NAN;
      for (int64_t i = 0; i < keys; ++i) p[3 * keys + i] = -INFINITY;
      for (int64_t i = 0; i < keys; ++i) p[4 * keys + i] = -1e4 * double(i);
      x = on(x.to(dtype));
      Tensor y = Tensor::like(x);
      BRINE_CALL(x, softmax, y, x, 1.0, (Visibility{false, on(lengths_of({keys}))}));
      return std::vector{y};
    });
  }
}

TEST_CASE("cuda: softmax under a mask") {
  for (const Shape& shape :
       {Shape{1, 1}, Shape{0, 5}, Shape{9, 33}, Shape{2, 2, 3, 70}, Shape{3, 1500}}) {
    compare_both(join("masked_softmax ", shape), [&](const On& on, Dtype dtype) {
      Tensor x = normal(shape, 1, Dtype::f64, 0, 5), mask = ids(shape, 2, 2, Dtype::u8);
      const int64_t S = shape[shape.rank() - 1], rows = x.rows();
      for (int64_t i = 0; i < S && rows > 1; ++i) mask.data<uint8_t>()[i] = 0;  // sees nothing
      for (int64_t i = 0; i < S && rows > 2; ++i) x.data<double>()[2 * S + i] = INFINITY;
      if (rows > 3) x.data<double>()[3 * S] = NAN, mask.data<uint8_t>()[3 * S] = 1;
      if (rows > 2) x.data<double>()[S] = NAN, mask.data<uint8_t>()[S] = 0;
      x = on(x.to(dtype));
      mask = on(mask);
      Tensor y = Tensor::like(x);
      BRINE_CALL(x, masked_softmax, y, x, mask, -0.4);
      return std::vector{y};
    });
  }
}
