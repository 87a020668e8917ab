// L_prob: the distance of softmax(q k^T / sqrt d) from the teacher's attention, by tiles of rows.
//
// Forward keeps two numbers per row; the backward pass recomputes each tile of scores, converts it
// in place to the gradient of the scores and multiplies that with k and q. Tiles skip the keys that
// none of their rows sees.
#include <vector>

#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/teacher/score_tile.h"
#include "tensor/kernels/teacher.h"

namespace brine::BRINE_CPU {
namespace {

struct RowLoss {
  double kl = 0, square = 0;
};

// Scaled scores s -> {KL, sum of squares} and the log-sum-exp. a and t are scratch rows.
template <class T>
RowLoss row_loss(T* a, const T* s, const T* t, int64_t w, T scale, T& lse) {
  lse = softmax_row(a, s, w, scale);
  T shift = lse, kl = 0, square = 0;
#pragma omp simd reduction(+ : kl, square)
  for (int64_t j = 0; j < w; ++j) {
    T off = a[j] - t[j];
    kl += t[j] > 0 ? t[j] * (math::log(t[j]) - (s[j] * scale - shift)) : T(0);
    square += off * off;
  }
  return {double(kl), double(square)};
}

// As above, from the teacher's scores u: t log t needs no logarithm.
template <class T>
RowLoss row_loss(T* a, T* t, const T* s, const T* u, int64_t w, T scale, T teacher_scale, T& lse,
                 T& teacher_lse) {
  lse = softmax_row(a, s, w, scale);
  teacher_lse = softmax_row(t, u, w, teacher_scale);
  T shift = teacher_lse - lse, kl = 0, square = 0;
#pragma omp simd reduction(+ : kl, square)
  for (int64_t j = 0; j < w; ++j) {
    T off = a[j] - t[j];
    kl += t[j] * (u[j] * teacher_scale - s[j] * scale - shift);
    square += off * off;
  }
  return {double(kl), double(square)};
}

struct Weights {
  double kl = 0, square = 0;
};

// s -> the gradient of the unscaled scores; t = the teacher's row.
template <class T>
void row_gradient(T* s, const T* t, int64_t w, T scale, T lse, const Weights& weights) {
  T mass = 0, mean = 0;
#pragma omp simd reduction(+ : mass, mean)
  for (int64_t j = 0; j < w; ++j) {
    s[j] = math::exp(s[j] * scale - lse);
    mass += t[j];
    mean += s[j] * (s[j] - t[j]);
  }
  T kl = T(weights.kl) * scale, square = T(weights.square) * scale;
#pragma omp simd
  for (int64_t j = 0; j < w; ++j) {
    s[j] = kl * (mass * s[j] - t[j]) + square * s[j] * (s[j] - t[j] - mean);
  }
}

// A tile: rows [first, first + rows) of head bh, which see at most `keys` keys.
struct Tile {
  int64_t bh, b, first, rows, keys;
};

Tile tile_at(int64_t bh, int64_t tile, int64_t step, int64_t H, const RowWidths& widths) {
  Tile at{bh, bh / H, tile * step, 0, 0};
  at.rows = std::max<int64_t>(0, std::min(step, widths.valid(at.b) - at.first));
  at.keys = at.rows ? widths(at.b, at.first + at.rows - 1) : 0;
  return at;
}

template <class T>
RowLoss tile_loss(const Tile& at, const T* q, const T* k, const TeacherRows<T>& teacher,
                  const RowWidths& widths, int64_t d, T scale, T* lse, T* teacher_lse) {
  thread_local std::vector<T> scores, theirs, a, t;
  scores.resize(size_t(at.rows * at.keys));
  a.resize(size_t(at.keys));
  score_tile(scores.data(), q + (at.bh * widths.rows + at.first) * d, k + at.bh * widths.rows * d,
             at.rows, at.keys, d);
  if (!teacher.has_map()) {
    t.resize(size_t(at.keys));
    theirs.resize(size_t(at.rows * at.keys));
    teacher.scores(theirs.data(), at.bh, at.first, at.rows, at.keys);
  }
  RowLoss sum;
  for (int64_t i = 0; i < at.rows; ++i) {
    int64_t row = at.first + i, r = at.bh * widths.rows + row, w = widths(at.b, row);
    const T* s = scores.data() + i * at.keys;
    teacher_lse[r] = 0;
    RowLoss loss = teacher.has_map()
                       ? row_loss(a.data(), s, teacher.map_row(at.bh, row), w, scale, lse[r])
                       : row_loss(a.data(), t.data(), s, theirs.data() + i * at.keys, w, scale,
                                  teacher.scale(), lse[r], teacher_lse[r]);
    sum.kl += loss.kl;
    sum.square += loss.square / double(widths.length(at.b));
  }
  return sum;
}

// ds [rows, keys], 0 where a row does not see a key.
template <class T>
void tile_gradient(T* ds, std::vector<T>& theirs, const Tile& at, const T* q, const T* k,
                   const TeacherRows<T>& teacher, const RowWidths& widths, int64_t d, T scale,
                   const T* lse, const T* teacher_lse, const Weights& weights) {
  score_tile(ds, q + (at.bh * widths.rows + at.first) * d, k + at.bh * widths.rows * d, at.rows,
             at.keys, d);
  if (!teacher.has_map()) {
    theirs.resize(size_t(at.rows * at.keys));
    teacher.scores(theirs.data(), at.bh, at.first, at.rows, at.keys);
  }
  Weights row_weights = {weights.kl, 2 * weights.square / double(widths.length(at.b))};
  for (int64_t i = 0; i < at.rows; ++i) {
    int64_t row = at.first + i, r = at.bh * widths.rows + row, w = widths(at.b, row);
    T* s = ds + i * at.keys;
    const T* t = nullptr;
    if (teacher.has_map()) {
      t = teacher.map_row(at.bh, row);
    } else {
      T *u = theirs.data() + i * at.keys, factor = teacher.scale(), shift = teacher_lse[r];
#pragma omp simd
      for (int64_t j = 0; j < w; ++j) u[j] = math::exp(u[j] * factor - shift);
      t = u;
    }
    row_gradient(s, t, w, scale, lse[r], row_weights);
    std::fill(s + w, s + at.keys, T(0));
  }
}

}  // namespace

void prob_loss(Tensor y, Tensor lse, Tensor teacher_lse, Tensor q, Tensor k,
               TeacherAttention teacher, Visibility visible, double scale) {
  int64_t B = q.dim(0), H = q.dim(1), T = q.dim(2), d = q.dim(3);
  int64_t step = tile_rows(T), tiles = (T + step - 1) / step;
  RowWidths widths(visible, T);
  std::vector<RowLoss> parts(static_cast<size_t>(B * H * tiles));
  q = q.to(lse.dtype()), k = k.to(lse.dtype());
  dispatch_float(q.dtype(), [&]<class R>() {
    TeacherRows<R> rows(teacher, T);
    R *lse_data = lse.data<R>(), *teacher_lse_data = teacher_lse.data<R>();
    for_pieces(B * H * tiles, d * B * H * T * T, [&](int64_t i) {
      // The long rows of a causal mask come first, so that threads finish at similar times.
      Tile at = tile_at(i / tiles, tiles - 1 - i % tiles, step, H, widths);
      for (int64_t t = at.first + at.rows; t < std::min(T, at.first + step); ++t) {
        lse_data[at.bh * T + t] = teacher_lse_data[at.bh * T + t] = 0;
      }
      if (at.rows == 0) return;
      parts[size_t(i)] = tile_loss(at, q.data<R>(), k.data<R>(), rows, widths, d, R(scale),
                                   lse_data, teacher_lse_data);
    });
    RowLoss sum;
    for (const RowLoss& part : parts) {
      sum.kl += part.kl;
      sum.square += part.square;
    }
    double count = double(H * widths.valid_rows(B));
    y.data<R>()[0] = count > 0 ? R(sum.kl / count) : R(0);
    y.data<R>()[1] = count > 0 ? R(sum.square / count) : R(0);
  });
}

void prob_loss_backward(Tensor dq, Tensor dk, Tensor dy, Tensor q, Tensor k,
                        TeacherAttention teacher, Tensor lse, Tensor teacher_lse,
                        Visibility visible, double scale) {
  int64_t B = q.dim(0), H = q.dim(1), T = q.dim(2), d = q.dim(3);
  int64_t step = tile_rows(T), tiles = (T + step - 1) / step;
  // The tiles of a head are distributed over a few pieces, each with a separate dk; the
  // distribution depends only on the sizes.
  int64_t pieces =
      std::clamp<int64_t>(16 / std::max<int64_t>(1, B * H), 1, std::max<int64_t>(1, tiles));
  RowWidths widths(visible, T);
  double count = double(H * widths.valid_rows(B));
  q = q.to(lse.dtype()), k = k.to(lse.dtype());
  dispatch_float(q.dtype(), [&]<class R>() {
    Weights weights{double(dy.data<R>()[0]) / count, double(dy.data<R>()[1]) / count};
    TeacherRows<R> rows(teacher, T);
    Tensor parts = pieces == 1 ? dk : Tensor::empty({B * H, pieces, T, d}, dk.dtype());
    const R *xq = q.data<R>(), *xk = k.data<R>();
    for_pieces(B * H * pieces, d * B * H * T * T, [&](int64_t i) {
      thread_local std::vector<R> ds, theirs;
      int64_t bh = i / pieces;
      R *gq = dq.data<R>() + bh * T * d, *gk = parts.data<R>() + i * T * d;
      std::fill_n(gk, T * d, R(0));
      for (int64_t tile = i % pieces; tile < tiles; tile += pieces) {
        Tile at = tile_at(bh, tile, step, H, widths);
        int64_t end = std::min(T, at.first + step);
        std::fill(gq + (at.first + at.rows) * d, gq + end * d, R(0));
        if (at.rows == 0) continue;
        ds.resize(size_t(at.rows * at.keys));
        tile_gradient(ds.data(), theirs, at, xq, xk, rows, widths, d, R(scale), lse.data<R>(),
                      teacher_lse.data<R>(), weights);
        onednn::gemm({.M = at.rows, .N = d, .K = at.keys, .lda = at.keys, .ldb = d, .ldc = d},
                     ds.data(), xk + bh * T * d, gq + at.first * d);
        onednn::gemm({.M = at.keys,
                      .N = d,
                      .K = at.rows,
                      .ta = true,
                      .lda = at.keys,
                      .ldb = d,
                      .ldc = d,
                      .beta = 1},
                     ds.data(), xq + (bh * T + at.first) * d, gk);
      }
    });
    if (pieces == 1) return;
    parallel_for(B * H * T, 64, [&](int64_t r0, int64_t r1) {
      for (int64_t r = r0; r < r1; ++r) {
        R* out = dk.data<R>() + r * d;
        const R* from = parts.data<R>() + (r / T * pieces * T + r % T) * d;
        for (int64_t c = 0; c < d; ++c) {
          R sum = from[c];
          for (int64_t p = 1; p < pieces; ++p) sum += from[p * T * d + c];
          out[c] = sum;
        }
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
