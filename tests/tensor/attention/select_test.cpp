// Selection of columns against full sorts, on groups of 1 and 32 lanes.
#include "tensor/kernels/select.h"

#include "tensor/base/math.h"
#include "tests/refusals.h"
#include "tests/sparse_oracle.h"

namespace brine::test {

TEST_CASE("columns own the keys of the written examples") {
  auto owners = [](int64_t w, int64_t K) {
    std::vector<int64_t> column;
    for (int64_t c = 0; c < K; ++c) {
      int64_t end = math::column_begin(c + 1, w, K);
      for (int64_t j = math::column_begin(c, w, K); j < end; ++j) column.push_back(c);
    }
    return column;
  };
  CHECK(owners(1, 8) == std::vector<int64_t>{3});
  CHECK(owners(5, 8) == std::vector<int64_t>{0, 2, 3, 5, 7});
  CHECK(owners(12, 8) == std::vector<int64_t>{0, 0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7});
  for (int64_t K : {1, 3, 8, 64}) {
    for (int64_t w = 0; w < 200; ++w) CHECK(owners(w, K) == columns_of_keys(w, K));
  }
}

TEST_CASE("order keys are ordered like the numbers") {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x = {-infinity, -3e38f, -1.0f, -1e-40f, 0.0f,
                          1e-45f,    1e-38f, 0.5f,  1.0f,    infinity};
  for (size_t i = 0; i + 1 < x.size(); ++i) {
    CHECK(order_key(x[i]) < order_key(x[i + 1]));
    CHECK(order_key(double(x[i])) < order_key(double(x[i + 1])));
  }
  CHECK(order_key(-0.0f) == order_key(0.0f));
  CHECK(order_key(-0.0) == order_key(0.0));
  CHECK(order_key(-infinity) > 0);
}

namespace {

template <class Group, class T>
std::vector<int> chosen(const std::vector<T>& values, int64_t take) {
  std::vector<OrderKey<T>> keys;
  for (T x : values) keys.push_back(order_key(x));
  std::vector<int> marks(values.size(), -1);
  select_largest(Group{}, keys.data(), int64_t(keys.size()), take,
                 [&](int64_t i, bool yes) { marks[size_t(i)] = yes; });
  return marks;
}

template <class T>
std::vector<int> chosen_by_sort(const std::vector<T>& values, int64_t take) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return values[a] != values[b] ? values[a] > values[b] : a > b;
  });
  std::vector<int> marks(values.size(), 0);
  for (int64_t i = 0; i < take; ++i) marks[order[size_t(i)]] = 1;
  return marks;
}

template <class T>
void check_selection(const Tensor& x) {
  Tensor t = x.to(DtypeOf<T>::value);
  std::vector<T> values(t.data<T>(), t.data<T>() + t.numel());
  int64_t n = t.numel();
  for (int64_t take : {int64_t(0), int64_t(1), n / 3, n / 2, n - 1, n}) {
    std::vector<int> wanted = chosen_by_sort(values, take);
    CHECK(chosen<LaneGroup<1>>(values, take) == wanted);
    CHECK(chosen<LaneGroup<32>>(values, take) == wanted);
    CHECK(chosen<LaneGroup<8>>(values, take) == wanted);
  }
}

}  // namespace

TEST_CASE("selection equals a full sort, ties included, for groups of 1, 8 and 32") {
  for (int64_t n : {1, 2, 3, 31, 32, 33, 63, 100, 257, 768}) {
    for (const Tensor& x : {normal({n}, uint64_t(n)), plateaus({n}, uint64_t(n), 3),
                            plateaus({n}, 7, 1), uniform({n}, 5, 0, 1e-30)}) {
      check_selection<float>(x);
      check_selection<double>(x);
    }
  }
}

TEST_CASE("select_columns equals the sorted reference in every mode") {
  for (const MaskCase& m : mask_cases()) {
    INFO(m.name());
    Shape shape{m.B, m.H, m.T, m.K};
    for (const Tensor& x :
         {uniform(shape, 11, 0, 1), plateaus(shape, 12, 2), plateaus(shape, 13, 1)}) {
      NaiveSelection wanted = naive_select(x.to_vector(), m);
      for (Dtype type : {Dtype::f32, Dtype::f64}) {
        Selection got = select_columns(x.to(type), m.visible(), m.config());
        CHECK(got.selected.to_vector() == wanted.selected);
        CHECK(got.n_sel.to_vector() == wanted.n_sel);
      }
      for (int n : {1, 2, 3}) {
        Threads set(n);
        CHECK(select_columns(x, m.visible(), m.config()).selected.to_vector() == wanted.selected);
      }
    }
  }
}

TEST_CASE("select_columns, build_csr: rows behind other keys are those of the whole") {
  const Shape shape{1, 3, 90, 8};
  for (SelectMode mode : {SelectMode::per_query, SelectMode::causal_per_batch}) {
    for (const Tensor& x : {uniform(shape, 11, 0, 1), plateaus(shape, 12, 2)}) {
      auto mask_of = [&](int64_t first) {
        const Visibility visible{.first = first};
        const Selection s = select_columns(x.slice(2, first, 90 - first), visible, {5, mode});
        return csr_to_mask(build_csr(s.selected, visible, 5, 90));
      };
      const Tensor whole = mask_of(0);
      for (int64_t first : {1, 4, 60}) {
        CHECK(mask_of(first).to_vector() == whole.slice(2, first, 90 - first).to_vector());
      }
    }
  }
  const Visibility padded{.lengths = lengths_of({90}), .first = 2};
  CHECK_REFUSES(select_columns(uniform(shape, 11, 0, 1), padded, {.k = 5}), "begin at 2");
}

TEST_CASE("budgets of the written table") {
  Tensor x = uniform({1, 12, 2048, 64}, 3, 0, 1);
  Selection got = select_columns(x, {}, {.k = 64});
  const int64_t* n = got.n_sel.data<int64_t>();
  std::vector<std::pair<int64_t, int64_t>> table = {{64, 768},  {128, 384}, {256, 192}, {512, 96},
                                                    {1000, 49}, {1024, 48}, {1500, 33}, {2048, 24}};
  for (auto [w, wanted] : table) CHECK(n[w - 1] == wanted);
}

TEST_CASE("a budget of exactly a half goes to the even neighbour, and stays in its bounds") {
  // H k K / w: 1 x 5 x 8 / 16 = 2.5 -> 2; 1 x 7 x 8 / 16 = 3.5 -> 4.
  CHECK(select_columns(uniform({1, 1, 16, 8}, 1, 0, 1), {}, {.k = 5}).n_sel.to_vector()[15] == 2);
  CHECK(select_columns(uniform({1, 1, 16, 8}, 1, 0, 1), {}, {.k = 7}).n_sel.to_vector()[15] == 4);
  // kK < T: at least one column per head.
  CHECK(select_columns(uniform({1, 3, 64, 4}, 1, 0, 1), {}, {.k = 2}).n_sel.to_vector()[63] == 3);
}

// Row by row.
static int64_t looped_entries(const Visibility& visible, const SelectConfig& c, int64_t B,
                              int64_t H, int64_t T, int64_t K) {
  const RowWidths widths(visible, T);
  auto group = [&](int64_t members, int64_t w) {
    if (w <= c.k) return members * w;
    return columns_to_select(members, c.k, K, w) * std::min(c.k, (w + K - 1) / K);
  };
  int64_t entries = 0;
  for (int64_t b = 0; b < B; ++b) {
    const int64_t rows = widths.valid(b);
    if (c.mode == SelectMode::per_head && rows) entries += H * group(rows, widths(b, 0));
    if (c.mode == SelectMode::per_batch && rows) entries += group(H * rows, widths(b, 0));
    for (int64_t t = 0; t < rows; ++t) {
      if (c.mode == SelectMode::per_query) entries += H * group(1, widths(b, t));
      if (c.mode == SelectMode::causal_per_batch) entries += group(H, widths(b, t));
    }
  }
  return entries;
}

TEST_CASE("the most entries of a selection, without a loop, are those of a loop over the rows") {
  int64_t shapes = 0;
  auto compare = [&](const Visibility& visible, const SelectConfig& c, int64_t B, int64_t H,
                     int64_t T, int64_t K) {
    CAPTURE(name_of(c.mode));
    CAPTURE(c.k);
    CAPTURE(H);
    CAPTURE(T);
    CAPTURE(K);
    CAPTURE(visible.causal);
    const int64_t wanted = looped_entries(visible, c, B, H, T, K);
    REQUIRE(max_selected_entries(visible, c, B, H, T, K) == wanted);
    ++shapes;
  };
  for (int64_t H : {1, 2, 3, 12}) {
    for (int64_t K : {1, 2, 3, 7, 8, 16, 31}) {
      for (int64_t k : {1, 2, 3, 4, 5, 8, 15, 40}) {
        for (int64_t T : {1, 2, 9, 33, 160, 701}) {
          const Tensor lengths =
              Tensor::from<int64_t>({T, 0, T / 2, T / 2, std::max<int64_t>(T - 1, 0)}, {5});
          for (SelectMode mode : {SelectMode::per_query, SelectMode::causal_per_batch}) {
            compare({.causal = true}, {k, mode}, 2, H, T, K);
            compare({.causal = true, .first = T / 2}, {k, mode}, 1, H, T, K);
            compare({.causal = true, .lengths = lengths}, {k, mode}, 5, H, T, K);
          }
          for (SelectMode mode : {SelectMode::per_query, SelectMode::causal_per_batch,
                                  SelectMode::per_head, SelectMode::per_batch}) {
            compare({.causal = false, .lengths = lengths}, {k, mode}, 5, H, T, K);
          }
          // A new row that sees all keys.
          compare({.causal = false, .lengths = Tensor::full({1}, double(T), Dtype::i64)},
                  {k, SelectMode::per_query}, 1, H, 1, K);
        }
      }
    }
  }
  compare({.causal = true}, {64, SelectMode::causal_per_batch}, 1, 12, 131072, 128);
  compare({.causal = true}, {64, SelectMode::per_query}, 1, 12, 131072, 256);
  CHECK(shapes > 10000);
}

TEST_CASE("NaN is refused where it counts and only there") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Visibility visible{true, Tensor::from(std::vector<int64_t>{5}, {1})};
  Tensor x = uniform({1, 2, 7, 8}, 2, 0, 1);
  Selection clean = select_columns(x, visible, {.k = 2});
  float* at = x.data<float>();
  at[6 * 8 + 1] = nan;  // a row of padding
  at[0 * 8 + 0] = nan;  // column 0 of a row that sees one key, which column 3 owns
  CHECK(same_bits(select_columns(x, visible, {.k = 2}).selected, clean.selected));
  at[(1 * 7 + 4) * 8 + 2] = nan;
  at[(1 * 7 + 4) * 8 + 4] = nan;
  CHECK_THROWS_WITH(select_columns(x, visible, {.k = 2}),
                    "select_columns: 1 values of the estimate are NaN");
  at[(1 * 7 + 4) * 8 + 3] = nan;
  CHECK_THROWS_WITH(select_columns(x, visible, {.k = 2}),
                    "select_columns: 2 values of the estimate are NaN");
}

TEST_CASE("selection refuses invalid arguments") {
  Tensor x = uniform({1, 2, 7, 8}, 2, 0, 1);
  CHECK_REFUSES(select_columns(x, {}, {.k = 2, .mode = SelectMode::per_head}), "select_columns",
                "per-head", "causal");
  CHECK_REFUSES(select_columns(x, {}, {.k = 2, .mode = SelectMode::per_batch}), "select_columns",
                "per-batch", "causal");
  CHECK_THROWS_WITH(select_columns(x, {}, {.k = 0}), "select_columns: k must be positive, got 0");
  Visibility visible{true, Tensor::from(std::vector<int64_t>{8}, {1})};
  CHECK_THROWS_WITH(select_columns(x, visible, {.k = 2}),
                    "select_columns: length 8 of sequence 0 is outside 0..7");
}

TEST_CASE("a single row that faces all keys is selected as in the full pass") {
  MaskCase m{.B = 2, .H = 3, .T = 29, .K = 8, .k = 4};
  Tensor x = uniform({m.B, m.H, m.T, m.K}, 21, 0, 1);
  Tensor full = csr_to_mask(build_csr(select_columns(x, {}, m.config()).selected, {}, m.k));
  for (int64_t t : {0, 3, 17, 28}) {
    Visibility visible{false, Tensor::from(std::vector<int64_t>{t + 1, t + 1}, {2})};
    Tensor row = x.slice(2, t, 1).contiguous();
    FlatCsr csr = build_csr(select_columns(row, visible, m.config()).selected, visible, m.k, m.T);
    CHECK(same_bits(csr_to_mask(csr), full.slice(2, t, 1).contiguous()));
  }
}

}  // namespace brine::test
