// The entries of a mask with the largest scores. The selection algorithm is in
// tensor/kernels/select.h.
#include <algorithm>
#include <vector>

#include "tensor/cpu/attention/gathered_rows.h"
#include "tensor/cpu/attention/row_sizes.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/kernels/attention.h"
#include "tensor/kernels/select.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kRefinedRows = 32;  // rows of one head that a piece of work takes

// Scratch memory of a row and head, one per thread.
template <class T>
struct Candidates {
  std::vector<T> scores;
  std::vector<OrderKey<T>> keys;

  void resize(int64_t n) {
    scores.resize(size_t(n));
    keys.resize(size_t(n));
  }
};

// out = the columns of the `take` entries with the largest q . k.
template <int D, class T>
void refine_row(int32_t* out, const T* q, const T* k, const RowEntries& at, int64_t take,
                int64_t d) {
  if (at.count <= take) return (void)std::copy_n(at.columns, at.count, out);
  thread_local Candidates<T> own;
  own.resize(at.count);
  T* scores = own.scores.data();
  OrderKey<T>* keys = own.keys.data();
  dots<D>(scores, q, k, d, T(1), at);
  for (int64_t e = 0; e < at.count; ++e) keys[e] = order_key(scores[e]);
  each_largest(LaneGroup<1>{}, keys, at.count, take,
               [&](int64_t rank, int64_t e) { out[rank] = at.columns[e]; });
}

}  // namespace

void count_refined(FlatCsr fine, FlatCsr csr, int64_t keys) {
  const int64_t H = csr.heads;
  const auto* from = csr.head_offsets.data<int32_t>();
  auto* to = fine.head_offsets.data<int32_t>();
  for (int64_t row = 0; row < csr.batch * csr.length; ++row, from += H + 1, to += H + 1) {
    to[0] = 0;
    for (int64_t h = 0; h < H; ++h) {
      to[h + 1] = to[h] + int32_t(std::min<int64_t>(from[h + 1] - from[h], keys));
    }
  }
  sum_row_sizes(fine);
}

void refine(FlatCsr fine, Tensor q, Tensor k, FlatCsr csr, int64_t keys) {
  const int64_t d = q.dim(3), group = q.dim(1) / k.dim(1);  // heads that share keys
  const MaskRows rows(csr), results(fine);
  const int64_t T = rows.T, tiles = (T + kRefinedRows - 1) / kRefinedRows;
  dispatch_float(q.dtype(), [&]<class R>() {
    const R *xq = q.data<R>(), *xk = k.data<R>();
    auto* columns = fine.columns.data<int32_t>();
    dispatch_width(d, [&]<int D>() {
      for_pieces(csr.batch * rows.H * tiles, csr.entries() * d, [&](int64_t i) {
        const int64_t bh = i / tiles, first = i % tiles * kRefinedRows;
        const R* keys_of_head = xk + bh / group * rows.S * d;
        for (int64_t t = first; t < std::min(T, first + kRefinedRows); ++t) {
          const int64_t row = bh * T + t;
          refine_row<D>(columns + results(row).first, xq + row * d, keys_of_head, rows(row), keys,
                        d);
        }
      });
    });
  });
}

}  // namespace brine::BRINE_CPU
