// The share of the teacher's attention that a mask covers, and that of other masks with the same
// budget.
#include <array>
#include <vector>

#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/teacher/score_tile.h"
#include "tensor/kernels/select.h"
#include "tensor/kernels/teacher.h"
#include "tensor/mask/recall.h"

namespace brine::BRINE_CPU {
namespace {

using namespace recall;

// The teacher's rows [first, first + rows) of all heads of sequence b, a row every `keys` numbers.
template <class T>
struct MapTile {
  int64_t b, first, rows, keys;
  std::vector<T> map;  // [H, rows, keys], 0 beyond a row's keys
  const T* row(int64_t h, int64_t i) const { return map.data() + (h * rows + i) * keys; }
};

template <class T>
void load(MapTile<T>& tile, const TeacherRows<T>& teacher, const RowWidths& widths, int64_t H) {
  tile.map.resize(size_t(H * tile.rows * tile.keys));
  for (int64_t h = 0; h < H; ++h) {
    T* block = tile.map.data() + h * tile.rows * tile.keys;
    int64_t bh = tile.b * H + h;
    if (!teacher.has_map()) teacher.scores(block, bh, tile.first, tile.rows, tile.keys);
    for (int64_t i = 0; i < tile.rows; ++i) {
      int64_t t = tile.first + i, w = widths(tile.b, t);
      T* row = block + i * tile.keys;
      if (teacher.has_map()) {
        std::copy_n(teacher.map_row(bh, t), w, row);
      } else {
        softmax_row(row, row, w, teacher.scale());
      }
      std::fill(row + w, row + tile.keys, T(0));
    }
  }
}

// Calls f(value, key) for the entries of a mask in row i of a tile; returns their number.
template <class T, class F>
int64_t for_entries(const MapTile<T>& tile, const FlatCsr& csr, int64_t h, int64_t i, F&& f) {
  int64_t t = tile.first + i;
  const int32_t* offset =
      csr.head_offsets.data<int32_t>() + (tile.b * csr.length + t) * (csr.heads + 1) + h;
  const int32_t* columns =
      csr.columns.data<int32_t>() + csr.row_pointers.data<int64_t>()[tile.b * (csr.length + 1) + t];
  const T* row = tile.row(h, i);
  for (int32_t e = offset[0]; e < offset[1]; ++e) {
    const int64_t key = columns[e] - h * csr.keys;
    f(double(row[key]), key);
  }
  return offset[1] - offset[0];
}

// The contribution of one tile: sums [way][head].
using Sums = std::array<std::vector<double>, kWays>;

// Members (head, row of the tile) that share a budget, all of width w.
struct Members {
  int64_t head, heads, row, rows, w;
};

// Adds the largest values of the members' rows, up to `budget` keys.
template <class T>
void add_top(Sums& sums, const MapTile<T>& tile, const Members& m, int64_t budget) {
  thread_local std::vector<OrderKey<T>> keys;
  keys.resize(size_t(m.heads * m.rows * m.w));
  OrderKey<T>* key = keys.data();
  for (int64_t h = m.head; h < m.head + m.heads; ++h) {
    for (int64_t i = m.row; i < m.row + m.rows; ++i, key += m.w) {
      const T* row = tile.row(h, i);
      for (int64_t j = 0; j < m.w; ++j) key[j] = order_key(row[j]);
    }
  }
  if (budget == 0) return;
  select_largest(LaneGroup<1>{}, keys.data(), int64_t(keys.size()), budget,
                 [&](int64_t i, bool chosen) {
                   if (!chosen) return;
                   int64_t member = i / m.w, h = m.head + member / m.rows;
                   const T* row = tile.row(h, m.row + member % m.rows);
                   sums[kTopKeys][size_t(h)] += double(row[i % m.w]);
                 });
}

// What the mask has in row i of a tile.
template <class T>
int64_t add_mask(Sums& sums, const MapTile<T>& tile, const FlatCsr& csr, int64_t h, int64_t i,
                 int64_t w, bool causal) {
  const KeyRange nearest = nearest_keys(causal, w, tile.first + i, std::min(w, kNear));
  Entries entries;
  const int64_t n = for_entries(
      tile, csr, h, i, [&](double value, int64_t key) { entries.add(value, key, nearest); });
  const T* row = tile.row(h, i);
  const auto at = size_t(h);
  sums[kMask][at] += entries.mass;
  sums[kTopHit][at] += n > 0 && entries.heaviest >= double(*std::max_element(row, row + w));
  sums[kNearMask][at] += entries.mass > 0 ? entries.near / entries.mass : 0;
  sums[kFirstMask][at] += entries.mass > 0 ? entries.first / entries.mass : 0;
  return n;
}

// The masks that do not depend on the attention; `share` is the row's part of the budget.
template <class T>
void add_fixed(Sums& sums, const T* row, size_t h, const FixedKeys& keys, int64_t w,
               double random_share) {
  auto mass = [row](int64_t first, int64_t end) {
    double sum = 0;
    for (int64_t j = first; j < end; ++j) sum += double(row[j]);
    return sum;
  };
  sums[kRandom][h] += mass(0, w) * random_share;
  sums[kRecent][h] += mass(keys.recent.first, keys.recent.end);
  sums[kSinksRecent][h] += mass(0, keys.sinks) + mass(keys.rest.first, keys.rest.end);
  sums[kNearAll][h] += mass(keys.near.first, keys.near.end);
  sums[kFirstAll][h] += mass(0, std::min(w, kSinks));
}

template <class T>
void add_members(Sums& sums, const MapTile<T>& tile, const Members& m, const FlatCsr& csr,
                 const FlatCsr& best, bool causal) {
  int64_t budget = 0, members = m.heads * m.rows;
  for (int64_t h = m.head; h < m.head + m.heads; ++h) {
    for (int64_t i = m.row; i < m.row + m.rows; ++i) {
      budget += add_mask(sums, tile, csr, h, i, m.w, causal);
      double& of_best = sums[kBestColumns][size_t(h)];
      for_entries(tile, best, h, i, [&](double value, int64_t) { of_best += value; });
    }
  }
  add_top(sums, tile, m, budget);
  int64_t member = 0;
  for (int64_t h = m.head; h < m.head + m.heads; ++h) {
    for (int64_t i = m.row; i < m.row + m.rows; ++i, ++member) {
      const int64_t share = budget / members + (member < budget % members ? 1 : 0);
      const FixedKeys keys(causal, m.w, tile.first + i, std::min(share, m.w));
      add_fixed(sums, tile.row(h, i), size_t(h), keys, m.w, double(budget) / double(members * m.w));
    }
  }
}

}  // namespace

void attention_recall(Tensor sums, Tensor rows, TeacherAttention teacher, FlatCsr csr, FlatCsr best,
                      Visibility visible, SelectConfig config, int64_t from) {
  int64_t B = csr.batch, H = csr.heads, T = csr.length;
  bool across_heads =
      config.mode == SelectMode::per_batch || config.mode == SelectMode::causal_per_batch;
  bool across_rows = config.mode == SelectMode::per_batch || config.mode == SelectMode::per_head;
  // Rows that share a budget must be in one tile.
  int64_t step = across_rows ? T : std::max<int64_t>(1, tile_rows(T) / std::max<int64_t>(H, 1));
  int64_t tiles = step ? (T + step - 1) / step : 0;
  RowWidths widths(visible, T);
  std::vector<Sums> parts(static_cast<size_t>(B * tiles));
  std::vector<int64_t> counts(parts.size(), 0);
  Tensor like = teacher.map.defined() ? teacher.map : teacher.q;
  dispatch_float(like.dtype(), [&]<class R>() {
    TeacherRows<R> teacher_rows(teacher, T);
    for_pieces(B * tiles, 16 * B * H * T * T, [&](int64_t n) {
      int64_t b = n / tiles, first = n % tiles * step;
      int64_t last = std::min({T, first + step, widths.valid(b)});
      while (first < last && (first < from || widths(b, first) <= config.k)) ++first;
      if (first >= last) return;
      MapTile<R> tile{b, first, last - first, widths(b, last - 1), {}};
      load(tile, teacher_rows, widths, H);
      Sums& tile_sums = parts[size_t(n)];
      for (auto& way : tile_sums) way.assign(size_t(H), 0);
      counts[size_t(n)] = tile.rows;
      Members m{0, across_heads ? H : 1, 0, across_rows ? tile.rows : 1, 0};
      for (m.row = 0; m.row < tile.rows; m.row += m.rows) {
        m.w = widths(b, first + m.row);
        for (m.head = 0; m.head < H; m.head += m.heads)
          add_members(tile_sums, tile, m, csr, best, visible.causal);
      }
    });
  });
  auto* out = sums.data<double>();
  std::fill_n(out, kWays * H, 0.0);
  int64_t total = 0;
  for (size_t n = 0; n < parts.size(); ++n) {
    total += counts[n];
    for (int64_t i = 0; counts[n] && i < kWays * H; ++i)
      out[i] += parts[n][size_t(i / H)][size_t(i % H)];
  }
  rows.data<int64_t>()[0] = total;
}

}  // namespace brine::BRINE_CPU
