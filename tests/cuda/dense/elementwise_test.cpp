// Elementwise kernels on the device, as on the CPU.
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

const Shape kShapes[] = {{0}, {1}, {3}, {64}, {3, 343}, {2, 5, 512}};

using Map = void (*)(Tensor, Tensor);

struct Op {
  const char* name;
  Map run;
};
const Op kMaps[] = {
    {"relu", [](Tensor y, Tensor x) { BRINE_CALL(y, activation, y, x, Activation::relu); }},
    {"gelu", [](Tensor y, Tensor x) { BRINE_CALL(y, activation, y, x, Activation::gelu); }},
    {"gelu_tanh",
     [](Tensor y, Tensor x) { BRINE_CALL(y, activation, y, x, Activation::gelu_tanh); }},
    {"silu", [](Tensor y, Tensor x) { BRINE_CALL(y, activation, y, x, Activation::silu); }},
};

// Normal numbers with a few that are special.
Tensor spiced(const Shape& shape, uint64_t seed, Dtype dtype) {
  Tensor x = normal(shape, seed, Dtype::f64, 0, 3);
  const double special[] = {0, -0.0, INFINITY, -INFINITY, NAN, 40, -40, 1e-30};
  for (int64_t i = 0; i < 8 && 8 * i + 7 < x.numel(); ++i) x.data<double>()[8 * i + 7] = special[i];
  return x.to(dtype);
}

}  // namespace

TEST_CASE("cuda: functions of one number") {
  for (const Op& op : kMaps) {
    for (const Shape& shape : kShapes) {
      compare_both(join(op.name, " ", shape), [&](const On& on, Dtype dtype) {
        Tensor x = on(spiced(shape, 1, dtype)), y = Tensor::like(x);
        op.run(y, x);
        op.run(x, x);  // in place
        return std::vector{y, x};
      });
    }
  }
}

TEST_CASE("cuda: elementwise kernels of memory that starts anywhere") {
  compare_both("views", [&](const On& on, Dtype dtype) {
    Tensor x = on(normal({700}, 1, dtype)), y = on(normal({700}, 2, dtype));
    auto part = [](const Tensor& t, int64_t start) { return t.slice(0, start, 592); };
    BRINE_CALL(x, activation, part(y, 1), part(x, 3), Activation::gelu);
    BRINE_CALL(x, mul, part(y, 2), part(y, 2), part(x, 5));
    BRINE_CALL(x, dropout, part(y, 3), part(x, 1), 0.5, RandomSlice{1, 2, 3});
    return std::vector{x, y};
  });
}

TEST_CASE("cuda: axpby") {
  for (double beta : {0.0, 1.0, -0.7}) {
    for (const Shape& shape : kShapes) {
      compare_both(join("axpby ", beta, " ", shape), [&](const On& on, Dtype dtype) {
        Tensor x = on(normal(shape, 1, dtype));
        // With beta = 0 nothing of y may be read: it is poison.
        Tensor y = beta == 0 ? Tensor::like(x) : on(normal(shape, 2, dtype));
        BRINE_CALL(y, axpby, y, x, 1.3, beta);
        BRINE_CALL(x, axpby, x, x, 0.5, beta);
        return std::vector{y, x};
      });
    }
  }
}

TEST_CASE("cuda: dropout draws the numbers of the cpu") {
  for (double p : {0.0, 1e-12, 0.1, 0.5, 0.999, 1.0}) {
    for (const Shape& shape : kShapes) {
      compare_both(join("dropout ", p, " ", shape),
                   [&](const On& on, Dtype dtype) {
                     Tensor x = on(normal(shape, 1, dtype)), y = Tensor::like(x);
                     BRINE_CALL(y, dropout, y, x, p, (RandomSlice{77, 5, (uint64_t(1) << 32) - 3}));
                     BRINE_CALL(x, dropout, x, x, p, (RandomSlice{uint64_t(9) << 33, 6, 1}));
                     return std::vector{y, x};
                   },
                   {0, 0});
    }
  }
}

TEST_CASE("cuda: zero_padding of every type, in place too") {
  for (const Shape& shape :
       {Shape{3, 5, 7}, Shape{3, 5}, Shape{3, 40, 2, 8}, Shape{3, 0, 4}, Shape{3, 4, 0}}) {
    for (Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::u8, Dtype::i32}) {
      for (bool lengths_on_device : {false, true}) {
        compare(join("zero_padding ", shape, " ", dtype), 0, [&](const On& on) {
          Tensor x = on(ids(shape, 1, 100).to(dtype)), y = Tensor::like(x);
          Tensor lengths = Tensor::from<int64_t>(std::vector<int64_t>{0, 3, shape[1]}, {3});
          if (lengths_on_device) lengths = on(lengths);
          BRINE_CALL(y, zero_padding, y, x, lengths);
          BRINE_CALL(y, zero_padding, x, x, lengths);
          return std::vector{y, x};
        });
      }
    }
  }
}
