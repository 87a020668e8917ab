// The primitives that map, against plain formulas in double over every kind of broadcasting.
#include "autograd/ops.h"
#include "tests/autograd/naive.h"
#include "tests/gradcheck.h"
#include "tests/refusals.h"
#include "tests/special_values.h"

using namespace brine;
using namespace brine::test;

namespace {

struct ShapePair {
  Shape a, b;
};
const std::vector<ShapePair> kPairs = {
    {{}, {}},         {{3}, {}},        {{}, {2, 2}},        {{5, 33}, {33}},
    {{2, 3}, {2, 3}}, {{2, 1}, {1, 3}}, {{4, 1, 3}, {2, 1}}, {{1}, {5, 1, 2}},
    {{0}, {1}},       {{3, 0}, {1}},    {{1, 3}, {0, 1}},    {{2, 1, 2, 1, 2, 1}, {3, 1, 2, 1, 2}}};

struct BinaryCase {
  const char* name;
  Tensor (*op)(const Tensor&, const Tensor&);
  double (*formula)(double, double);
  double low;  // of the inputs; high is 2
};
const BinaryCase kBinary[] = {
    {"add", [](const Tensor& a, const Tensor& b) { return add(a, b); },
     [](double a, double b) { return a + b; }, -2},
    {"sub", [](const Tensor& a, const Tensor& b) { return sub(a, b); },
     [](double a, double b) { return a - b; }, -2},
    {"mul", [](const Tensor& a, const Tensor& b) { return mul(a, b); },
     [](double a, double b) { return a * b; }, -2},
    {"div", [](const Tensor& a, const Tensor& b) { return div(a, b); },
     [](double a, double b) { return a / b; }, 0.5},
};

struct UnaryCase {
  const char* name;
  Tensor (*op)(const Tensor&);
  double (*formula)(double);
  double low, high;
};
const UnaryCase kUnary[] = {
    {"exp", [](const Tensor& x) { return exp(x); }, [](double x) { return std::exp(x); }, -3, 3},
    {"log", [](const Tensor& x) { return log(x); }, [](double x) { return std::log(x); }, 0.1, 4},
    {"sqrt", [](const Tensor& x) { return sqrt(x); }, [](double x) { return std::sqrt(x); }, 0.1,
     9},
    {"sigmoid", [](const Tensor& x) { return sigmoid(x); },
     [](double x) { return 1 / (1 + std::exp(-x)); }, -9, 9},
    {"tanh", [](const Tensor& x) { return tanh(x); }, [](double x) { return std::tanh(x); }, -4, 4},
    {"minus", [](const Tensor& x) { return -x; }, [](double x) { return 0 - x; }, -2, 2},
    {"number operands", [](const Tensor& x) { return 2 - (1 + x * 3 - 0.5) / 4 + 2 / x; },
     [](double x) { return 2 - (0.5 + 3 * x) / 4 + 2 / x; }, 0.5, 2},
};

struct RelationCase {
  const char* name;
  Tensor (*op)(const Operand&, const Operand&);
  bool (*formula)(double, double);
};
const RelationCase kRelations[] = {
    {"equal", equal, [](double a, double b) { return a == b; }},
    {"not_equal", not_equal, [](double a, double b) { return a != b; }},
    {"less", less, [](double a, double b) { return a < b; }},
    {"less_equal", less_equal, [](double a, double b) { return a <= b; }},
    {"greater", greater, [](double a, double b) { return a > b; }},
    {"greater_equal", greater_equal, [](double a, double b) { return a >= b; }},
};

Tensor row(const std::vector<double>& values) {
  return Tensor::from(values, {int64_t(values.size())});
}

}  // namespace

TEST_CASE("binary primitives broadcast as the formula of each element defines") {
  for (const BinaryCase& c : kBinary) {
    for (const ShapePair& s : kPairs) {
      auto oracle = [&c](In in) {
        const Array a(in[0]), b(in[1]);
        return tabulate(joined(a.shape, b.shape),
                        [&](const Coordinates& at) { return c.formula(a(at), b(at)); });
      };
      check_op({.name = join(c.name, " ", s.a, " ", s.b),
                .inputs = {uniform(s.a, 1, c.low, 2), uniform(s.b, 2, c.low, 2)},
                .f = [&c](In in) { return c.op(in[0], in[1]); },
                .oracle = oracle});
    }
  }
}

TEST_CASE("the shape of two that broadcast is that of NumPy") {
  CHECK(add(normal({4, 1, 3}, 1), normal({2, 1}, 2)).shape() == Shape{4, 2, 3});
  CHECK(div(normal({1}, 1), normal({0}, 2)).shape() == Shape{0});
  CHECK(div(normal({}, 1), normal({}, 2)).shape() == Shape{});
}

TEST_CASE("unary primitives and operators with numbers") {
  for (const UnaryCase& c : kUnary) {
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{0}, Shape{257}, Shape{3, 5, 2}}) {
      auto oracle = [&c](In in) {
        Values y;
        for (double x : in[0].to_vector()) y.push_back(c.formula(x));
        return y;
      };
      check_op({.name = join(c.name, " ", shape),
                .inputs = {uniform(shape, 3, c.low, c.high)},
                .f = [&c](In in) { return c.op(in[0]); },
                .oracle = oracle});
    }
  }
}

TEST_CASE("operators of two tensors are the ops") {
  Tensor a = normal({3, 4}, 1), b = normal({4}, 2), c = normal({3, 4}, 3);
  CHECK(same_bits(a + b, add(a, b)));
  CHECK(same_bits(a - c, sub(a, c)));
  CHECK(same_bits(a * b, mul(a, b)));
  CHECK(same_bits(a / c, div(a, c)));
  CHECK(same_bits(a * 2.5, scale(a, 2.5)));
}

TEST_CASE("an op on equal shapes has the bits of the same op that broadcasts") {
  Tensor a = normal({5, 33}, 1, Dtype::f32, 0, 3), b = normal({5, 33}, 2), dy = normal({5, 33}, 3);
  for (const BinaryCase& c : kBinary) {
    const Tensor one_more = b.view({1, 5, 33});
    auto f = [&c](In in) { return c.op(in[0], in[1]); };
    const Run same = run(f, {a, b}, dy), wide = run(f, {a, one_more}, dy.view({1, 5, 33}));
    CHECK_MESSAGE(same_bits(same.y, wide.y.detach().view({5, 33})), c.name);
    CHECK_MESSAGE(same_bits(same.grads[0], wide.grads[0]), c.name);
    CHECK_MESSAGE(same_bits(same.grads[1], wide.grads[1].view({5, 33})), c.name);
  }
}

TEST_CASE("strided inputs have the bits of contiguous ones, forward and backward") {
  Tensor wide = uniform({7, 2, 9}, 4, 0.5, 2);
  Tensor a = wide.slice(0, 2, 3).permute({2, 0, 1}), b = wide.select(1, 1).slice(1, 3, 3);
  b = b.slice(0, 1, 1);  // [1, 3], inside
  Tensor x = a.contiguous(), y = b.contiguous(), dy = normal({9, 3, 2}, 5);
  for (const BinaryCase& c : kBinary) {
    auto f = [&c](In in) { return c.op(in[0], permute(in[1], {1, 0})); };
    auto direct = [&c](In in) { return c.op(in[0], in[1]); };
    const Run strided = run(direct, {a, b.transpose(0, 1)}, dy), dense = run(f, {x, y}, dy);
    CHECK_MESSAGE(same_bits(strided.y, dense.y), c.name);
    CHECK_MESSAGE(same_bits(strided.grads[0], dense.grads[0]), c.name);
    CHECK_MESSAGE(same_bits(strided.grads[1], dense.grads[1].transpose(0, 1)), c.name);
  }
  for (const UnaryCase& c : kUnary) {
    auto f = [&c](In in) { return c.op(in[0]); };
    const Run strided = run(f, {a}, dy), dense = run(f, {x}, dy);
    CHECK_MESSAGE(same_bits(strided.y, dense.y), c.name);
    CHECK_MESSAGE(same_bits(strided.grads[0], dense.grads[0]), c.name);
  }
}

TEST_CASE("special values: NaN passes through, ends of the domain are those of the C library") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    const Tensor x = row({kNan, -kInf, -1, 0, kInf}).to(dtype);
    CHECK(close(exp(x).to_vector(), {kNan, 0, std::exp(-1), 1, kInf}, 0, 2e-7));
    CHECK(close(log(x).to_vector(), {kNan, kNan, kNan, -kInf, kInf}, 0, 0));
    CHECK(close(sqrt(x).to_vector(), {kNan, kNan, kNan, 0, kInf}, 0, 0));
    CHECK(close(sigmoid(x).to_vector(), {kNan, 0, 1 / (1 + std::exp(1)), 0.5, 1}, 0, 2e-7));
    CHECK(close((1 / x).to_vector(), {kNan, 0, -1, kInf, 0}, 0, 0));
  }
  CHECK(close(log(row({1e-42, 3e38}).to(Dtype::f32)).to_vector(),
              {std::log(double(1e-42f)), std::log(3e38)}, 0, 1e-6));
}

TEST_CASE("comparisons of any type are u8 and off the tape") {
  for (const RelationCase& c : kRelations) {
    for (Dtype dtype :
         {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16, Dtype::i32, Dtype::i64, Dtype::u8}) {
      const Tensor a = ids({4, 1, 5}, 1, 4).to(dtype), b = ids({3, 1}, 2, 4).to(dtype);
      const Tensor y = c.op(a, b), z = c.op(a, 2), w = c.op(2, a);
      const Array u(a), v(b);
      auto expected = [&](auto left, auto right) {
        return tabulate({4, 3, 5}, [&](const Coordinates& at) {
          return c.formula(left(at), right(at)) ? 1.0 : 0.0;
        });
      };
      auto two = [](const Coordinates&) { return 2.0; };
      CHECK(y.dtype() == Dtype::u8);
      CHECK_MESSAGE(y.to_vector() == expected(u, v), join(c.name, " ", dtype));
      CHECK_MESSAGE(broadcast_to(z, {4, 3, 5}).to_vector() == expected(u, two), c.name);
      CHECK_MESSAGE(broadcast_to(w, {4, 3, 5}).to_vector() == expected(two, u), c.name);
    }
    const Tensor nan = row({kNan});
    CHECK(c.op(nan, nan).to_vector()[0] == (c.formula(kNan, kNan) ? 1 : 0));
    CHECK(c.op(require_grad(nan), 1).node() == nullptr);
  }
  // Beyond the whole numbers of a double.
  const int64_t big = (int64_t(1) << 53) + 1;
  const Tensor a = Tensor::from(std::vector<int64_t>{big}, {1});
  const Tensor b = Tensor::from(std::vector<int64_t>{big - 1}, {1});
  CHECK(equal(a, b).to_vector()[0] == 0);
  CHECK(greater(a, b).to_vector()[0] == 1);
}

TEST_CASE("logical_and takes any number but 0 for true") {
  const Tensor a = row({0, 0, 3, 3}).to(Dtype::u8), b = row({0, 5, 0, 7}).to(Dtype::u8);
  CHECK(logical_and(a, b).to_vector() == Values{0, 0, 0, 1});
}

TEST_CASE("where chooses elements; the other input gets no gradient, whatever its value") {
  struct Shapes {
    Shape condition, a, b;
  };
  for (const Shapes& s :
       {Shapes{{}, {}, {}}, Shapes{{5, 1}, {5, 33}, {33}}, Shapes{{4, 1, 3}, {2, 1}, {}},
        Shapes{{3}, {2, 1}, {4, 1, 1}}, Shapes{{2, 1}, {0}, {2, 1}}}) {
    const Tensor condition = ids(s.condition, 1, 2).to(Dtype::u8);
    auto oracle = [](In in) {
      const Array c(in[0]), a(in[1]), b(in[2]);
      return tabulate(joined(c.shape, joined(a.shape, b.shape)),
                      [&](const Coordinates& at) { return c(at) != 0 ? a(at) : b(at); });
    };
    check_op({.name = join("where ", s.condition, " ", s.a, " ", s.b),
              .inputs = {condition, normal(s.a, 2), normal(s.b, 3)},
              .f = [](In in) { return where(in[0], in[1], in[2]); },
              .oracle = oracle});
  }
  const Tensor x = row({-1, 4});
  auto root = [](In in) { return where(greater(in[0], 0), sqrt(in[0]), 7); };
  CHECK(root({x}).to_vector() == Values{7, 2});
  auto filled = [](In in) { return where(greater(in[0], 0), in[0], kNan * in[0]); };
  CHECK(std::isnan(filled({x}).to_vector()[0]));
  for (Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::i32, Dtype::i64, Dtype::u8}) {
    const Tensor a = ids({3, 4}, 1, 100).to(dtype), condition = ids({4}, 2, 2).to(Dtype::u8);
    const Array u(a), c(condition);
    const Tensor y = where(condition, a, 5);
    CHECK(y.dtype() == dtype);
    CHECK(y.to_vector() ==
          tabulate({3, 4}, [&](const Coordinates& at) { return c(at) != 0 ? u(at) : 5.0; }));
  }
}

TEST_CASE("primitives refuse what does not fit, by name") {
  const Tensor a = normal({3, 4}, 1), b = normal({4, 3}, 2), d = normal({3, 4}, 3, Dtype::f64);
  const Tensor whole = ids({3, 4}, 4, 9);
  auto says = [](const char* text) { return doctest::Contains(text); };
  CHECK_THROWS_WITH_AS(div(a, b), says("div: f32 [3, 4] and f32 [4, 3] do not broadcast"), Error);
  CHECK_THROWS_WITH_AS(add(a, b), says("add: f32 [3, 4] and f32 [4, 3] do not broadcast"), Error);
  CHECK_THROWS_WITH_AS(div(a, d), says("div: f32 [3, 4] and f64 [3, 4] must have one type"), Error);
  CHECK_REFUSES(sub(a, d.slice(0, 0, 1)), "sub: f32 [3, 4] and f64 [1, 4] must have");
  CHECK_THROWS_WITH_AS(exp(whole), says("exp: got i32 [3, 4], wanted f32 or f64"), Error);
  CHECK_THROWS_WITH_AS(div(whole, whole), says("div: got i32 [3, 4], wanted f32 or f64"), Error);
  CHECK_THROWS_WITH_AS(equal(1, 2), says("equal: got two numbers, wanted a tensor"), Error);
  CHECK_THROWS_WITH_AS(div(a, Tensor()), says("div: got an undefined tensor"), Error);
  CHECK_THROWS_WITH_AS(2 * Tensor(), says("mul: got an undefined tensor"), Error);
  CHECK_THROWS_WITH_AS(less(whole, 0.5), says("0.5 is not a whole number"), Error);
  CHECK_REFUSES(where(a, a, a), "where: the condition is f32 [3, 4], wanted u8");
  CHECK_REFUSES(where(less(b, 0), a, 0), "where: u8 [4, 3] and f32 [3, 4] do not");
  CHECK_REFUSES(broadcast_to(a, {3, 5}), "broadcast_to: [3, 4] does not broadcast to");
  CHECK_REFUSES(broadcast_to(a, {4}), "broadcast_to: [3, 4] does not broadcast to");
}
