// Maps of attention: cells against sums over every entry, rows against formulas in double.
#include "distill/maps/head_maps.h"

#include <doctest/doctest.h>

#include "autograd/ops.h"
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
  const Tensor selected =
      select_columns(view.estimate, visible, {.k = kKept, .mode = SelectMode::per_query}).selected;
  view.mask = build_csr(selected, visible, kKept);
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

TEST_CASE("maps: rows and ranges of a cell map are the sums of its entries") {
  const Blocks tokens(11, 4);
  CellMap by_row(tokens), by_range(tokens), row_entries(tokens), range_entries(tokens);
  for (int64_t r = 0; r < 7; ++r) {
    std::vector<float> values;
    for (int64_t c = 0; c < 11; ++c) values.push_back(float((r * 5 + c * 3) % 7));
    const int64_t n = r + 3;  // entries of this row
    by_row.add_row(r, values.data(), n);
    for (int64_t c = 0; c < n; ++c) row_entries.add(r, c, c + 1, values[size_t(c)]);
    by_range.add(r, r, r + 4, float(r));
    for (int64_t c = r; c < r + 4; ++c) range_entries.add(r, c, c + 1, float(r));
  }
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < 4; ++c) {
      CHECK(by_row.sum(r, c) == row_entries.sum(r, c));
      CHECK(by_row.mass(r, c) == row_entries.sum(r, c) / float(tokens.size(r)));
      CHECK(by_range.sum(r, c) == range_entries.sum(r, c));
    }
  }
}

TEST_CASE("maps: coarser cells are those of the entries, not of the cells") {
  CellMap fine(Blocks(37, 12)), coarse(Blocks(37, 4));
  for (int64_t r = 0; r < 37; ++r) {
    for (int64_t c = 0; c <= r; ++c) {
      const auto value = float((r * 13 + c * 7) % 17);
      fine.add(r, c, c + 1, value);
      coarse.add(r, c, c + 1, value);
    }
  }
  const CellMap made = fine.coarser(Blocks(37, 4));
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < 4; ++c) CHECK(made.mass(r, c) == doctest::Approx(coarse.mass(r, c)));
  }
  CHECK_THROWS_AS(fine.coarser(Blocks(37, 5)), Error);
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
        for (int64_t j = each.first; j < each.end; ++j) {
          CHECK(each.mass == doctest::Approx(p[column[size_t(j)]] / all).epsilon(1e-5));
          sum += double(each.mass);
        }
        next = each.end;
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
    REQUIRE(maps.heads.size() == size_t(H));
    for (int64_t h = 0; h < H; ++h) {
      const CellMap none(Blocks(T, 6));
      HeadMaps wanted{.maps = {none, none, none, none}};
      for (int64_t t = 0; t < T; ++t) {
        const std::vector<double> row = teacher_row(view, h, t);
        for (int64_t j = 0; j < T; ++j)
          wanted[Picture::teacher].add(t, j, j + 1, float(row[size_t(j)]));
        const RowEntries entries = MaskRows(view.mask)(0, h, t);
        for (int64_t e = 0; e < entries.count; ++e) {
          const int64_t key = entries.columns[e] - h * T;
          wanted[Picture::mask].add(t, key, key + 1, 1);
          wanted[Picture::student].add(t, key, key + 1,
                                       view.probabilities.data<float>()[entries.first + e]);
        }
      }
      const HeadMaps& head = maps.heads[size_t(h)];
      CHECK(head.head == h);
      double estimated = 0;
      for (int64_t r = 0; r < 6; ++r) {
        for (int64_t c = 0; c < 6; ++c) {
          for (const Picture what : {Picture::teacher, Picture::mask, Picture::student})
            CHECK(head[what].mass(r, c) == doctest::Approx(wanted[what].mass(r, c)).epsilon(1e-4));
          estimated += double(head[Picture::estimate].sum(r, c));
        }
      }
      CHECK(estimated == doctest::Approx(double(T)).epsilon(1e-4));
    }
  }
}

TEST_CASE("maps: only the layers and heads that were asked for") {
  MapCollector collector({.cells = 4, .layers = {1}, .heads = {0}});
  for (int64_t layer = 0; layer < 3; ++layer) collector.add(layer, layer_view(true, 41));
  const TextMaps maps = collector.take();
  REQUIRE(maps.heads.size() == 1);
  CHECK(maps.heads[0].layer == 1);
  CHECK(maps.heads[0].head == 0);
}

TEST_CASE("maps: sides of pictures are at most those asked for and consist of whole cells") {
  for (const auto& [tokens, limit, cells] : {std::array<int64_t, 3>{100, 1000, 100},
                                             {100, 99, 96},
                                             {1024, 100, 96},
                                             {1024, 200, 192},
                                             {16384, 16384, 384},
                                             {385, 385, 384},
                                             {1024, 10, 10},
                                             {1024, 0, 1}})
    CHECK(max_cells(tokens, limit) == cells);
  CHECK(coarser_cells(1024, 96) == 48);
  CHECK(coarser_cells(100, 100) == 48);  // single tokens make any cells
  CHECK(coarser_cells(100, 1) == 0);
  CHECK(coarser_cells(100, 3) == 0);
  for (const int64_t tokens : {1, 2, 3, 37, 100, 1000}) {
    for (int64_t cells = max_cells(tokens, 384), next; (next = coarser_cells(tokens, cells)) > 0;
         cells = next) {
      CHECK(next < cells);
      CHECK(Blocks(tokens, cells).refines(Blocks(tokens, next)));
    }
  }
}

TEST_CASE("maps: all maps of a text become coarser") {
  MapCollector collector({.cells = T});
  collector.add(0, layer_view(true, 71));
  const TextMaps fine = collector.take(), coarse = fine.coarser(coarser_cells(T, T));
  CHECK(coarse.cells == 16);
  for (size_t i = 0; i < kPictures; ++i) {
    const CellMap &a = fine.heads[1].maps[i], &b = coarse.heads[1].maps[i];
    double before = 0, after = 0;
    for (int64_t r = 0; r < T; ++r) {
      for (int64_t c = 0; c < T; ++c) before += double(a.sum(r, c));
    }
    for (int64_t r = 0; r < 16; ++r) {
      for (int64_t c = 0; c < 16; ++c) after += double(b.sum(r, c));
    }
    CHECK(after == doctest::Approx(before));
  }
}

}  // namespace brine::test
