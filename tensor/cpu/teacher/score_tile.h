// Tiles of rows of an attention map, recomputed from q and k, or read from a map.
#pragma once

#include <algorithm>

#include "tensor/base/math.h"
#include "tensor/cpu/core/gemm_f64.h"
#include "tensor/mask/teacher.h"

namespace brine::BRINE_CPU {

// scores [rows, keys] = q [rows, d] k [keys, d]^T, not scaled.
template <class T>
void score_tile(T* scores, const T* q, const T* k, int64_t rows, int64_t keys, int64_t d) {
  onednn::gemm({.M = rows, .N = keys, .K = d, .tb = true, .lda = d, .ldb = d, .ldc = keys}, q, k,
               scores);
}

// Rows of a tile: about a quarter of a megabyte of scores, a multiple of the rows of the product
// kernel.
inline int64_t tile_rows(int64_t keys) {
  return std::clamp<int64_t>((int64_t(1) << 16) / std::max<int64_t>(keys, 1) / 16 * 16, 32, 256);
}

// The rows of a teacher's attention, of type T.
template <class T>
class TeacherRows {
 public:
  TeacherRows(const TeacherAttention& teacher, int64_t rows)
      : map_(teacher.map.defined() ? teacher.map.data<T>() : nullptr),
        wide_q_(map_ ? Tensor() : teacher.q.to(DtypeOf<T>::value)),
        wide_k_(map_ ? Tensor() : teacher.k.to(DtypeOf<T>::value)),
        q_(map_ ? nullptr : wide_q_.template data<T>()),
        k_(map_ ? nullptr : wide_k_.template data<T>()),
        d_(map_ ? 0 : teacher.q.dim(3)),
        rows_(rows) {}

  bool has_map() const { return map_ != nullptr; }
  const T* map_row(int64_t bh, int64_t t) const { return map_ + (bh * rows_ + t) * rows_; }
  T scale() const { return T(1 / std::sqrt(double(d_))); }

  // The teacher's scores of rows [t0, t0 + rows) against the first `keys` keys, not scaled.
  void scores(T* out, int64_t bh, int64_t t0, int64_t rows, int64_t keys) const {
    score_tile(out, q_ + (bh * rows_ + t0) * d_, k_ + bh * rows_ * d_, rows, keys, d_);
  }

 private:
  const T* map_;
  Tensor wide_q_, wide_k_;  // keep the memory of q_ and k_ alive
  const T *q_, *k_;
  int64_t d_, rows_;
};

// p = softmax(scale s) over the first w of a row, p may be s; returns the log-sum-exp of scale s.
template <class T>
T softmax_row(T* p, const T* s, int64_t w, T scale) {
  T maximum = s[0] * scale, sum = 0;
#pragma omp simd reduction(max : maximum)
  for (int64_t j = 0; j < w; ++j) maximum = s[j] * scale > maximum ? s[j] * scale : maximum;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < w; ++j) {
    p[j] = math::exp(s[j] * scale - maximum);
    sum += p[j];
  }
  T inverse = 1 / sum;
#pragma omp simd
  for (int64_t j = 0; j < w; ++j) p[j] *= inverse;
  return maximum + math::log(sum);
}

}  // namespace brine::BRINE_CPU
