// Conversion of selected columns to compressed rows.
#include "tensor/mask/csr.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "tensor/base/parallel.h"
#include "tensor/cpu/core/columns.h"
#include "tensor/kernels/attention.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kRowGrain = 64;

// csr.row_pointers from csr.head_offsets.
void sum_row_sizes(const FlatCsr& csr) {
  const int64_t H = csr.heads, T = csr.length;
  const auto* offsets = csr.head_offsets.data<int32_t>();
  auto* pointers = csr.row_pointers.data<int64_t>();
  int64_t total = 0;
  for (int64_t b = 0; b < csr.batch; ++b) {
    int64_t* row_starts = pointers + b * (T + 1);
    row_starts[0] = total;
    for (int64_t t = 0; t < T; ++t) {
      total += offsets[(b * T + t) * (H + 1) + H];
      row_starts[t + 1] = total;
    }
  }
}

// out[k - 1 - i] = last - floor(i n / k): k of n keys, evenly spaced, with a single division.
void thin(int32_t* out, int32_t last, int64_t n, int64_t k) {
  int64_t step = n / k, step_rest = n % k, back = 0, rest = 0;
  for (int64_t i = k - 1; i >= 0; --i) {
    out[i] = last - int32_t(back);
    back += step;
    rest += step_rest;
    if (rest >= k) {
      rest -= k;
      ++back;
    }
  }
}

// out[0 ..] = n consecutive keys from `first` on. Whole vectors while they fit before `end`: what
// is beyond the n keys is overwritten by those that follow. Returns out + n.
int32_t* put_keys(int32_t* out, const int32_t* end, int32_t first, int64_t n) {
  constexpr int W = 16;
  typedef int32_t Keys __attribute__((vector_size(W * sizeof(int32_t))));
  const Keys each = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  int64_t i = 0;
  for (; i < n && end - out >= i + W; i += W) {
    const Keys keys = first + int32_t(i) + each;
    std::memcpy(out + i, &keys, sizeof(keys));
  }
  for (; i < n; ++i) out[i] = first + int32_t(i);
  return out + n;
}

// f(c) for every c < K with chosen[c] != 0; the others are far more: eight at a time.
template <class F>
void each_chosen(const uint8_t* chosen, int64_t K, F f) {
  for (int64_t c = 0; c < K; c += 8) {
    uint64_t eight = 0;
    std::memcpy(&eight, chosen + c, size_t(std::min<int64_t>(8, K - c)));
    while (eight) {
      const int byte = std::countr_zero(eight) / 8;
      f(c + byte);
      eight &= ~(uint64_t(0xff) << (8 * byte));
    }
  }
}

}  // namespace

void count_csr(FlatCsr csr, Tensor selected, Visibility visible, int64_t k) {
  int64_t H = csr.heads, T = csr.length, K = selected.dim(3);
  RowWidths widths(visible, T);
  auto* offsets = csr.head_offsets.data<int32_t>();
  const auto* chosen = selected.data<uint8_t>();
  parallel_for(csr.batch * T, kRowGrain, [&](int64_t r0, int64_t r1) {
    std::vector<int64_t> starts(static_cast<size_t>(K + 1));
    std::vector<int32_t> size(static_cast<size_t>(K));
    for (int64_t r = r0; r < r1; ++r) {
      int64_t b = r / T, t = r % T, w = widths(b, t);
      int32_t* offset = offsets + r * (H + 1);
      column_starts(starts.data(), w, K);
      for (int64_t c = 0; c < K; ++c) {
        size[size_t(c)] = int32_t(std::min(k, starts[size_t(c + 1)] - starts[size_t(c)]));
      }
      offset[0] = 0;
      for (int64_t h = 0; h < H; ++h) {
        const uint8_t* flags = chosen + ((b * H + h) * T + t) * K;
        const int32_t* sizes = size.data();
        int32_t n = 0;
#pragma omp simd reduction(+ : n)
        for (int64_t c = 0; c < K; ++c) n += flags[c] ? sizes[c] : 0;
        offset[h + 1] = offset[h] + (w <= k ? int32_t(w) : n);
      }
    }
  });
  sum_row_sizes(csr);
}

void fill_csr(FlatCsr csr, Tensor selected, Visibility visible, int64_t k) {
  int64_t H = csr.heads, T = csr.length, S = csr.keys, K = selected.dim(3);
  RowWidths widths(visible, T);
  const auto* pointers = csr.row_pointers.data<int64_t>();
  auto* columns = csr.columns.data<int32_t>();
  const auto* chosen = selected.data<uint8_t>();
  parallel_for(csr.batch * T, kRowGrain, [&](int64_t r0, int64_t r1) {
    std::vector<int64_t> starts(static_cast<size_t>(K + 1));
    for (int64_t r = r0; r < r1; ++r) {
      int64_t b = r / T, t = r % T, w = widths(b, t);
      int32_t* out = columns + pointers[b * (T + 1) + t];
      const int32_t* const row_end = columns + pointers[b * (T + 1) + t + 1];
      column_starts(starts.data(), w, K);
      for (int64_t h = 0; h < H; ++h) {
        int32_t base = int32_t(h * S);
        if (w <= k) {
          out = put_keys(out, row_end, base, w);
          continue;
        }
        each_chosen(chosen + ((b * H + h) * T + t) * K, K, [&](int64_t c) {
          int64_t begin = starts[size_t(c)], end = starts[size_t(c + 1)], n = end - begin;
          if (n <= k) {
            out = put_keys(out, row_end, base + int32_t(begin), n);
          } else {
            thin(out, base + int32_t(end - 1), n, k);
            out += k;
          }
        });
      }
    }
  });
}

}  // namespace brine::BRINE_CPU
