// The entries of a mask with the largest scores. The selection algorithm is in
// tensor/kernels/select.h.
#include <algorithm>
#include <bit>
#include <vector>

#include "tensor/base/stored.h"
#include "tensor/cpu/attention/gathered_rows.h"
#include "tensor/cpu/attention/row_sizes.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/kernels/attention.h"
#include "tensor/kernels/select.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kRefinedRows = 32;  // rows of one head that a piece of work takes

constexpr int64_t kChosenAtOnce = 16;  // entries that choose() may write beyond the last

// to = the columns of the n entries whose key is above the threshold, and of those equal to it all
// but the first `skip`.
template <class Key>
void choose(int32_t* to, const int32_t* columns, const Key* keys, int64_t n,
            const Threshold<Key>& border) {
  int64_t e = 0;
#ifdef __AVX512F__
  if constexpr (sizeof(Key) == 4) {
    const __m512i least = _mm512_set1_epi32(int32_t(border.key));
    for (; border.skip == 0 && e + kChosenAtOnce <= n; e += kChosenAtOnce) {
      const __mmask16 take = _mm512_cmpge_epu32_mask(_mm512_loadu_si512(keys + e), least);
      const __m512i loaded = _mm512_loadu_si512(columns + e);
      _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(take, loaded));
      to += std::popcount(unsigned(take));
    }
  }
#endif
  for (int64_t ties = 0; e < n; ++e) {
    const bool tie = keys[e] == border.key;
    ties += tie;
    if (keys[e] > border.key || (tie && ties > border.skip)) *to++ = columns[e];
  }
}

// Scratch memory of a row and head, one per thread.
template <class T>
struct Candidates {
  std::vector<T> scores;
  std::vector<OrderKey<T>> keys;
  std::vector<int32_t> chosen;

  void resize(int64_t n) {
    scores.resize(size_t(n));
    keys.resize(size_t(n));
    chosen.resize(size_t(n) + kChosenAtOnce);
  }
};

// out = the columns of the `take` entries with the largest q . k.
template <class T, class S, class Dots>
void refine_row(int32_t* out, Dots dots_of, const T* q, const S* k, const RowEntries& at,
                int64_t take, int64_t d) {
  if (at.count <= take) return (void)std::copy_n(at.columns, at.count, out);
  thread_local Candidates<T> candidates;
  candidates.resize(at.count);
  T* scores = candidates.scores.data();
  OrderKey<T>* keys = candidates.keys.data();
  dots_of(scores, q, k, d, T(1), at);
  for (int64_t e = 0; e < at.count; ++e) keys[e] = order_key(scores[e]);
  const Threshold<OrderKey<T>> border = find_threshold(LaneGroup<1>{}, keys, at.count, take);
  choose(candidates.chosen.data(), at.columns, keys, at.count, border);
  std::copy_n(candidates.chosen.data(), take, out);
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
  dispatch_stored(q.dtype(), k.dtype(), [&]<class R, class S>() {
    const R* xq = q.data<R>();
    const S* xk = k.data<S>();
    auto* columns = fine.columns.data<int32_t>();
    const auto dots_of = function_of_width(d, []<int D>() { return dots<D, R, S>; });
    for_pieces(csr.batch * rows.H * tiles, csr.entries() * d, [&](int64_t i) {
      const int64_t bh = i / tiles, first = i % tiles * kRefinedRows;
      const S* keys_of_head = xk + bh / group * rows.S * d;
      for (int64_t t = first; t < std::min(T, first + kRefinedRows); ++t) {
        const int64_t row = bh * T + t;
        refine_row(columns + results(row).first, dots_of, xq + row * d, keys_of_head, rows(row),
                   keys, d);
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
