// Convolution against naive f64 loops: sizes, dilation, stride, halos, lengths.
#include <cmath>
#include <limits>

#include "tensor/kernels/conv.h"
#include "tests/gradcheck.h"

using namespace brine;
using brine::test::normal;

namespace {

struct ConvCase {
  int64_t B = 2, rows_in = 9, W = 5, C = 3, O = 4, kT = 3, kW = 3;
  bool bias = true;
  Convolution conf = {};
};

struct ExpectedConv {
  std::vector<double> value, bound;
  explicit ExpectedConv(int64_t n) : value(size_t(n)), bound(size_t(n)) {}
  void add(int64_t i, double v) {
    value[size_t(i)] += v;
    bound[size_t(i)] += std::abs(v);
  }
};

struct Setup {
  ConvCase c;
  std::vector<int64_t> tokens;  // of each sequence; empty: all
  Tensor x, w, b, y, dy, lengths;
  int64_t rows, height;
  Convolution conf;

  Setup(const ConvCase& given, const std::vector<int64_t>& tokens, Dtype dtype)
      : c(given), tokens(tokens), conf(given.conf) {
    x = normal({c.B, c.rows_in, c.W, c.C}, 1, dtype);
    w = normal({c.O, c.C, c.kT, c.kW}, 2, dtype);
    if (c.bias) b = normal({c.O}, 3, dtype);
    rows = (c.rows_in - (c.kT - 1) * conf.dilation - 1) / conf.stride + 1;
    height = conf.halo_before + rows + conf.halo_after;
    y = Tensor::empty({c.B, height, c.W, c.O}, dtype);
    dy = normal(y.shape(), 4, dtype);
    if (!tokens.empty()) conf.lengths = Tensor::from(tokens, {c.B});
  }
  bool live(int64_t s, int64_t r) const {
    return tokens.empty() || r * conf.row_stride < tokens[size_t(s)];
  }
  int64_t at_y(int64_t s, int64_t r, int64_t p, int64_t o) const {
    return ((s * height + conf.halo_before + r) * c.W + p) * c.O + o;
  }
  // f(sequence, row, column, out, index of y) for every live position.
  template <class F>
  void each(F&& f) const {
    for (int64_t s = 0; s < c.B; ++s)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t p = 0; p < c.W && live(s, r); ++p)
          for (int64_t o = 0; o < c.O; ++o) f(s, r, p, o, at_y(s, r, p, o));
  }
  // f(index of x, index of w) for every tap of one output.
  template <class F>
  void taps(int64_t s, int64_t r, int64_t p, int64_t o, F&& f) const {
    for (int64_t i = 0; i < c.C; ++i)
      for (int64_t t = 0; t < c.kT; ++t)
        for (int64_t k = 0; k < c.kW; ++k) {
          int64_t row = r * conf.stride + t * conf.dilation;
          int64_t column = p + (k - c.kW / 2) * conf.dilation;
          if (column < 0 || column >= c.W) continue;
          f(((s * c.rows_in + row) * c.W + column) * c.C + i,
            ((o * c.C + i) * c.kT + t) * c.kW + k);
        }
  }
};

void check_near(const Tensor& got, const ExpectedConv& e, double eps, const char* what) {
  std::vector<double> g = got.to_vector();
  double worst = 0;
  for (size_t i = 0; i < g.size(); ++i) {
    double error = std::abs(g[i] - e.value[i]);
    if (error > 0) error /= e.bound[i] + 1e-300;
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  }
  CHECK_MESSAGE(worst < eps, what);
}

void check_case(const ConvCase& given, const std::vector<int64_t>& tokens, Dtype dtype) {
  Setup u(given, tokens, dtype);
  INFO(join(dtype, " B ", given.B, " rows ", given.rows_in, " W ", given.W, " ", given.C, " -> ",
            given.O, " kernel ", given.kT, "x", given.kW, " dilation ", given.conf.dilation,
            " stride ", given.conf.stride));
  double eps = dtype == Dtype::f64 ? 1e-14 : 3e-6;
  std::vector<double> x = u.x.to_vector(), w = u.w.to_vector(), dy = u.dy.to_vector();
  cpu::conv2d(u.y, u.x, u.w, u.b, u.conf);
  ExpectedConv y(u.y.numel());
  u.each([&](int64_t s, int64_t r, int64_t p, int64_t o, int64_t at) {
    if (given.bias) y.add(at, u.b.to_vector()[size_t(o)]);
    u.taps(s, r, p, o, [&](int64_t i, int64_t j) { y.add(at, x[size_t(i)] * w[size_t(j)]); });
    if (given.conf.relu) y.value[size_t(at)] = std::max(y.value[size_t(at)], 0.0);
  });
  check_near(u.y, y, eps, "y");

  std::vector<double> made = u.y.to_vector();
  ExpectedConv dx(u.x.numel()), dw(u.w.numel()), db(given.O);
  for (size_t i = 0; i < dw.value.size(); ++i) dw.add(int64_t(i), 1);
  for (int64_t o = 0; o < given.O; ++o) db.add(o, 2);
  u.each([&](int64_t s, int64_t r, int64_t p, int64_t o, int64_t at) {
    double g = given.conf.relu && !(made[size_t(at)] > 0) ? 0 : dy[size_t(at)];
    db.add(o, g);
    u.taps(s, r, p, o, [&](int64_t i, int64_t j) {
      dx.add(i, g * w[size_t(j)]);
      dw.add(j, g * x[size_t(i)]);
    });
  });
  Tensor first_dx, first_dw, first_db;
  for (int n : {1, 2, 3}) {
    test::Threads set(n);
    Tensor again = Tensor::like(u.y), gx = Tensor::like(u.x);
    Tensor gw = Tensor::full(u.w.shape(), 1, dtype), gb = Tensor::full({given.O}, 2, dtype);
    cpu::conv2d(again, u.x, u.w, u.b, u.conf);
    CHECK_MESSAGE(test::same_bits(again, u.y), n << " threads change y");
    cpu::conv2d_backward(gx, gw, gb, u.dy, u.x, u.w, u.y, u.conf);
    if (n == 1) {
      first_dx = gx, first_dw = gw, first_db = gb;
      check_near(gx, dx, eps, "dx");
      check_near(gw, dw, eps, "dw");
      check_near(gb, db, eps, "db");
    }
    CHECK_MESSAGE(test::same_bits(gx, first_dx), n << " threads change dx");
    CHECK_MESSAGE(test::same_bits(gw, first_dw), n << " threads change dw");
    CHECK_MESSAGE(test::same_bits(gb, first_db), n << " threads change db");
  }
  // Gradients that are not wanted are left out, and the others stay as they are.
  Tensor alone = Tensor::full({given.O}, 2, dtype), image = Tensor::like(u.x);
  cpu::conv2d_backward({}, {}, alone, u.dy, u.x, u.w, u.y, u.conf);
  CHECK(test::same_bits(alone, first_db));
  cpu::conv2d_backward(image, {}, {}, u.dy, u.x, u.w, u.y, u.conf);
  CHECK(test::same_bits(image, first_dx));
}

void check_both(const ConvCase& c, const std::vector<int64_t>& tokens = {}) {
  check_case(c, tokens, Dtype::f32);
  check_case(c, tokens, Dtype::f64);
}

}  // namespace

TEST_CASE("conv2d at odd sizes") {
  for (int64_t rows : {3, 5, 33, 63, 100, 257}) {
    check_both({.B = 1, .rows_in = rows, .W = 7, .C = 3, .O = 5, .conf = {.relu = true}});
  }
  for (int64_t W : {1, 2, 3, 31, 32, 33}) check_both({.rows_in = 7, .W = W});
  for (int64_t C : {1, 2, 16, 17, 31}) check_both({.W = 4, .C = C, .O = 33 - C});
}

TEST_CASE("conv2d with dilation, stride, halos and lengths") {
  for (int64_t dilation : {1, 2}) {
    for (int64_t stride : {1, 2, 3}) {
      for (bool relu : {false, true}) {
        check_both({.B = 3,
                    .rows_in = 141,
                    .W = 6,
                    .C = 8,
                    .O = 12,
                    .conf = {.dilation = dilation,
                             .stride = stride,
                             .relu = relu,
                             .halo_before = 4,
                             .halo_after = 1,
                             .row_stride = stride}},
                   {141, 70, 0});
      }
    }
  }
  check_both({.rows_in = 70,
              .W = 16,
              .C = 24,
              .O = 24,
              .bias = false,
              .conf = {.dilation = 2, .halo_before = 2}});
}

TEST_CASE("conv2d of one by one is a product") {
  check_both({.rows_in = 131,
              .W = 5,
              .C = 24,
              .O = 12,
              .kT = 1,
              .kW = 1,
              .bias = false,
              .conf = {.halo_before = 1}},
             {131, 64});
  check_both({.rows_in = 31, .W = 5, .C = 3, .O = 2, .kT = 1, .kW = 1, .conf = {.relu = true}});
  check_both({.rows_in = 31, .W = 5, .C = 3, .O = 2, .kT = 1, .kW = 1, .conf = {.stride = 2}});
  check_both({.rows_in = 31, .W = 5, .C = 3, .O = 2, .kT = 2, .kW = 5});
}
