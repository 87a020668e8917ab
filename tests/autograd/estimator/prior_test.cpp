// The Performer's prior against naive f64 sums, its gradients, and its step against the whole pass.
#include <cmath>

#include "autograd/ops.h"
#include "tests/estimator_oracle.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

// The prior by its definition: a column's keys one at a time.
Values naive_prior(const std::vector<Tensor>& x, bool causal, const std::vector<int64_t>& lengths,
                   ColumnGrid grid, double floor = 0) {
  const int64_t H = x[2].dim(1), T = x[2].dim(2), m = x[2].dim(3), group = H / x[3].dim(1);
  const Array scores(x[0]), g(x[1]), q(x[2]), k(x[3]);
  Values y =
      of_columns(scores.shape, T, causal, lengths, grid,
                 [&](const Coordinates& at, int64_t t, int64_t w, int64_t first, int64_t end) {
                   auto mass = [&](int64_t from, int64_t to) {
                     double sum = 0;
                     for (int64_t s = from; s < to; ++s) {
                       for (int64_t j = 0; j < m; ++j)
                         sum += q(at[0], at[1], t, j) * k(at[0], at[1] / group, s, j);
                     }
                     return sum;
                   };
                   const double share = std::max(floor, mass(first, end) / mass(0, w));
                   return g(at[1]) * std::log(double(w) / double(end - first) * share);
                 });
  for (size_t i = 0; i < y.size(); ++i) y[i] += scores.values[i];
  return y;
}

void check_prior(const EstimatorSizes& s, int64_t K, bool causal,
                 const std::vector<int64_t>& lengths, ColumnGrid grid, int64_t group = 1,
                 double floor = 0) {
  const int64_t step = grid.step;
  const Visibility visible{.causal = causal, .lengths = lengths_of(lengths)};
  check_op(
      {.name = join("performer_prior T=", s.T, " K=", K, " step=", step, " units=", grid.units),
       .inputs = {normal({s.B, s.H, (s.T + step - 1) / step, K}, 1), uniform({s.H}, 2, 0.5, 1.5),
                  uniform({s.B, s.H, s.T, s.m}, 3, 0.1, 1),
                  uniform({s.B, s.H / group, s.T, s.m}, 4, 0.1, 1)},
       .f = [=](In x) { return performer_prior(x[0], x[1], x[2], x[3], visible, grid, floor); },
       .oracle = [=](In x) { return naive_prior(x, causal, lengths, grid, floor); },
       .tolerance = 1e-4});
}

}  // namespace

TEST_CASE("performer_prior: columns with and without keys, lengths, skipped rows") {
  for (int64_t T : {1, 3, 17, 33, 65}) check_prior({1, 2, T, 5, 0}, 8, true, {}, 1);
  check_prior({2, 2, 37, 9, 0}, 5, true, {37, 20}, 1);
  check_prior({1, 2, 19, 3, 0}, 4, true, {}, 4);
  check_prior({3, 1, 21, 4, 0}, 6, false, {21, 3, 0}, 1);
}

TEST_CASE("performer_prior: heads of queries share the features of a group of keys") {
  check_prior({2, 4, 19, 5, 0}, 6, true, {19, 11}, 1, 2);
  check_prior({1, 6, 23, 3, 0}, 5, false, {}, 1, 6);
  check_prior({1, 3, 40, 4, 0}, 7, true, {}, 3, 3);
}

TEST_CASE("performer_prior: a share below the floor is the floor and has no gradient") {
  // Between the shares of ordinary columns, 1 / 8 and less, so that some are below it.
  check_prior({1, 2, 33, 4, 0}, 8, true, {}, 1, 1, 0.11);
  check_prior({1, 2, 21, 4, 0}, 6, false, {17}, 1, 2, 0.17);
  // A column without mass: finite, and no gradient reaches its keys.
  Tensor q = uniform({1, 1, 8, 2}, 1, 0.5, 1, Dtype::f64), k = q.clone();
  for (int64_t i = 8; i < 12; ++i) k.data<double>()[i] = 0;  // keys 4 and 5: column 2 of row 7
  const Tensor gain = Tensor::full({1}, 1.0, Dtype::f64);
  const Tensor scores = Tensor::zeros({1, 1, 8, 4}, Dtype::f64);
  Tensor dy = Tensor::zeros(scores.shape(), Dtype::f64);
  dy.data<double>()[7 * 4 + 2] = 1;
  const Run made =
      run([&](In x) { return performer_prior(scores, gain, x[0], x[1], {}, 1, 1e-7); }, {q, k}, dy);
  CHECK(made.y.to_vector()[7 * 4 + 2] == doctest::Approx(std::log(8.0 / 2 * 1e-7)));
  CHECK(largest(made.grads[0].to_vector()) == 0);
  CHECK(largest(made.grads[1].to_vector()) == 0);
}

TEST_CASE("performer_prior: heads that the groups do not divide are refused") {
  const Tensor q = uniform({1, 4, 6, 2}, 1, 0.1, 1), scores = normal({1, 4, 6, 3}, 2);
  const Tensor gain = Tensor::full({4}, 1.0);
  CHECK_REFUSES(performer_prior(scores, gain, q, uniform({1, 3, 6, 2}, 1, 0.1, 1), {}),
                "performer_prior", "[1, 4, 6, 2]", "[1, 3, 6, 2]");
  CHECK_REFUSES(performer_prior(scores, gain, q, q, {}, 1, -1), "performer_prior", "floor", "-1");
}

TEST_CASE("performer_prior: long columns, and bands of many rows") {
  // K = 20, 33: rows whose columns have up to 2 keys use sums over windows, later ones prefix sums.
  check_prior({1, 4, 131, 5, 0}, 20, true, {}, 1, 2);
  check_prior({2, 2, 143, 9, 0}, 33, true, {143, 90}, 2);
  // From 256 rows on they are divided; the second part of a short sequence sees no key.
  check_prior({2, 4, 270, 3, 0}, 24, true, {270, 100}, 1, 2);
  check_prior({1, 2, 521, 3, 0}, 24, true, {400}, 2);
  check_prior({2, 2, 270, 3, 0}, 8, true, {0, 270}, 1);
  check_prior({1, 2, 9, 3, 0}, 1, true, {}, 1);
  check_prior({1, 2, 60, 4, 0}, 3, true, {}, 1);
  check_prior({1, 1, 50, 17, 0}, 2, true, {}, 7, 1, 0.4);
  check_prior({2, 2, 300, 3, 0}, 290, true, {300, 299}, 1);
  check_prior({1, 1, 600, 2, 0}, 5, false, {}, 1);
}

TEST_CASE(
    "performer_prior: columns of several units, whose borders fall on every second key or so") {
  // K = 9: units of 2 keys from 36 keys on, of 4 from 72, 8 from 144. Windows and prefix sums.
  check_prior({1, 4, 131, 5, 0}, 9, true, {}, {1, 2}, 2);
  check_prior({2, 2, 150, 4, 0}, 9, true, {150, 77}, {3, 2});
  check_prior({2, 1, 150, 3, 0}, 8, false, {150, 67}, {1, 3});
  // 40 columns of one or two units from 80 keys on, of two to four from 160 on: windows.
  check_prior({1, 2, 340, 3, 0}, 40, true, {}, {1, 1}, 2);
  check_prior({2, 2, 420, 3, 0}, 40, true, {420, 333}, {1, 2}, 1, 0.02);
  check_prior({1, 2, 420, 3, 0}, 40, true, {}, {4, 2});
}

TEST_CASE("performer_prior, pooled_prior: rows have the same bits whatever follows them") {
  const int64_t K = 24, T = 300, cut = 200, units = 2;
  const Tensor q = uniform({1, 4, T, 5}, 1, 0.1, 1), k = uniform({1, 2, T, 5}, 2, 0.1, 1);
  const Tensor scores = normal({1, 4, T, K}, 3), gain = uniform({4}, 4, 0.5, 1.5);
  auto first = [&](const Tensor& x) { return x.slice(2, 0, cut).contiguous(); };
  CHECK(same_bits(first(performer_prior(scores, gain, q, k, {})),
                  performer_prior(first(scores), gain, first(q), first(k), {})));
  CHECK(same_bits(first(pooled_prior(scores, gain, q, k, {})),
                  pooled_prior(first(scores), gain, first(q), first(k), {})));
  // Windows, and with 9 columns also prefix sums.
  for (const int64_t columns : {K, int64_t(9)}) {
    const ColumnGrid grid(1, units);
    const Tensor x = scores.slice(3, 0, columns).contiguous();
    CHECK(same_bits(first(performer_prior(x, gain, q, k, {}, grid)),
                    performer_prior(first(x), gain, first(q), first(k), {}, grid)));
    CHECK(same_bits(first(pooled_prior(x, gain, q, k, {}, grid)),
                    pooled_prior(first(x), gain, first(q), first(k), {}, grid)));
  }
}

TEST_CASE("performer_prior: no rows at all, with and without skipped ones") {
  for (int64_t step : {1, 2, 3}) {
    check_prior({1, 2, 0, 4, 0}, 8, true, {}, step);
  }
}

TEST_CASE("performer_prior: a column of small mass among large ones keeps its digits in f32") {
  const int64_t T = 2048, K = 16;
  Tensor q = uniform({1, 1, T, 3}, 1, 0.5, 1), k = uniform({1, 1, T, 3}, 2, 0.5, 1).clone();
  for (int64_t s = 1920; s < 2048; ++s) {
    for (int64_t j = 0; j < 3; ++j) k.data<float>()[s * 3 + j] *= 1e-7f;
  }
  Tensor gain = Tensor::full({1}, 1.0), scores = Tensor::zeros({1, 1, T, K});
  Values y = performer_prior(scores, gain, q, k, {}).to_vector();
  Values expected =
      naive_prior({scores.to(Dtype::f64), gain.to(Dtype::f64), q.to(Dtype::f64), k.to(Dtype::f64)},
                  true, {}, 1);
  CHECK(expected.back() < -15);
  CHECK(close(y, expected, 1e-6, 1e-6));
}

namespace {

// Sums by units of the keys k [B, G, T, m], each sequence as far as it was asked for.
struct UnitSums {
  UnitSums(const Tensor& k, int64_t rows, int64_t K, int64_t units)
      : UnitSums(k, rows, K, units, k.dtype()) {}
  UnitSums(const Tensor& k, int64_t rows, int64_t K, int64_t units, Dtype stored)
      : k(k),
        rows(Tensor::zeros({k.dim(0), k.dim(1), rows, k.dim(3)}, stored)),
        lengths(size_t(k.dim(0)), 0),
        K(K),
        units(units) {}

  void append_until(const std::vector<int64_t>& width) {
    for (int64_t b = 0; b < k.dim(0); ++b) {
      for (int64_t& at = lengths[size_t(b)]; at < width[size_t(b)]; ++at) {
        append_to_units(rows.slice(0, b, 1), k.slice(0, b, 1).slice(2, at, 1),
                        Tensor::from(std::vector<int64_t>{at}, {1}), K, units);
      }
    }
  }

  Tensor k, rows;
  std::vector<int64_t> lengths;
  int64_t K, units;
};

}  // namespace

TEST_CASE("performer_prior_step gives the rows of the causal pass, each sequence at its own pace") {
  const int64_t B = 2, H = 4, G = 2, T = 70, m = 5, K = 8;
  const double floor = 0.11;  // above some shares
  for (auto [type, units] :
       {std::pair{Dtype::f32, 0}, {Dtype::f64, 0}, {Dtype::f32, 2}, {Dtype::f64, 3}}) {
    const Tensor q = uniform({B, H, T, m}, 1, 0.1, 1, type), gain = uniform({H}, 4, 0.5, 1.5, type);
    const Tensor k = uniform({B, G, T, m}, 2, 0.1, 1, type), scores = normal({B, H, T, K}, 3, type);
    const Tensor full = performer_prior(scores, gain, q, k, {}, {1, units}, floor);
    Tensor borders = Tensor::zeros({B, G, K + 1, border_columns(m)}, Dtype::f64);
    Tensor at = Tensor::zeros({B}, Dtype::i64);
    UnitSums sums(k, units ? 2 * units * K : T, K, units);
    for (std::vector<int64_t> width :
         {std::vector<int64_t>{1, 30}, {2, 31}, {3, 31}, {40, 47}, {41, 70}, {70, 70}}) {
      const std::vector<int64_t> row = {width[0] - 1, width[1] - 1};
      sums.append_until(width);
      const Tensor y =
          performer_prior_step(borders, at, rows_at(scores, row), gain, rows_at(q, row), sums.rows,
                               Tensor::from(width, {B}), floor, units);
      CHECK(close_to_scale(y, rows_at(full, row), type == Dtype::f64 ? 1e-12 : 1e-5));
      CHECK(at.to_vector() == std::vector<double>(width.begin(), width.end()));
    }
    const Tensor back = Tensor::from(std::vector<int64_t>{70, 69}, {B});
    CHECK_REFUSES(performer_prior_step(borders, at, rows_at(scores, {0, 0}), gain,
                                       rows_at(q, {0, 0}), k, back),
                  "performer_prior_step", "sequence 1", "70", "69");
    CHECK_REFUSES(
        performer_prior_step(borders, at, rows_at(scores, {0, 0}), gain, rows_at(q, {0, 0}),
                             k.slice(2, 0, 9).contiguous(), at, floor, units),
        "performer_prior_step", "70");
  }
}

TEST_CASE("performer_prior_step on sums in bf16: the sums are rounded, the products are exact") {
  const int64_t B = 2, H = 4, G = 2, T = 140, m = 5, K = 8, units = 2;
  const Tensor q = uniform({B, H, T, m}, 1, 0.1, 1), k = uniform({B, G, T, m}, 2, 0.1, 1);
  const Tensor gain = uniform({H}, 4, 0.5, 1.5), scores = normal({B, H, T, K}, 3);
  UnitSums sums(k, 2 * units * K, K, units, Dtype::bf16), exact(k, 2 * units * K, K, units);
  for (std::vector<int64_t> width : {std::vector<int64_t>{1, 30}, {33, 70}, {64, 140}}) {
    sums.append_until(width);
    exact.append_until(width);
    const std::vector<int64_t> row = {width[0] - 1, width[1] - 1};
    auto step = [&](const Tensor& rows) {
      Tensor borders = Tensor::zeros({B, G, K + 1, border_columns(m)}, Dtype::f64);
      Tensor at = Tensor::zeros({B}, Dtype::i64);
      return performer_prior_step(borders, at, rows_at(scores, row), gain, rows_at(q, row), rows,
                                  Tensor::from(width, {B}), 0, units);
    };
    CHECK(same_bits(step(sums.rows), step(sums.rows.to(Dtype::f32))));
    for (int64_t b = 0; b < B; ++b) {
      // Every addition rounds to 8 bits: of up to 8 keys, and of pairs as units double.
      const int64_t rows = unit_rows(width[size_t(b)], K, units);
      auto values = [&](const Tensor& x) {
        return x.slice(0, b, 1).slice(2, 0, rows).contiguous().to_vector();
      };
      CHECK(close(values(sums.rows), values(exact.rows), 0, 10.0 / 256));
      CHECK(values(sums.rows) != values(exact.rows));
    }
  }
  // 1 + 2^-9 is 1 in bf16, 1 + 2^-7 is exact.
  const Tensor rows = Tensor::full({1, 1, 8, 1}, 1.0).to(Dtype::bf16);
  for (double add : {1.0 / 512, 1.0 / 128}) {
    const Tensor total = rows.clone();
    append_to_units(total, Tensor::full({1, 1, 1, 1}, add),
                    Tensor::from(std::vector<int64_t>{17}, {1}), 4, 1);
    const double kept = add < 0.004 ? 1.0 : 1 + add;
    CHECK(total.to_vector()[17 / 4] == kept);
  }
}

TEST_CASE("append_to_units: the sums of units of keys, which double as a row grows") {
  const int64_t B = 2, G = 3, T = 100, m = 5, K = 4;
  const Tensor k = uniform({B, G, T, m}, 1, 0.1, 1, Dtype::f64);
  for (int64_t units : {0, 1, 3}) {
    UnitSums sums(k, units ? 2 * units * K : T, K, units);
    for (int64_t w = 1; w <= T; ++w) {
      sums.append_until({w, std::max<int64_t>(1, w - 7)});  // the second one is shorter
      for (int64_t b = 0; b < B; ++b) {
        const int64_t length = sums.lengths[size_t(b)];
        int64_t unit = 1;
        while (units && length >= 2 * unit * units * K) unit *= 2;
        const int64_t rows = unit_rows(length, K, units);
        REQUIRE(rows == (length + unit - 1) / unit);
        Values expected(size_t(G * rows * m), 0.0);
        for (int64_t g = 0; g < G; ++g) {
          for (int64_t i = 0; i < length * m; ++i) {
            expected[size_t((g * rows + i / m / unit) * m + i % m)] +=
                k.data<double>()[(b * G + g) * T * m + i];
          }
        }
        const Tensor made = sums.rows.slice(0, b, 1).slice(2, 0, rows).contiguous();
        CHECK(close(made.to_vector(), expected, 1e-14, 1e-14));
      }
    }
    const Tensor row = k.slice(2, 0, 1).contiguous();
    const Tensor full = Tensor::from(std::vector<int64_t>{30, 3}, {B});
    CHECK_REFUSES(append_to_units(sums.rows.slice(2, 0, 7).contiguous(), row, full, K, units),
                  "append_to_units", "sequence 0", "there are 7");
  }
  // Where units double, the rows before count, too: 7 keys of one row each, then 4 of two.
  const Tensor few = Tensor::zeros({1, 1, 4, m}, Dtype::f64),
               row = Tensor::zeros({1, 1, 1, m}, Dtype::f64);
  CHECK_REFUSES(append_to_units(few, row, Tensor::from(std::vector<int64_t>{7}, {1}), K, 1),
                "append_to_units", "needs 7 rows", "there are 4");
}

TEST_CASE("sum_units: sums in order by units of rows, up to each length") {
  const int64_t B = 3, G = 2, T = 50, m = 4;
  for (Dtype type : {Dtype::f32, Dtype::f64}) {
    const Tensor x = normal({B, G, T, m}, 3, type);
    const Values all = x.to_vector();
    const std::vector<int64_t> lengths = {50, 0, 17}, units = {1, 2, 5};
    for (int64_t R : {1, 4, 50}) {
      Values expected(size_t(B * G * R * m), 0.0);
      for (int64_t n = 0; n < B * G; ++n) {
        for (int64_t t = 0; t < lengths[size_t(n / G)]; ++t) {
          const int64_t r = t / units[size_t(n / G)];
          for (int64_t c = 0; r < R && c < m; ++c) {
            expected[size_t((n * R + r) * m + c)] += all[size_t((n * T + t) * m + c)];
          }
        }
      }
      for (int threads : {1, 2, 3}) {
        const Threads set(threads);
        CHECK(sum_units(x, Tensor::from(lengths, {B}), Tensor::from(units, {B}), R, Dtype::f64)
                  .to_vector() == expected);
      }
      const Tensor same =
          sum_units(x, Tensor::from(lengths, {B}), Tensor::from(units, {B}), R, type);
      CHECK(same.dtype() == type);
      CHECK(close(same.to_vector(), expected, 1e-6, 1e-6));
    }
    const Tensor one = Tensor::full({B}, 1, Dtype::i64), none = Tensor::zeros({B}, Dtype::i64);
    CHECK_REFUSES(sum_units(x, Tensor::full({B}, 51, Dtype::i64), one, 1, type), "sum_units",
                  "length 51", "0..50");
    CHECK_REFUSES(sum_units(x, one, none, 1, type), "sum_units", "unit 0", "at least 1");
    CHECK_REFUSES(sum_units(x, one, one, 1, Dtype::bf16), "sum_units", "cannot be bf16");
  }
}

}  // namespace brine::test
