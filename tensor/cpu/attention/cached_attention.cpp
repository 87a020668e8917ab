// Attention of one new query per sequence over cached keys and values, and the cache updates.
//
// The cost is that of reading the keys and values once for each head of queries.
#include <algorithm>
#include <array>
#include <vector>

#include "tensor/base/stored.h"
#include "tensor/cpu/attention/cached_rows.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/softmax_row.h"
#include "tensor/kernels/attention.h"

namespace brine::BRINE_CPU {

void append_row(Tensor cache, Tensor row, Tensor at) {
  const int64_t B = cache.dim(0), H = cache.dim(1), S = cache.dim(2), d = cache.dim(3);
  dispatch_stored(row.dtype(), cache.dtype(), [&]<class T, class Stored>() {
    for (int64_t b = 0; b < B; ++b) {
      Stored* to = cache.data<Stored>() + (b * H * S + at.data<int64_t>()[b]) * d;
      const T* from = row.data<T>() + b * H * d;
      for (int64_t h = 0; h < H; ++h, from += d, to += S * d) {
        for (int64_t c = 0; c < d; ++c) to[c] = Stored(from[c]);
      }
    }
  });
}

void cached_attention(Tensor y, Tensor q, Tensor k, Tensor v, Tensor first, Tensor last,
                      double scale) {
  const int64_t B = q.dim(0), H = q.dim(1), S = k.dim(2), d = k.dim(3);
  const int64_t group = H / k.dim(1);  // heads that share keys and values
  const int64_t *begin = first.data<int64_t>(), *end = last.data<int64_t>();
  int64_t work = 0;
  for (int64_t b = 0; b < B; ++b) work += (end[b] - begin[b]) * H * d;
  dispatch_stored(y.dtype(), k.dtype(), [&]<class T, class Stored>() {
    for_pieces(B * H, work, [&](int64_t i) {
      const int64_t b = i / H, n = end[b] - begin[b];
      const int64_t offset = (i / group * S + begin[b]) * d;
      T* out = y.data<T>() + i * d;
      if (n <= 0) return (void)std::fill_n(out, d, T(0));
      thread_local std::vector<T> memory;
      memory.resize(size_t(n));
      T* p = memory.data();
      dots(p, q.data<T>() + i * d, k.data<Stored>() + offset, n, d, T(scale));
      softmax_in_place(p, n);
      weighted_sum(out, p, v.data<Stored>() + offset, std::array{KeyRun{0, n}}, d);
    });
  });
}

}  // namespace brine::BRINE_CPU
