// Attention on the entries of a flat CSR mask: scores, softmax and the product with V in one pass.
//
// Forward and the first half of the backward pass run over rows. The gradients of K and V run over
// pieces of the keys: every piece reads all rows of the heads of its group and takes the entries
// for its keys, so that no row has two concurrent writers and each sum is in the order of the heads
// and rows. Rows stored in 16 bits (S) are widened in registers.
#include <algorithm>
#include <cstring>
#include <vector>

#include "tensor/base/math.h"
#include "tensor/base/stored.h"
#include "tensor/cpu/attention/gathered_rows.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/softmax_row.h"
#include "tensor/kernels/attention.h"

namespace brine::BRINE_CPU {
namespace {

// Rows of one head that a piece of work takes: so many that the keys, and after them the values,
// are read from memory once and then from the second cache, which has no room for both.
constexpr int64_t kRows = 256;

// out[0..C) = sum_e weights[e] rows[key(e)][0..C), the sums in registers; consecutive rows are d
// apart.
template <int C, class T, class S>
void weighted_strip(T* out, const T* weights, const S* rows, int64_t d, const RowEntries& at) {
  constexpr int W = kWidth<T>, N = C / W;
  Vector<T> sum[N];
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) sum[i] = Vector<T>{};
  const S* origin = rows - at.base * d;
  for (int64_t e = 0; e < at.count; ++e) {
    const S* y = origin + at.columns[e] * d;
    Vector<T> p = weights[e] - Vector<T>{};
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) sum[i] += p * load_as<T>(y + i * W);
  }
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) store(out + i * W, sum[i]);
}

template <class T, class S>
void weighted_sum(T* out, const T* weights, const S* rows, int64_t d, const RowEntries& at) {
  constexpr int W = kWidth<T>;
  int64_t c = 0;
  for (; c + 8 * W <= d; c += 8 * W) weighted_strip<8 * W>(out + c, weights, rows + c, d, at);
  for (; c + 4 * W <= d; c += 4 * W) weighted_strip<4 * W>(out + c, weights, rows + c, d, at);
  for (; c + W <= d; c += W) weighted_strip<W>(out + c, weights, rows + c, d, at);
  const S* origin = rows - at.base * d;
  for (; c < d; ++c) {
    T sum = 0;
    for (int64_t e = 0; e < at.count; ++e) sum += weights[e] * T(origin[at.columns[e] * d + c]);
    out[c] = sum;
  }
}

// f(b H + h, first row, end) over tiles of the rows of a head.
template <class F>
void for_tiles(const FlatCsr& csr, int64_t d, F&& f) {
  int64_t T = csr.length, tiles = (T + kRows - 1) / kRows;
  for_pieces(csr.batch * csr.heads * tiles, csr.entries() * d, [&](int64_t i) {
    int64_t first = i % tiles * kRows;
    f(i / tiles, first, std::min(T, first + kRows));
  });
}

// dp = dy . v; ds = p (dp - sum p dp) scale [entries]; dq = sum_e ds_e k_key(e).
template <class T, class S>
void backward_rows(T* ds, T* dq, const T* dy, const S* k, const S* v, const T* p,
                   const FlatCsr& csr, int64_t group, int64_t d, T scale) {
  MaskRows rows(csr);
  const auto dots_of = function_of_width(d, []<int D>() { return dots<D, T, S>; });
  for_tiles(csr, d, [&](int64_t bh, int64_t first, int64_t end) {
    const int64_t keys = bh / group * rows.S * d;
    for (int64_t t = first; t < end; ++t) {
      const RowEntries at = rows(bh / rows.H, bh % rows.H, t);
      T* s = ds + at.first;
      const T* w = p + at.first;
      dots_of(s, dy + (bh * rows.T + t) * d, v + keys, d, T(1), at);
      T total = 0;
#pragma omp simd reduction(+ : total)
      for (int64_t e = 0; e < at.count; ++e) total += w[e] * s[e];
#pragma omp simd
      for (int64_t e = 0; e < at.count; ++e) s[e] = w[e] * (s[e] - total) * scale;
    }
    for (int64_t t = first; dq && t < end; ++t) {
      const RowEntries at = rows(bh / rows.H, bh % rows.H, t);
      weighted_sum(dq + (bh * rows.T + t) * d, ds + at.first, k + keys, d, at);
    }
  });
}

// Adds weight times x to a row of d numbers.
template <int D, class T>
void add_scaled(T* row, T weight, const T* x, int64_t width) {
  const int64_t d = D ? D : width;
#pragma omp simd
  for (int64_t c = 0; c < d; ++c) row[c] += weight * x[c];
}

// x [d] rounded to S, in `room` if S is another type than T.
template <class S, class T, class From>
const T* rounded(std::vector<T>& room, const From* x) {
  if constexpr (std::is_same_v<T, S>) {
    return x;
  } else {
    for (size_t c = 0; c < room.size(); ++c) room[c] = T(S(x[c]));
    return room.data();
  }
}

// The inputs of the gradients of keys: q and dy by rows, ds and p by entries.
template <class T, class S>
struct KeyInputs {
  const T* dy;
  const S* q;
  const T *ds, *p;
};

// The keys [begin, end) of a group of heads, whose rows of dk and dv begin at these; either may be
// null.
template <class T>
struct KeySpan {
  int64_t begin, end;
  T *dk, *dv;
};

// Adds the entries of the rows of head bh: dk_j += ds_e q_row(e), dv_j += p_e dy_row(e), dy rounded
// to S.
template <int D, class T, class S>
void add_head(const KeySpan<T>& keys, const KeyInputs<T, S>& in, const MaskRows& rows, int64_t bh,
              int64_t d) {
  std::vector<T> room_q(std::is_same_v<T, S> ? 0 : size_t(d)), room_dy(room_q);
  for (int64_t t = 0; t < rows.T; ++t) {
    RowEntries at = rows(bh / rows.H, bh % rows.H, t);
    const int32_t* last = at.columns + at.count;
    const int32_t* from = std::lower_bound(at.columns, last, int32_t(at.base + keys.begin));
    if (from == last || *from >= at.base + keys.end) continue;
    const T* x = keys.dk ? rounded<S>(room_q, in.q + (bh * rows.T + t) * d) : nullptr;
    const T* g = keys.dv ? rounded<S>(room_dy, in.dy + (bh * rows.T + t) * d) : nullptr;
    for (; from < last && *from < at.base + keys.end; ++from) {
      int64_t e = at.first + (from - at.columns), j = *from - at.base;
      if (keys.dk) add_scaled<D>(keys.dk + j * d, in.ds[e], x, d);
      if (keys.dv) add_scaled<D>(keys.dv + j * d, in.p[e], g, d);
    }
  }
}

// dk_j and dv_j: the sums of the entries on key j over the heads of its group.
template <class T, class S>
void backward_keys(T* dk, T* dv, const KeyInputs<T, S>& in, const FlatCsr& csr, int64_t group,
                   int64_t d) {
  MaskRows rows(csr);
  const auto add = function_of_width(d, []<int D>() { return add_head<D, T, S>; });
  int64_t groups = csr.batch * csr.heads / group, keys = rows.S;
  // The number of pieces does not affect the result.
  int64_t pieces = std::clamp<int64_t>(4 * omp_get_max_threads() / std::max<int64_t>(groups, 1), 1,
                                       std::max<int64_t>(1, keys / 256));
  for_pieces(groups * pieces, csr.entries() * d, [&](int64_t i) {
    int64_t bg = i / pieces, piece = i % pieces;
    KeySpan<T> span{keys * piece / pieces, keys * (piece + 1) / pieces,
                    dk ? dk + bg * keys * d : nullptr, dv ? dv + bg * keys * d : nullptr};
    if (dk) std::fill(span.dk + span.begin * d, span.dk + span.end * d, T(0));
    if (dv) std::fill(span.dv + span.begin * d, span.dv + span.end * d, T(0));
    for (int64_t bh = bg * group; bh < (bg + 1) * group; ++bh) {
      add(span, in, rows, bh, d);
    }
  });
}

}  // namespace

void sparse_attention(Tensor y, Tensor p, Tensor q, Tensor k, Tensor v, FlatCsr csr, double scale) {
  const int64_t d = q.dim(3), group = q.dim(1) / k.dim(1);  // heads that share keys and values
  dispatch_stored(q.dtype(), k.dtype(), [&]<class T, class S>() {
    const T* xq = q.data<T>();
    const S *xk = k.data<S>(), *xv = v.data<S>();
    T *out = y.data<T>(), *weights = p.data<T>();
    MaskRows rows(csr);
    const auto dots_of = function_of_width(d, []<int D>() { return dots<D, T, S>; });
    for_tiles(csr, d, [&](int64_t bh, int64_t first, int64_t end) {
      const int64_t keys = bh / group * rows.S * d;
      for (int64_t t = first; t < end; ++t) {
        const RowEntries at = rows(bh / rows.H, bh % rows.H, t);
        T* w = weights + at.first;
        dots_of(w, xq + (bh * rows.T + t) * d, xk + keys, d, T(scale), at);
        if (at.count > 0) softmax_in_place(w, at.count);
      }
      for (int64_t t = first; t < end; ++t) {  // of no entries: 0
        const RowEntries at = rows(bh / rows.H, bh % rows.H, t);
        weighted_sum(out + (bh * rows.T + t) * d, weights + at.first, xv + keys, d, at);
      }
    });
  });
}

void sparse_attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q, Tensor k,
                               Tensor v, Tensor p, FlatCsr csr, double scale) {
  const int64_t d = q.dim(3), group = q.dim(1) / k.dim(1);
  Tensor ds = dq.defined() || dk.defined() ? Tensor::like(p) : Tensor();
  dispatch_stored(dy.dtype(), q.dtype(), [&]<class T, class S>() {
    T *gq = data_or_null<T>(dq), *gk = data_or_null<T>(dk), *gv = data_or_null<T>(dv);
    const T *g = dy.data<T>(), *w = p.data<T>();
    T* s = data_or_null<T>(ds);
    if (s) backward_rows(s, gq, g, k.data<S>(), v.data<S>(), w, csr, group, d, T(scale));
    const KeyInputs<T, S> in{g, q.data<S>(), s, w};
    if (gk || gv) backward_keys(gk, gv, in, csr, group, d);
  });
}

}  // namespace brine::BRINE_CPU
