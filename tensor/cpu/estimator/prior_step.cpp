// The prior of one new token. Only the sums of key features at the borders of columns are kept. Per
// token a border moves by at most one key, whose features are added: the same additions in the same
// order as in the prefix sums of the full pass.
#include <algorithm>
#include <vector>

#include "tensor/cpu/core/columns.h"
#include "tensor/cpu/estimator/prior_row.h"
#include "tensor/kernels/estimator.h"
#include "tensor/parallel.h"

namespace brine::BRINE_CPU {
namespace {

// sum += the features of keys first .. last.
template <class T>
void add_keys(double* sum, const T* keys, int64_t first, int64_t last, int64_t m) {
  for (const T* key = keys + first * m; first < last; ++first, key += m) {
#pragma omp simd
    for (int64_t i = 0; i < m; ++i) sum[i] += double(key[i]);
  }
}

// Where the borders of a sequence were, if they are set, and where they move to: first keys, [K +
// 1] each.
struct Move {
  bool fresh = true;
  std::vector<int32_t> from, to;
};

// One head: moves its borders, sums [K + 1, padded].
template <class T>
void move_borders(double* sums, const T* keys, const Move& move, int64_t m, int64_t padded) {
  const size_t borders = move.to.size();
  // The keys that borders pass are far apart in memory: prefetch all of them.
  for (size_t c = 0; c < borders && !move.fresh; ++c) {
    if (move.from[c] == move.to[c]) continue;
    const T* key = keys + move.from[c] * m;
    for (int64_t i = 0; i < m; i += 64 / int64_t(sizeof(T))) __builtin_prefetch(key + i);
  }
  for (size_t c = 0; c < borders; ++c, sums += padded) {
    if (!move.fresh) {
      add_keys(sums, keys, move.from[c], move.to[c], m);
    } else if (c == 0) {
      std::fill_n(sums, padded, 0.0);
    } else {
      std::copy_n(sums - padded, padded, sums);
      add_keys(sums, keys, move.to[c - 1], move.to[c], m);
    }
  }
}

}  // namespace

void performer_prior_step(Tensor y, Tensor borders, Tensor at, Tensor scores, Tensor gain,
                          Tensor phi_q, Tensor phi_k, Tensor width) {
  dispatch_float(y.dtype(), [&]<class T>() {
    const int64_t H = phi_q.dim(1), m = phi_q.dim(3), K = scores.dim(3), S = phi_k.dim(2);
    const int64_t padded = borders.dim(3), heads = phi_q.dim(0) * H;
    const int64_t *now = at.data<int64_t>(), *then = width.data<int64_t>();
    std::vector<Move> moves(size_t(width.dim(0)));
    for (size_t b = 0; b < moves.size(); ++b) {
      Move& move = moves[b];
      move.fresh = now[b] == 0;
      move.from.resize(size_t(K + 1));
      move.to.resize(size_t(K + 1));
      column_starts(move.from.data(), now[b], K);
      column_starts(move.to.data(), then[b], K);
    }
    parallel_for(heads, heads * K * m < (1 << 15) ? heads : 1, [&](int64_t first, int64_t end) {
      std::vector<double> query(size_t(padded), 0.0), below(size_t(K + 4), 0.0);
      std::vector<T> value(static_cast<size_t>(K));
      for (int64_t n = first; n < end; ++n) {
        double* sums = borders.data<double>() + n * (K + 1) * padded;
        const Move& move = moves[size_t(n / H)];
        move_borders(sums, phi_k.data<T>() + n * S * m, move, m, padded);
        const T* q = phi_q.data<T>() + n * m;
        std::copy_n(q, m, query.data());
        // Before border 0 there are no keys.
        for (int64_t c = 1; c <= K; c += 4) {
          auto row = [&](int64_t i) { return sums + std::min(c + i, K) * padded; };
          dot4(query.data(), row(0), row(1), row(2), row(3), padded, below.data() + c);
        }
        log_shares(move.to.data(), below.data(), then[n / H], K, value.data());
        const T* x = scores.data<T>() + n * K;
        T* out = y.data<T>() + n * K;
        const T g = gain.data<T>()[n % H];
#pragma omp simd
        for (int64_t c = 0; c < K; ++c) out[c] = x[c] + g * value[size_t(c)];
      }
    });
    std::copy_n(then, width.dim(0), at.data<int64_t>());
  });
}

}  // namespace brine::BRINE_CPU
