// Attention on the entries of a flat CSR mask: scores, softmax and the product with V in one pass.
//
// Forward and the first half of the backward pass run over rows. The gradients of K and V run over
// pieces of the keys: every piece reads all rows of its head and takes the entries for its keys, so
// that no row has two concurrent writers and each sum is in the order of the rows. Rows stored in
// 16 bits (S) are widened in registers.
#include <algorithm>
#include <cstring>
#include <vector>

#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/softmax_row.h"
#include "tensor/cpu/core/stored_vectors.h"
#include "tensor/kernels/attention.h"
#include "tensor/math.h"
#include "tensor/stored.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kRows = 64;  // rows of one head that a piece of work takes

// Calls f.operator()<D>(): D = d for the common head sizes, otherwise 0.
template <class F>
void dispatch_width(int64_t d, F&& f) {
  switch (d) {
    case 32:
      return f.template operator()<32>();
    case 64:
      return f.template operator()<64>();
    case 128:
      return f.template operator()<128>();
    default:
      return f.template operator()<0>();
  }
}

// x . y, in two independent chains of sums.
template <int D, class T, class S>
T dot(const T* x, const S* y, int64_t width) {
  constexpr int W = kWidth<T>;
  const int64_t d = D ? D : width;
  Vector<T> even = {}, odd = {};
  int64_t c = 0;
#pragma GCC unroll 16
  for (; c + 2 * W <= d; c += 2 * W) {
    even += load(x + c) * load_as<T>(y + c);
    odd += load(x + c + W) * load_as<T>(y + c + W);
  }
  T sum = sum_of_vector<T, kVectorBytes>(even + odd);
  for (; c < d; ++c) sum += x[c] * T(y[c]);
  return sum;
}

// out[e] = factor (x . rows[key(e)])
template <int D, class T, class S>
void dots(T* out, const T* x, const S* rows, int64_t d, T factor, const RowEntries& at) {
  const S* origin = rows - at.base * d;
  for (int64_t e = 0; e < at.count; ++e) {
    out[e] = factor * dot<D>(x, origin + at.columns[e] * d, d);
  }
}

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

// f(b, h, t) over all rows, grouped by head.
template <class F>
void for_rows(const FlatCsr& csr, int64_t d, F&& f) {
  int64_t T = csr.length, tiles = (T + kRows - 1) / kRows;
  for_pieces(csr.batch * csr.heads * tiles, csr.entries() * d, [&](int64_t i) {
    int64_t bh = i / tiles, first = i % tiles * kRows;
    for (int64_t t = first; t < std::min(T, first + kRows); ++t) f(bh, t);
  });
}

// dp = dy . v; ds = p (dp - sum p dp) scale [entries]; dq = sum_e ds_e k_key(e).
template <int D, class T, class S>
void backward_rows(T* ds, T* dq, const T* dy, const S* k, const S* v, const T* p,
                   const FlatCsr& csr, int64_t d, T scale) {
  MaskRows rows(csr);
  for_rows(csr, d, [&](int64_t bh, int64_t t) {
    RowEntries at = rows(bh / rows.H, bh % rows.H, t);
    const T* g = dy + (bh * rows.T + t) * d;
    T* s = ds + at.first;
    const T* w = p + at.first;
    dots<D>(s, g, v + bh * rows.S * d, d, T(1), at);
    T total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t e = 0; e < at.count; ++e) total += w[e] * s[e];
#pragma omp simd
    for (int64_t e = 0; e < at.count; ++e) s[e] = w[e] * (s[e] - total) * scale;
    if (dq) weighted_sum(dq + (bh * rows.T + t) * d, s, k + bh * rows.S * d, d, at);
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

// dk_j = sum ds_e q_row(e), dv_j = sum p_e dy_row(e), dy rounded to S, over the entries e on key j.
template <int D, class T, class S>
void backward_keys(T* dk, T* dv, const T* dy, const S* q, const T* ds, const T* p,
                   const FlatCsr& csr, int64_t d) {
  MaskRows rows(csr);
  int64_t heads = csr.batch * csr.heads, keys = rows.S;
  // The number of pieces does not affect the result.
  int64_t pieces = std::clamp<int64_t>(4 * omp_get_max_threads() / std::max<int64_t>(heads, 1), 1,
                                       std::max<int64_t>(1, keys / 256));
  for_pieces(heads * pieces, csr.entries() * d, [&](int64_t i) {
    int64_t bh = i / pieces, b = bh / rows.H, h = bh % rows.H, piece = i % pieces;
    int64_t begin = keys * piece / pieces, end = keys * (piece + 1) / pieces;
    std::vector<T> room_q(std::is_same_v<T, S> ? 0 : size_t(d)), room_dy(room_q);
    T* out_k = dk ? dk + bh * keys * d : nullptr;
    T* out_v = dv ? dv + bh * keys * d : nullptr;
    if (dk) std::fill(out_k + begin * d, out_k + end * d, T(0));
    if (dv) std::fill(out_v + begin * d, out_v + end * d, T(0));
    for (int64_t t = 0; t < rows.T; ++t) {
      RowEntries at = rows(b, h, t);
      const int32_t* last = at.columns + at.count;
      const int32_t* from = std::lower_bound(at.columns, last, int32_t(at.base + begin));
      if (from == last || *from >= at.base + end) continue;
      const T* x = dk ? rounded<S>(room_q, q + (bh * rows.T + t) * d) : nullptr;
      const T* g = dv ? rounded<S>(room_dy, dy + (bh * rows.T + t) * d) : nullptr;
      for (; from < last && *from < at.base + end; ++from) {
        int64_t e = at.first + (from - at.columns), j = *from - at.base;
        if (dk) add_scaled<D>(out_k + j * d, ds[e], x, d);
        if (dv) add_scaled<D>(out_v + j * d, p[e], g, d);
      }
    }
  });
}

template <class T>
T* data_or_null(const Tensor& t) {
  return t.defined() ? t.data<T>() : nullptr;
}

}  // namespace

void sparse_attention(Tensor y, Tensor p, Tensor q, Tensor k, Tensor v, FlatCsr csr, double scale) {
  int64_t d = q.dim(3);
  dispatch_stored(q.dtype(), k.dtype(), [&]<class T, class S>() {
    const T* xq = q.data<T>();
    const S *xk = k.data<S>(), *xv = v.data<S>();
    T *out = y.data<T>(), *weights = p.data<T>();
    MaskRows rows(csr);
    dispatch_width(d, [&]<int D>() {
      for_rows(csr, d, [&](int64_t bh, int64_t t) {
        RowEntries at = rows(bh / rows.H, bh % rows.H, t);
        T* row = out + (bh * rows.T + t) * d;
        if (at.count == 0) return (void)std::fill(row, row + d, T(0));
        T* w = weights + at.first;
        dots<D>(w, xq + (bh * rows.T + t) * d, xk + bh * rows.S * d, d, T(scale), at);
        softmax_in_place(w, at.count);
        weighted_sum(row, w, xv + bh * rows.S * d, d, at);
      });
    });
  });
}

void sparse_attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q, Tensor k,
                               Tensor v, Tensor p, FlatCsr csr, double scale) {
  int64_t d = q.dim(3);
  Tensor ds = dq.defined() || dk.defined() ? Tensor::like(p) : Tensor();
  dispatch_stored(dy.dtype(), q.dtype(), [&]<class T, class S>() {
    T *gq = data_or_null<T>(dq), *gk = data_or_null<T>(dk), *gv = data_or_null<T>(dv);
    const T *g = dy.data<T>(), *w = p.data<T>();
    dispatch_width(d, [&]<int D>() {
      T* s = data_or_null<T>(ds);
      if (s) backward_rows<D>(s, gq, g, k.data<S>(), v.data<S>(), w, csr, d, T(scale));
      if (gk || gv) backward_keys<D>(gk, gv, g, q.data<S>(), s, w, csr, d);
    });
  });
}

}  // namespace brine::BRINE_CPU
