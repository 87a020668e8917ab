// Maps of attention: cells against sums over every entry, rows against formulas in double.
#include "distill/maps/head_maps.h"

#include <doctest/doctest.h>

#include "autograd/ops.h"
#include "distill/maps/text_pass.h"
#include "tests/sparse_oracle.h"

namespace brine::test {
namespace {

using namespace brine::distill;

constexpr int64_t H = 2, T = 37, K = 8, kKept = 5, d = 4;

// A layer with a random teacher and estimate, and the mask that the estimate selects.
LayerView layer_view(bool causal, uint64_t seed) {
  const Visibility visible{.causal = causal};
  LayerView view{.causal = causal};
  view.teacher.q = normal({1, H, T, d}, seed).to(Dtype::f32);
  view.teacher.k = normal({1, H, T, d}, seed + 1).to(Dtype::f32);
  view.estimate = column_softmax(normal({1, H, T, K}, seed + 2).to(Dtype::f32), visible);
  view.selected =
      select_columns(view.estimate, visible, {.k = kKept, .mode = SelectMode::per_query}).selected;
  view.mask = build_csr(view.selected, visible, kKept);
  view.probabilities = uniform({view.mask.entries()}, seed + 3, 0, 1).to(Dtype::f32);
  return view;
}

// softmax(q k^T / sqrt(d)) of one row in double.
std::vector<double> teacher_row(const LayerView& view, int64_t h, int64_t t) {
  const float *q = view.teacher.q.data<float>(), *k = view.teacher.k.data<float>();
  std::vector<double> out(size_t(T), 0.0);
  double sum = 0;
  for (int64_t j = 0; j < (view.causal ? t + 1 : T); ++j) {
    double dot = 0;
    for (int64_t i = 0; i < d; ++i)
      dot += double(q[(h * T + t) * d + i]) * double(k[(h * T + j) * d + i]);
    sum += out[size_t(j)] = std::exp(dot / std::sqrt(double(d)));
  }
  for (double& x : out) x /= sum;
  return out;
}

}  // namespace

TEST_CASE("maps: blocks cover every token once and differ by one at most") {
  for (const auto& [items, cells] :
       {std::pair<int64_t, int64_t>{37, 8}, {37, 37}, {5, 1}, {9, 4}}) {
    const Blocks blocks(items, cells);
    for (int64_t i = 0; i < items; ++i) {
      CHECK(blocks.begin(blocks.of(i)) <= i);
      CHECK(i < blocks.begin(blocks.of(i) + 1));
    }
    for (int64_t c = 0; c < cells; ++c) {
      CHECK(blocks.size(c) >= items / cells);
      CHECK(blocks.size(c) <= (items + cells - 1) / cells);
    }
  }
  CHECK_THROWS_AS(Blocks(3, 4), Error);
  CHECK_THROWS_AS(Blocks(3, 0), Error);
  CHECK(Blocks(37, 8).refines(Blocks(37, 4)));
  CHECK_FALSE(Blocks(37, 8).refines(Blocks(37, 3)));
  CHECK_FALSE(Blocks(37, 8).refines(Blocks(38, 4)));
}

TEST_CASE("maps: rows and ranges of a cell map are the sums and maxima of its entries") {
  const Blocks rows(7, 3), columns(11, 4);
  CellMap by_row(rows, columns), by_range(rows, columns), by_entry(rows, columns);
  for (int64_t r = 0; r < 7; ++r) {
    std::vector<float> values;
    for (int64_t c = 0; c < 11; ++c) values.push_back(float((r * 5 + c * 3) % 7));
    const int64_t n = r + 3;  // entries of this row
    by_row.add_row(r, values.data(), n);
    for (int64_t c = 0; c < n; ++c) by_entry.add(r, c, values[size_t(c)]);
    by_range.add_range(r, r, r + 4, float(r));
  }
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < 4; ++c) {
      CHECK(by_row.sum(r, c) == by_entry.sum(r, c));
      CHECK(by_row.most(r, c) == by_entry.most(r, c));
      CHECK(by_row.mass(r, c) == by_entry.sum(r, c) / float(rows.size(r)));
    }
  }
  CellMap naive(rows, columns);
  for (int64_t r = 0; r < 7; ++r) {
    for (int64_t c = r; c < r + 4; ++c) naive.add(r, c, float(r));
  }
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < 4; ++c) {
      CHECK(by_range.sum(r, c) == naive.sum(r, c));
      CHECK(by_range.most(r, c) == naive.most(r, c));
    }
  }
}

TEST_CASE("maps: coarser cells are those of the entries, not of the cells") {
  CellMap fine(Blocks(37, 12), Blocks(37, 12)), coarse(Blocks(37, 4), Blocks(37, 4));
  for (int64_t r = 0; r < 37; ++r) {
    for (int64_t c = 0; c <= r; ++c) {
      const auto value = float((r * 13 + c * 7) % 17);
      fine.add(r, c, value);
      coarse.add(r, c, value);
    }
  }
  const CellMap made = fine.coarser(Blocks(37, 4), Blocks(37, 4));
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < 4; ++c) {
      CHECK(made.mass(r, c) == doctest::Approx(coarse.mass(r, c)));
      CHECK(made.most(r, c) == coarse.most(r, c));
    }
  }
  CHECK_THROWS_AS(fine.coarser(Blocks(37, 5), Blocks(37, 4)), Error);
}

TEST_CASE("maps: tiles of the teacher's attention are its softmax, in any number of rows") {
  for (const bool causal : {true, false}) {
    const LayerView view = layer_view(causal, 11);
    for (int64_t h = 0; h < H; ++h) {
      for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, T}, {5, 1}, {30, 7}}) {
        const Tensor tile = teacher_tile(view, h, first, count);
        REQUIRE(tile.shape() == Shape{count, T});
        for (int64_t t = first; t < first + count; ++t) {
          const std::vector<double> wanted = teacher_row(view, h, t);
          for (int64_t j = 0; j < T; ++j) {
            CHECK(tile.data<float>()[(t - first) * T + j] ==
                  doctest::Approx(wanted[size_t(j)]).epsilon(1e-5));
          }
        }
      }
    }
  }
}

TEST_CASE("maps: the widened estimate gives each key its column's share, and sums to 1") {
  for (const bool causal : {true, false}) {
    const LayerView view = layer_view(causal, 21);
    std::vector<KeyMass> row;
    for (int64_t t : {0, 3, 20, 36}) {
      const int64_t w = causal ? t + 1 : T;
      widen_row(view, 1, t, row);
      const std::vector<int64_t> column = columns_of_keys(w, K);
      const float* p = view.estimate.data<float>() + (T + t) * K;
      double sum = 0, all = 0;
      for (int64_t j = 0; j < w; ++j) all += double(p[column[size_t(j)]]);
      int64_t next = 0;
      for (const KeyMass& each : row) {
        CHECK(each.first == next);
        for (int64_t j = each.first; j < each.behind; ++j) {
          CHECK(each.mass == doctest::Approx(p[column[size_t(j)]] / all).epsilon(1e-5));
          sum += double(each.mass);
        }
        next = each.behind;
      }
      CHECK(next == w);
      CHECK(sum == doctest::Approx(1).epsilon(1e-5));
    }
  }
}

TEST_CASE("maps: every map of a head is the sum over the entries of its layer") {
  for (const bool causal : {true, false}) {
    const LayerView view = layer_view(causal, 31);
    MapCollector collector({.cells = 6});
    collector.add(0, view);
    const TextMaps maps = collector.take();
    CHECK(maps.cells == 6);
    CHECK(maps.columns == K);
    REQUIRE(maps.heads.size() == size_t(H));
    const Blocks tokens(T, 6), columns(K, 4);  // the side below 6
    std::vector<double> received(size_t(T), 0.0);
    for (int64_t h = 0; h < H; ++h) {
      CellMap teacher(tokens, tokens), mask(tokens, tokens), student(tokens, tokens),
          estimate(tokens, columns), selected(tokens, columns);
      for (int64_t t = 0; t < T; ++t) {
        const std::vector<double> row = teacher_row(view, h, t);
        for (int64_t j = 0; j < T; ++j) {
          teacher.add(t, j, float(row[size_t(j)]));
          received[size_t(j)] += row[size_t(j)];
        }
        for (int64_t c = 0; c < K; ++c) {
          estimate.add(t, c, view.estimate.data<float>()[(h * T + t) * K + c]);
          selected.add(t, c, float(view.selected.data<uint8_t>()[(h * T + t) * K + c]));
        }
        const RowEntries entries = MaskRows(view.mask)(0, h, t);
        for (int64_t e = 0; e < entries.count; ++e) {
          const int64_t key = entries.columns[e] - h * T;
          mask.add(t, key, 1);
          student.add(t, key, view.probabilities.data<float>()[entries.first + e]);
        }
      }
      const HeadMaps& head_maps = maps.heads[size_t(h)];
      CHECK(head_maps.head == h);
      for (const auto& [got, wanted] : {std::pair(&head_maps.teacher, &teacher),
                                        {&head_maps.mask, &mask},
                                        {&head_maps.student, &student},
                                        {&head_maps.estimate, &estimate},
                                        {&head_maps.selected, &selected}}) {
        for (int64_t r = 0; r < 6; ++r) {
          for (int64_t c = 0; c < wanted->columns().cells(); ++c) {
            CHECK(got->mass(r, c) == doctest::Approx(wanted->mass(r, c)).epsilon(1e-4));
            CHECK(got->most(r, c) == doctest::Approx(wanted->most(r, c)).epsilon(1e-4));
          }
        }
      }
      double widened = 0;
      for (int64_t r = 0; r < 6; ++r) {
        for (int64_t c = 0; c < 6; ++c) widened += double(head_maps.widened.sum(r, c));
      }
      CHECK(widened == doctest::Approx(double(T)).epsilon(1e-4));
    }
    for (int64_t j = 0; j < T; ++j) {
      const double readers = double(H * (causal ? T - j : T));
      CHECK(maps.heat[0].teacher[size_t(j)] ==
            doctest::Approx(received[size_t(j)] / readers).epsilon(1e-4));
    }
  }
}

TEST_CASE("maps: only the layers and heads that were asked for, heat of all") {
  MapCollector collector({.cells = 4, .layers = {1}, .heads = {0}});
  for (int64_t layer = 0; layer < 3; ++layer) collector.add(layer, layer_view(true, 41));
  const TextMaps maps = collector.take();
  REQUIRE(maps.heads.size() == 1);
  CHECK(maps.heads[0].layer == 1);
  CHECK(maps.heads[0].head == 0);
  CHECK(maps.heat.size() == 3);
}

TEST_CASE("maps: sides of pictures fit their budget and consist of whole cells") {
  CHECK(cells_for(100, 4, 40000) == 100);
  CHECK(cells_for(100, 4, 39999) == 96);
  CHECK(cells_for(1024, 270, 3000000) == 96);
  CHECK(cells_for(1 << 20, 1, 1 << 30) == 384);
  CHECK(cells_for(3, 1000000, 10) == 1);
  CHECK(coarser_cells(1024, 96, 96) == 48);
  CHECK(coarser_cells(1024, 96, 48) == 32);
  CHECK(coarser_cells(1024, 192, 192) == 96);
  CHECK(coarser_cells(100, 100, 100) == 96);  // single tokens make any cells
  CHECK(coarser_cells(100, 100, 1) == 0);
  CHECK(coarser_cells(100, 1, 1) == 0);
  for (const int64_t cells : {384, 192, 128, 96, 64, 48, 32}) {
    for (int64_t next = coarser_cells(1000, cells, cells); next;
         next = coarser_cells(1000, cells, next))
      CHECK(Blocks(1000, cells).refines(Blocks(1000, next)));
  }
}

TEST_CASE("maps: a text of single tokens becomes coarser even if it has more columns than tokens") {
  LayerView view = layer_view(true, 71);
  constexpr int64_t kMany = 256;
  view.estimate = column_softmax(normal({1, H, T, kMany}, 72).to(Dtype::f32), {.causal = true});
  view.selected = Tensor();
  MapCollector collector({.cells = T});
  collector.add(0, view);
  const TextMaps fine = collector.take();
  CHECK(fine.heads[0].estimate.columns().cells() == 32);  // a side, not the number of tokens
  int64_t steps = 0;
  for (int64_t cells = T; (cells = coarser_cells(T, T, cells)) > 0; ++steps) {
    const TextMaps coarse = fine.coarser(cells);
    for (int64_t h = 0; h < H; ++h) {
      double before = 0, after = 0;
      const CellMap &a = fine.heads[size_t(h)].estimate, &b = coarse.heads[size_t(h)].estimate;
      CHECK(b.columns().cells() <= cells);
      for (int64_t r = 0; r < a.rows().cells(); ++r) {
        for (int64_t c = 0; c < a.columns().cells(); ++c) before += a.sum(r, c);
      }
      for (int64_t r = 0; r < b.rows().cells(); ++r) {
        for (int64_t c = 0; c < b.columns().cells(); ++c) after += b.sum(r, c);
      }
      CHECK(after == doctest::Approx(before));
    }
  }
  CHECK(steps == 7);  // 32, 24, 16, 8, 4, 2, 1
}

TEST_CASE("maps: cells that were asked for are rounded down to a side") {
  CHECK(cells_at_most(100, 1000) == 100);
  CHECK(cells_at_most(100, 99) == 96);
  CHECK(cells_at_most(1024, 100) == 96);
  CHECK(cells_at_most(1024, 200) == 192);
  CHECK(cells_at_most(16384, 16384) == 384);
  CHECK(cells_at_most(385, 385) == 384);
  CHECK(cells_at_most(1024, 1) == 1);
}

}  // namespace brine::test
