// The gradients of tiled attention: five products for each pair of tiles; the probabilities are
// recomputed from the scores and the log-sum-exp.
//
// A tile of keys is the lanes of vectors: scores are stored as [query, key]; K and V are transposed
// once per tile of keys, everything else is read in place. dk and dv of the tile are complete after
// one pass over the queries; dq is summed over tiles of keys, which are distributed over a few
// pieces with a dq each, depending only on the sizes.
#include "tensor/base/math.h"
#include "tensor/cpu/attention/flash_pairs.h"
#include "tensor/cpu/attention/flash_tasks.h"
#include "tensor/cpu/attention/flash_tile.h"
#include "tensor/cpu/core/stream.h"
#include "tensor/kernels/attention.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kQueries = 128, kKeys = 64;

// Sizes of a call. Rows of d numbers that are read as vectors are padded with 0 to `wide`. `group`
// heads of queries share keys and values.
struct Sizes {
  int64_t B, H, T, d, group, wide;
  RowWidths widths;
  bool causal;
};

template <class T>
struct Operands {
  const T *q, *k, *v;  // [B, H, T, wide], [B, G, T, wide], [B, G, T, d]
  const T* dy;         // [B, H, T, wide]
  const T *lse, *dot;  // [B, H, T]; dot = scale dy . y
  T scale;
};

// x [R, d] with rows of `wide` numbers; x itself if it already has them.
template <class T>
Tensor widened(const Tensor& x, int64_t wide) {
  const int64_t d = x.dim(-1);
  if (wide == d) return x;
  Tensor to = Tensor::empty({x.rows(), wide}, x.dtype());
  parallel_for(x.rows(), 1024, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T* row = to.data<T>() + r * wide;
      std::copy_n(x.data<T>() + r * d, d, row);
      std::fill(row + d, row + wide, T(0));
    }
  });
  return to;
}

template <class T>
T inner_product(const T* x, const T* y, int64_t n) {
  constexpr int W = kWidth<T>;
  Vector<T> sums = {};
  int64_t i = 0;
  for (; i + W <= n; i += W) sums += load(x + i) * load(y + i);
  T sum = sum_of_vector<T, kVectorBytes>(sums);
  for (; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

// heads [B, H, T, wide] = dy [B, T, H d]; dot [B, H, T] = scale dy . y. Rows of padding are not
// read.
template <class T>
void gather_gradient(T* heads, T* dot, const T* dy, const T* y, const Sizes& at, T scale) {
  const int64_t H = at.H, d = at.d;
  parallel_for(at.B * H * at.T, 256, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t bh = r / at.T, b = bh / H, t = r % at.T,
                    from = ((b * at.T + t) * H + bh % H) * d;
      if (t >= at.widths.valid(b)) continue;
      dot[r] = scale * inner_product(dy + from, y + from, d);
      std::copy_n(dy + from, d, heads + r * at.wide);
      std::fill_n(heads + r * at.wide + d, at.wide - d, T(0));
    }
  });
}

// s [rows, keys] unscaled scores -> probabilities; ds [rows, keys] scaled gradients of the
// probabilities -> gradients of the unscaled scores. Row m sees its first (seen + m) lanes when
// that is less than all. ahead(m) is called for each row.
template <int64_t Lanes, class T, class Ahead>
void differentiate(T* s, T* ds, int64_t rows, int64_t count, int64_t seen, T scale, const T* lse,
                   const T* dot, Ahead ahead) {
  const int64_t lanes = Lanes ? Lanes : count;
  for (int64_t m = 0; m < rows; ++m, s += kKeys, ds += kKeys) {
    const T shift = lse[m], mean = dot[m];
    ahead(m);
#pragma omp simd
    for (int64_t n = 0; n < lanes; ++n) {
      s[n] = math::exp_nonpositive(s[n] * scale - shift);
      ds[n] = s[n] * (ds[n] - mean);
    }
    if (seen + m >= lanes) continue;
    std::fill(s + seen + m, s + lanes, T(0));
    std::fill(ds + seen + m, ds + lanes, T(0));
  }
}

// The tile of keys [first, first + keys) of head bh against all queries that see it.
template <class T>
void tile_of_keys(int64_t bh, int64_t first, int64_t keys, const Sizes& at, const Operands<T>& in,
                  const HeadGradients<T>& to) {
  const int64_t d = at.d, wide = at.wide, lanes = whole_vectors<T>(keys);
  const int64_t head = bh * at.T, keys_head = bh / at.group * at.T,
                queries = at.widths.valid(bh / at.H);
  thread_local Scratch<T> scratch;
  scratch.reserve(2 * kKeys * (d + wide + kQueries), 6);
  T *k = scratch.take(d * kKeys), *v = scratch.take(d * kKeys);
  T *dk = scratch.take(kKeys * wide), *dv = scratch.take(kKeys * wide);
  T *s = scratch.take(kQueries * kKeys), *ds = scratch.take(kQueries * kKeys);
  const int64_t begin = at.causal ? first : 0;
  const int64_t start = std::min(kQueries, queries - begin) * wide;
  fetch(in.q + (head + begin) * wide, start);
  fetch(in.dy + (head + begin) * wide, start);
  transpose<true>(Lanes<T>{k, kKeys}, Lanes<const T>{in.k + (keys_head + first) * wide, wide}, keys,
                  d, [](int64_t) { return T(1); });
  transpose<true>(Lanes<T>{v, kKeys}, Lanes<const T>{in.v + (keys_head + first) * d, d}, keys, d,
                  [&](int64_t) { return in.scale; });
  std::fill_n(dk, keys * wide, T(0));
  std::fill_n(dv, keys * wide, T(0));
  for (int64_t t = begin; t < queries; t += kQueries) {
    const int64_t rows = std::min(kQueries, queries - t), row = head + t;
    const T *q = in.q + row * wide, *dy = in.dy + row * wide;
    const int64_t seen = at.causal ? t - first + 1 : lanes;
    tile_product(rows, lanes, d, Broadcast<T, false>{q, wide}, Lanes<const T>{k, kKeys},
                 Lanes<T>{s, kKeys});
    tile_product(rows, lanes, d, Broadcast<T, false>{dy, wide}, Lanes<const T>{v, kKeys},
                 Lanes<T>{ds, kKeys});
    auto ahead = [&](int64_t m) __attribute__((always_inline)) {
      if (to.dq) fetch(to.dq + (t + m) * wide, wide);
      if (t + rows + m >= queries) return;
      fetch(q + (rows + m) * wide, wide);
      fetch(dy + (rows + m) * wide, wide);
    };
    lanes == kKeys
        ? differentiate<kKeys>(s, ds, rows, lanes, seen, in.scale, in.lse + row, in.dot + row,
                               ahead)
        : differentiate<0>(s, ds, rows, lanes, seen, in.scale, in.lse + row, in.dot + row, ahead);
    if (to.dv) {
      tile_product(keys, wide, rows, Broadcast<T, true>{s, kKeys}, Lanes<const T>{dy, wide},
                   Lanes<T>{dv, wide}, {.add = true});
    }
    if (to.dk) {
      tile_product(keys, wide, rows, Broadcast<T, true>{ds, kKeys}, Lanes<const T>{q, wide},
                   Lanes<T>{dk, wide}, {.add = true});
    }
    if (to.dq) {
      tile_product(rows, wide, keys, Broadcast<T, false>{ds, kKeys},
                   Lanes<const T>{in.k + (keys_head + first) * wide, wide},
                   Lanes<T>{to.dq + t * wide, wide}, {.add = true});
    }
  }
  for (int64_t n = 0; n < keys; ++n) {
    if (to.dk) std::copy_n(dk + n * wide, d, to.dk + (first + n) * d);
    if (to.dv) std::copy_n(dv + n * wide, d, to.dv + (first + n) * d);
  }
}

}  // namespace

void flash_attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q, Tensor k,
                              Tensor v, Tensor y, Tensor lse, Visibility visible, double scale) {
  if (q.dtype() == Dtype::bf16 && takes_pairs(q.dim(3))) {
    return flash_attention_pairs_backward(dq, dk, dv, dy, q, k, v, y, lse, visible, scale);
  }
  if (q.dtype() == Dtype::bf16 || q.dtype() == Dtype::f16) {
    return flash_attention_backward(dq, dk, dv, dy, q.to(Dtype::f32), k.to(Dtype::f32),
                                    v.to(Dtype::f32), y, lse, visible, scale);
  }
  const int64_t B = q.dim(0), H = q.dim(1), T = q.dim(2), d = q.dim(3);
  dispatch_float(q.dtype(), [&]<class R>() {
    const Sizes at{.B = B,
                   .H = H,
                   .T = T,
                   .d = d,
                   .group = H / k.dim(1),
                   .wide = whole_vectors<R>(d),
                   .widths = RowWidths(visible, T),
                   .causal = visible.causal};
    Tensor heads = Tensor::empty({B * H * T, at.wide}, q.dtype()), dot = Tensor::like(lse);
    gather_gradient(heads.data<R>(), dot.data<R>(), dy.data<R>(), y.data<R>(), at, R(scale));
    Tensor wide_q = widened<R>(q, at.wide), wide_k = widened<R>(k, at.wide);
    const Operands<R> in{wide_q.data<R>(), wide_k.data<R>(), v.data<R>(), heads.data<R>(),
                         lse.data<R>(),    dot.data<R>(),    R(scale)};
    each_tile_of_keys<R>(dq, dk, dv, q.shape(), at.wide, at.widths, kKeys,
                         [&](int64_t bh, int64_t first, int64_t keys, const HeadGradients<R>& to) {
                           tile_of_keys(bh, first, keys, at, in, to);
                         });
  });
}

}  // namespace brine::BRINE_CPU
