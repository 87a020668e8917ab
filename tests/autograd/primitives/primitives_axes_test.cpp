// The primitives that work along axes and with indices, against loops over coordinates in double.
#include <algorithm>

#include "autograd/ops.h"
#include "tests/autograd/naive.h"
#include "tests/gradcheck.h"
#include "tests/refusals.h"
#include "tests/special_values.h"

using namespace brine;
using namespace brine::test;

namespace {

struct Axes {
  Shape shape;
  std::vector<int> axes;
};
const std::vector<Axes> kAxes = {{{}, {}},
                                 {{7}, {0}},
                                 {{3, 4, 5}, {1}},
                                 {{3, 4, 5}, {-1, 0}},
                                 {{3, 4, 5}, {0, 1, 2}},
                                 {{3, 4, 5}, {}},
                                 {{3, 1, 5}, {1}},
                                 {{2, 3, 1, 2, 2, 3}, {4, 1, -1}},
                                 {{40, 33}, {0}},
                                 {{2, 900}, {1}},
                                 {{0, 3}, {1}},
                                 {{3, 0, 2}, {2}}};

// What a reduction makes of the elements of a line.
using Fold = double (*)(const Values&);

double total(const Values& v) {
  long double sum = 0;
  for (double x : v) sum += x;
  return double(sum);
}
double average(const Values& v) { return total(v) / double(v.size()); }
double top(const Values& v) { return *std::max_element(v.begin(), v.end()); }

// The lines of x along the axes, folded; an axis that goes has size 1.
Values folded(const Tensor& x, const std::vector<int>& axes, Fold fold) {
  const Array a(x);
  Coordinates kept = a.shape;
  for (int axis : axes) kept[size_t(axis < 0 ? axis + x.rank() : axis)] = 1;
  const Array reduced(kept, 0);
  std::vector<Values> lines(reduced.values.size());
  each(a.shape, [&](const Coordinates& c) { lines[reduced.offset(c)].push_back(a(c)); });
  Values y;
  for (const Values& line : lines) y.push_back(fold(line));
  return y;
}

using Reduce = Tensor (*)(const Tensor&, const std::vector<int>&, bool);

struct Reducer {
  const char* name;
  Reduce op;
  Fold fold;
};
const Reducer kReducers[] = {{"sum", sum, total}, {"mean", mean, average}, {"max", max, top}};

Coordinates moved(Coordinates c, int axis, int64_t to) {
  c[size_t(axis)] = to;
  return c;
}

Tensor indices(const std::vector<int64_t>& values, const Shape& shape) {
  return Tensor::from(values, shape);
}

}  // namespace

TEST_CASE("sum, mean and max over any axes") {
  for (const Reducer& r : kReducers) {
    for (const Axes& s : kAxes) {
      for (bool keep : {false, true}) {
        check_op({.name = join(r.name, " ", s.shape, " over ", s.axes.size(), " axes"),
                  .inputs = {normal(s.shape, 1, Dtype::f32, 1)},
                  .f = [&](In in) { return r.op(in[0], s.axes, keep); },
                  .oracle = [&](In in) { return folded(in[0], s.axes, r.fold); }});
      }
    }
  }
}

TEST_CASE("reduced axes disappear, or stay with size 1") {
  const Tensor x = normal({3, 4, 5}, 1);
  for (const Reducer& r : kReducers) {
    CHECK(r.op(x, {1}, false).shape() == Shape{3, 5});
    CHECK(r.op(x, {-1, 0}, false).shape() == Shape{4});
    CHECK(r.op(x, {-1, 0}, true).shape() == Shape{1, 4, 1});
    CHECK(r.op(x, {0, 1, 2}, false).shape() == Shape{});
    CHECK(r.op(x, {}, false).shape() == Shape{3, 4, 5});
  }
}

TEST_CASE("reductions and running sums of strided views have the bits of contiguous ones") {
  const Tensor wide = normal({6, 5, 4}, 2);
  const Tensor view = wide.slice(1, 1, 3).permute({2, 0, 1}),
               dense = view.contiguous();  // [4, 6, 3]
  for (const Reducer& r : kReducers) {
    for (const std::vector<int>& axes : {std::vector<int>{0}, {1}, {2}, {0, 2}, {0, 1, 2}}) {
      auto f = [&](In in) { return r.op(in[0], axes, false); };
      const Tensor dy = cotangent(f({dense}));
      const Run a = run(f, {view}, dy), b = run(f, {dense}, dy);
      CHECK_MESSAGE(same_bits(a.y, b.y), r.name);
      CHECK_MESSAGE(same_bits(a.grads[0], b.grads[0]), r.name);
    }
  }
  for (int axis : {0, 1, 2}) CHECK(same_bits(cumsum(view, axis), cumsum(dense, axis)));
}

TEST_CASE("sums of f32 are accumulated in f64") {
  const int64_t n = 1 << 20;
  const Tensor x = Tensor::full({n, 2}, 0.1);
  const double exact = double(n) * double(0.1f);
  for (double y : sum(x, {0}).to_vector()) CHECK(y == doctest::Approx(exact).epsilon(6e-8));
  for (double y : mean(x, {0}).to_vector()) CHECK(float(y) == 0.1f);
  CHECK(cumsum(x, 0).to_vector().back() == doctest::Approx(exact).epsilon(6e-8));
}

TEST_CASE("reductions of nothing, of infinities and of NaN") {
  const Tensor none = normal({2, 0}, 1);
  CHECK(sum(none, {1}).to_vector() == Values{0, 0});
  for (double y : mean(none, {1}).to_vector()) CHECK(std::isnan(y));
  CHECK_THROWS_WITH_AS(max(none, {1}), doctest::Contains("max: [2, 0] has no elements"), Error);
  const Tensor x = Tensor::from(Values{1, kNan, 2, -kInf, -kInf, -kInf, 3, kInf, -kInf}, {3, 3});
  CHECK(close(max(x, {1}).to_vector(), {kNan, -kInf, kInf}, 0, 0));
  CHECK(close(sum(x, {1}).to_vector(), {kNan, -kInf, kNan}, 0, 0));
}

TEST_CASE("elements that share the maximum share its gradient equally") {
  const Tensor x = Tensor::from(Values{1, 5, 5, 2, 7, 3, 4, 4, 4}, {3, 3});
  const Tensor dy = Tensor::from(Values{6, 2, 3}, {3});
  auto f = [](In in) { return max(in[0], {1}); };
  CHECK(run(f, {x}, dy).grads[0].to_vector() == Values{0, 3, 3, 0, 2, 0, 1, 1, 1});
}

TEST_CASE("cumsum along any axis") {
  for (const Shape& shape : {Shape{5}, Shape{3, 4, 5}, Shape{2, 0, 3}, Shape{70, 33}}) {
    for (int axis = 0; axis < shape.rank(); ++axis) {
      auto oracle = [=](In in) {
        const Array x(in[0]);
        return tabulate(x.shape, [&](const Coordinates& c) {
          long double sum = 0;
          for (int64_t i = 0; i <= c[size_t(axis)]; ++i) sum += x(moved(c, axis, i));
          return double(sum);
        });
      };
      check_op({.name = join("cumsum ", shape, " along ", axis),
                .inputs = {normal(shape, 3)},
                .f = [=](In in) { return cumsum(in[0], axis - in[0].rank()); },
                .oracle = oracle});
    }
  }
}

TEST_CASE("broadcast_to repeats, and its gradient sums up") {
  struct Shapes {
    Shape from, to;
  };
  for (const Shapes& s : {Shapes{{}, {3}}, Shapes{{1, 4}, {3, 4}}, Shapes{{3, 1}, {2, 3, 5}},
                          Shapes{{2, 3}, {2, 3}}, Shapes{{1}, {0}}}) {
    const Coordinates to(s.to.begin(), s.to.end());
    check_op({.name = join("broadcast_to ", s.from, " ", s.to),
              .inputs = {normal(s.from, 4)},
              .f = [&](In in) { return broadcast_to(in[0], s.to); },
              .oracle = [&](In in) { return tabulate(to, Array(in[0])); }});
  }
}

TEST_CASE("gather picks along an axis, with an index that may repeat and broadcast") {
  struct Case {
    Shape x, index;
    int axis;
    int64_t bound;
  };
  for (const Case& c :
       {Case{{5}, {7}, 0, 5}, Case{{3, 4, 5}, {3, 6, 5}, 1, 4}, Case{{3, 4, 5}, {1, 1, 2}, 2, 5},
        Case{{3, 4, 5}, {6, 1, 5}, 0, 3}, Case{{3, 4}, {3, 0}, 1, 4}, Case{{0, 4}, {1, 2}, 1, 4}}) {
    auto oracle = [=](In in) {
      const Array x(in[0]), index(in[1]);
      Coordinates shape = x.shape;
      shape[size_t(c.axis)] = index.shape[size_t(c.axis)];
      return tabulate(
          shape, [&](const Coordinates& at) { return x(moved(at, c.axis, int64_t(index(at)))); });
    };
    for (Dtype type : {Dtype::i32, Dtype::i64}) {
      check_op({.name = join("gather ", c.x, " ", c.index, " ", type),
                .inputs = {normal(c.x, 5), ids(c.index, 6, c.bound, type)},
                .f = [=](In in) { return gather(in[0], c.axis - in[0].rank(), in[1]); },
                .oracle = oracle});
    }
  }
  const Tensor rows = Tensor::from(std::vector<int64_t>{2, 0}, {2, 1});
  for (Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::i32, Dtype::i64, Dtype::u8}) {
    const Tensor x = ids({3, 4}, 7, 100).to(dtype), y = gather(x, 0, rows);
    CHECK(y.dtype() == dtype);
    const Values v = x.to_vector();
    Values expected(v.begin() + 8, v.end());
    expected.insert(expected.end(), v.begin(), v.begin() + 4);
    CHECK(y.to_vector() == expected);
  }
}

TEST_CASE("gather takes strided tensors") {
  const Tensor wide = normal({4, 6, 3}, 11), x = wide.permute({1, 2, 0});
  const Tensor strided = ids({3, 4, 2}, 12, 6, Dtype::i64).permute({1, 0, 2}).slice(2, 1, 1);
  CHECK(same_bits(gather(x, 0, strided), gather(x.contiguous(), 0, strided.contiguous())));
}

TEST_CASE("concat along any axis") {
  for (int axis : {0, 1, 2, -1}) {
    const int a = axis < 0 ? axis + 3 : axis;
    std::vector<Tensor> parts;
    for (int64_t n : {2, 1, 0, 4}) {
      Shape shape{3, 2, 4};
      shape[a] = n;
      parts.push_back(normal(shape, uint64_t(13 + n)));
    }
    auto oracle = [=](In in) {
      Coordinates shape = Array(in[0]).shape;
      shape[size_t(a)] = 7;
      return tabulate(shape, [&](Coordinates c) {
        size_t part = 0;
        int64_t& at = c[size_t(a)];
        for (; at >= in[part].dim(a); ++part) at -= in[part].dim(a);
        return Array(in[part])(c);
      });
    };
    check_op({.name = join("concat along ", axis),
              .inputs = parts,
              .f = [=](In in) { return concat(in, axis); },
              .oracle = oracle});
  }
  check_op({.name = "concat with itself",
            .inputs = {normal({2, 3}, 14)},
            .f =
                [](In in) {
                  return concat({in[0], in[0] * 2.0, in[0]}, 0);
                },
            .oracle =
                [](In in) {
                  const Array x(in[0]);
                  return tabulate({6, 3}, [&](const Coordinates& c) {
                    return x(c[0] % 2, c[1]) * (c[0] / 2 == 1 ? 2 : 1);
                  });
                }});
  const Tensor whole = ids({2, 3}, 15, 9);
  CHECK(concat({whole, whole}, 1).dtype() == Dtype::i32);
}

TEST_CASE("arange counts from 0") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::i32, Dtype::i64}) {
    CHECK(arange(4, dtype).to_vector() == Values{0, 1, 2, 3});
    CHECK(arange(4, dtype).dtype() == dtype);
  }
  CHECK(arange(0).shape() == Shape{0});
}

TEST_CASE("primitives along axes refuse what does not fit, by name") {
  const Tensor x = normal({3, 4}, 1), one = indices({0, 1}, {2, 1});
  auto says = [](const char* text) { return doctest::Contains(text); };
  CHECK_THROWS_WITH_AS(sum(x, {2}), says("sum: axis 2 is outside [3, 4]"), Error);
  CHECK_REFUSES(mean(x, {0, -2}), "mean: axis -2 of [3, 4] is given more than once");
  CHECK_REFUSES(max(ids({3}, 1, 4), {0}), "max: got i32 [3], wanted f32 or f64");
  CHECK_THROWS_WITH_AS(cumsum(x, -3), says("cumsum: axis -3 is outside [3, 4]"), Error);
  CHECK_THROWS_WITH_AS(gather(x, 0, x), says("gather: the index is f32, wanted i32 or i64"), Error);
  CHECK_REFUSES(gather(x, 0, indices({0}, {1})), "gather: the index [1] must have the");
  CHECK_REFUSES(gather(x, 1, one), "gather: the index [2, 1] does not broadcast to");
  CHECK_THROWS_WITH_AS(gather(x, 0, indices({0, 3}, {2, 1})),
                       says("gather: index 3 at position 1 is outside axis 0 of [3, 4]"), Error);
  CHECK_REFUSES(gather(x, 0, indices({-1}, {1, 1})), "gather: index -1 at position 0");
}
