// copy, fill and accumulate between layouts and types on the device, as on the CPU.
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

constexpr Dtype kAll[] = {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16,
                          Dtype::i32, Dtype::i64, Dtype::u8};

// Copies a whole host tensor to the device, then views the copy: both views have the same strides.
using View = std::function<Tensor(const Tensor&)>;

Tensor whole(const Tensor& t) { return t; }
View slice(int axis, int64_t start, int64_t n) {
  return [=](const Tensor& t) { return t.slice(axis, start, n); };
}
View swapped(int a, int b) {
  return [=](const Tensor& t) { return t.transpose(a, b); };
}
View strided(const Shape& shape, const Shape& strides) {
  return [=](const Tensor& t) { return t.as_strided(shape, strides); };
}

struct Layout {
  const char* name;
  Shape y, x;  // of the memory; the views have one shape
  View of_y, of_x;
};

const std::vector<Layout> kLayouts = {
    {"one element", {1}, {1}, whole, whole},
    {"no element", {0, 3}, {0, 3}, whole, whole},
    {"no axis", {}, {}, whole, whole},
    {"dense", {3, 1000}, {3, 1000}, whole, whole},
    {"dense and odd", {7, 331}, {7, 331}, whole, whole},
    {"dense from the middle", {1024}, {1025}, whole, slice(0, 1, 1024)},
    {"dense into the middle", {1027}, {1024}, slice(0, 3, 1024), whole},
    {"transposed", {65, 70}, {70, 65}, whole, swapped(0, 1)},
    {"into transposed", {70, 65}, {65, 70}, swapped(0, 1), whole},
    {"batches transposed", {2, 3, 33, 8}, {2, 3, 8, 33}, whole, swapped(2, 3)},
    {"thin transposed", {2, 40, 3}, {2, 3, 40}, whole, swapped(1, 2)},
    {"heads apart", {2, 3, 9, 16}, {2, 9, 3, 16}, whole, swapped(1, 2)},
    {"heads together", {2, 9, 3, 5}, {2, 3, 9, 5}, whole, swapped(1, 2)},
    {"a slice of columns", {50, 16}, {50, 40}, whole, slice(1, 8, 16)},
    {"an odd slice of columns", {50, 7}, {50, 40}, whole, slice(1, 9, 7)},
    {"into a slice", {50, 40}, {50, 16}, slice(1, 5, 16), whole},
    {"a row repeated", {30, 64}, {64}, whole, strided({30, 64}, {0, 1})},
    {"a column repeated", {30, 64}, {30}, whole, strided({30, 64}, {1, 0})},
    {"one number repeated", {300, 5}, {1}, whole, strided({300, 5}, {0, 0})},
    {"every second", {300}, {600}, whole, strided({300}, {2})},
    {"six axes",
     {2, 3, 2, 3, 2, 5},
     {5, 2, 3, 2, 3, 2},
     whole,
     [](const Tensor& t) {
       return t.permute({5, 2, 1, 4, 3, 0});
     }},
};

// Numbers that every type represents, and for floats some that need rounding.
Tensor values(const Shape& shape, uint64_t seed, Dtype to, Dtype from) {
  const bool floats = is_float(to) && is_float(from);
  return (floats ? normal(shape, seed, Dtype::f64, 0, 100) : ids(shape, seed, 200)).to(from);
}

}  // namespace

TEST_CASE("cuda: copies of every layout, in the same and in another type") {
  for (const Layout& l : kLayouts) {
    for (Dtype to : kAll) {
      for (Dtype from : {Dtype::f32, Dtype::bf16, Dtype::u8, to}) {
        compare(join("copy ", l.name, " ", from, " to ", to), 0, [&](const On& on) {
          Tensor y = on(values(l.y, 1, to, from).to(to)), x = on(values(l.x, 2, to, from));
          BRINE_CALL(y, copy, l.of_y(y), l.of_x(x));
          return std::vector{y};
        });
      }
    }
  }
}

TEST_CASE("cuda: copies from each type to each, with the rounding of the cpu") {
  const std::vector<double> special = {0,
                                       -0.0,
                                       1,
                                       65504,
                                       65520,
                                       65519.999,
                                       1e-8,
                                       6e-8,
                                       3e38,
                                       -1e39,
                                       1e300,
                                       1 + 0x1p-8,
                                       1 + 0x1p-9,
                                       1 + 0x3p-9,
                                       1 + 0x1p-11 + 0x1p-40,
                                       1 + 0x1p-9 + 0x1p-45,
                                       INFINITY,
                                       -INFINITY,
                                       NAN,
                                       5.9e-5,
                                       6.2e-5};
  for (Dtype to : kAll) {
    for (Dtype from : kAll) {
      compare(join("copy ", from, " to ", to), 0, [&](const On& on) {
        Tensor x = is_float(to) && is_float(from)
                       ? Tensor::from(special, {int64_t(special.size())}).to(from)
                       : ids({301}, 3, 256).to(from);
        Tensor y = Tensor::empty(x.shape(), to, on.device);
        x = on(x);
        BRINE_CALL(y, copy, y, x);
        return std::vector{y};
      });
    }
  }
}

TEST_CASE("cuda: accumulate adds, in every layout") {
  for (const Layout& l : kLayouts) {
    compare_both(join("accumulate ", l.name), [&](const On& on, Dtype dtype) {
      Tensor y = on(normal(l.y, 1, dtype)), x = on(normal(l.x, 2, dtype));
      BRINE_CALL(y, accumulate, l.of_y(y), l.of_x(x));
      return std::vector{y};
    });
  }
}

TEST_CASE("cuda: fill writes the view and nothing else") {
  for (const Layout& l : kLayouts) {
    for (Dtype dtype : kAll) {
      for (double value : {0.0, 7.0}) {
        compare(join("fill ", l.name, " ", dtype), 0, [&](const On& on) {
          Tensor y = on(ids(l.y, 1, 100).to(dtype));
          BRINE_CALL(y, fill, l.of_y(y), value);
          return std::vector{y};
        });
      }
    }
  }
  compare("fill with a number that is rounded", 0, [&](const On& on) {
    Tensor y = Tensor::empty({3, 5}, Dtype::bf16, on.device);
    BRINE_CALL(y, fill, y, 1 + 0x1p-8 + 0x1p-40);
    Tensor z = Tensor::empty({6}, Dtype::f64, on.device);
    BRINE_CALL(z, fill, z, -0.1);
    return std::vector{y, z};
  });
}
