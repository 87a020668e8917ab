// The kept columns of the estimate. The selection algorithm is in tensor/kernels/select.h.
#include "tensor/kernels/select.h"

#include <vector>

#include "tensor/base/math.h"
#include "tensor/base/parallel.h"
#include "tensor/kernels/attention.h"
#include "tensor/mask/csr.h"

namespace brine::BRINE_CPU {
namespace {

// The block of heads x rows of one sequence that shares a budget.
struct Block {
  int64_t b, head, heads, row, rows;
};

Block block_of(int64_t g, int64_t H, int64_t T, int64_t valid_rows, SelectMode mode) {
  switch (mode) {
    case SelectMode::per_query:
      return {g / (H * T), g / T % H, 1, g % T, 1};
    case SelectMode::causal_per_batch:
      return {g / T, 0, H, g % T, 1};
    case SelectMode::per_head:
      return {g / H, g % H, 1, 0, valid_rows};
    case SelectMode::per_batch:
      break;
  }
  return {g, 0, H, 0, valid_rows};
}

// The keys of K numbers, all of whose columns own keys. Returns the number of NaN.
template <class T>
int64_t load_row(OrderKey<T>* keys, const T* x, int64_t K) {
  OrderKey<T> bad = 0;
#pragma omp simd reduction(+ : bad)
  for (int64_t c = 0; c < K; ++c) {
    keys[c] = order_key(x[c]);
    bad += OrderKey<T>(x[c] != x[c]);
  }
  return int64_t(bad);
}

// The keys of a block in flat order; 0 for columns that own no key, unless all do (`real` is null).
// Returns the number of NaN among the others.
template <class T>
int64_t load_keys(OrderKey<T>* keys, const T* estimate, const Block& at, int64_t H, int64_t rows,
                  int64_t K, const unsigned char* real) {
  int64_t nans = 0;
  for (int64_t h = at.head; h < at.head + at.heads; ++h) {
    const T* x = estimate + ((at.b * H + h) * rows + at.row) * K;
    for (int64_t r = 0; r < at.rows; ++r, x += K, keys += K) {
      if (!real) {
        nans += load_row(keys, x, K);
        continue;
      }
      int64_t bad = 0;
#pragma omp simd reduction(+ : bad)
      for (int64_t c = 0; c < K; ++c) {
        keys[c] = real[c] ? order_key(x[c]) : 0;
        bad += real[c] && x[c] != x[c];
      }
      nans += bad;
    }
  }
  return nans;
}

template <class T>
int64_t select_block(uint8_t* selected, int64_t* n_sel, const T* estimate, const Block& at,
                     int64_t w, int64_t H, int64_t rows, int64_t K, int64_t k) {
  thread_local std::vector<OrderKey<T>> keys;
  thread_local std::vector<unsigned char> real;
  int64_t members = at.heads * at.rows, n = members * K;
  *n_sel = columns_to_select(members, k, K, w);
  keys.resize(size_t(n));
  if (w < K) real.assign(size_t(K), 1);
  for (int64_t c = 0; w < K && c < K; ++c) {
    real[size_t(c)] = math::column_begin(c + 1, w, K) > math::column_begin(c, w, K);
  }
  int64_t nans = load_keys(keys.data(), estimate, at, H, rows, K, w < K ? real.data() : nullptr);
  if (nans) return nans;
  uint8_t* out = selected + ((at.b * H + at.head) * rows + at.row) * K;
  int64_t head_stride = rows * K, head_size = at.rows * K;
  // One head after another: for a single strip the flat index is split without a division.
  if (at.heads == 1) {
    select_largest(LaneGroup<1>{}, keys.data(), n, *n_sel,
                   [out](int64_t i, bool chosen) { out[i] = chosen; });
  } else {
    thread_local std::vector<uint8_t> chosen_of;
    chosen_of.resize(size_t(n));
    uint8_t* flat = chosen_of.data();
    select_largest(LaneGroup<1>{}, keys.data(), n, *n_sel,
                   [flat](int64_t i, bool chosen) { flat[i] = chosen; });
    for (int64_t h = 0; h < at.heads; ++h) {
      std::copy_n(flat + h * head_size, head_size, out + h * head_stride);
    }
  }
  return 0;
}

}  // namespace

void select_columns(Tensor selected, Tensor n_sel, Tensor nan_count, Tensor estimate,
                    Visibility visible, SelectConfig config) {
  int64_t H = estimate.dim(1), rows = estimate.dim(2), K = estimate.dim(3);
  int64_t groups = n_sel.numel();
  RowWidths widths(visible, rows);
  std::vector<int64_t> nans(static_cast<size_t>(groups), 0);
  auto* out = selected.data<uint8_t>();
  auto* counts = n_sel.data<int64_t>();
  parallel_for(selected.numel(), 1 << 20,
               [&](int64_t i0, int64_t i1) { std::fill(out + i0, out + i1, uint8_t(0)); });
  dispatch_float(estimate.dtype(), [&]<class T>() {
    const T* x = estimate.data<T>();
    int64_t grain = std::max<int64_t>(1, (int64_t(1) << 14) / std::max<int64_t>(1, H * K));
    parallel_for(groups, grain, [&](int64_t g0, int64_t g1) {
      for (int64_t g = g0; g < g1; ++g) {
        counts[g] = 0;
        int64_t b = block_of(g, H, rows, 0, config.mode).b;
        Block at = block_of(g, H, rows, widths.valid(b), config.mode);
        int64_t w = at.rows > 0 ? widths(b, at.row) : 0;
        if (w == 0) continue;
        nans[size_t(g)] = select_block(out, counts + g, x, at, w, H, rows, K, config.k);
      }
    });
  });
  int64_t total = 0;
  for (int64_t n : nans) total += n;
  nan_count.data<int64_t>()[0] = total;
}

}  // namespace brine::BRINE_CPU
