// Rows of attention maps, as many at a time as memory allows: products of cuBLASLt, or the rows of
// a teacher's map.
#pragma once

#include "tensor/cuda/core/packs.cuh"
#include "tensor/cuda/core/scratch.h"
#include "tensor/kernels/dense.h"
#include "tensor/mask/teacher.h"

namespace brine::cuda {

// Rows first .. first + count of all H heads of sequence b, of `rows`, and the first `keys` keys,
// among which are those that these rows see. Padding is in no piece.
struct MapPiece {
  int64_t b, H, rows, length, first, count, keys;
  bool causal;

  // The row of the calling block, one of H x count.
  __device__ int64_t head() const { return quotient(blockIdx.x, count); }
  __device__ int64_t line() const { return blockIdx.x - head() * count; }
  __device__ int64_t row() const { return (b * H + head()) * rows + first + line(); }
  __device__ int64_t width() const { return causal ? first + line() + 1 : length; }

  // The piece's rows, or the first keys, of x [B, H, rows, d].
  Tensor rows_of(const Tensor& x) const { return x.select(0, b).slice(1, first, count); }
  Tensor keys_of(const Tensor& x) const { return x.select(0, b).slice(1, 0, keys); }
  Tensor scores(const Tensor& q, const Tensor& k, Dtype dtype) const {
    Tensor y = Tensor::empty({H, count, keys}, dtype, q.device());
    matmul(y, rows_of(q), keys_of(k), false, true, 1, 0);
    return y;
  }
  // The teacher's map, or its scores, which are not scaled.
  Tensor of_teacher(const TeacherAttention& teacher, Dtype dtype) const {
    if (!teacher.map.defined()) return scores(teacher.q, teacher.k, dtype);
    return rows_of(teacher.map).slice(2, 0, keys);
  }
  unsigned blocks() const { return unsigned(H * count); }
};

// A piece's numbers on the device.
template <class T>
struct MapView {
  T* data;
  int64_t head_step, row_step;

  explicit MapView(const Tensor& x)
      : data(x.data<T>()), head_step(x.stride(0)), row_step(x.stride(1)) {}
  __device__ T* row(const MapPiece& at) const {
    return data + at.head() * head_step + at.line() * row_step;
  }
};

// Calls f(piece) for all rows of x [B, H, rows, .] that see a key, for kernels that need `maps`
// numbers of type `dtype` for each row and key. Sizes of products are rounded up, so that a long
// sequence has few of them.
template <class F>
void each_map_piece(const Tensor& x, const Visibility& visible, int64_t maps, Dtype dtype, F&& f) {
  const Tensor lengths = visible.lengths.defined() ? visible.lengths.to(Device{}) : Tensor();
  const RowWidths widths({visible.causal, lengths}, x.dim(2));
  auto up = [](int64_t n, int64_t step) { return (n + step - 1) / step * step; };
  for (int64_t b = 0; b < x.dim(0); ++b) {
    const int64_t valid = widths.valid(b), H = x.dim(1);
    if (valid == 0) continue;
    const int64_t fit = scratch_limit() / (maps * H * valid * int64_t(item_size(dtype)));
    const int64_t whole = visible.causal ? std::max<int64_t>(128, up(valid, 128) / 8) : valid;
    const int64_t step = std::max<int64_t>(16, std::min(fit, whole) / 16 * 16);
    const int64_t key_step = std::max<int64_t>(64, (valid + 15) / 16);
    for (int64_t first = 0; first < valid; first += step) {
      const int64_t count = std::min(step, valid - first);
      const int64_t seen = visible.causal ? up(first + count, key_step) : valid;
      f(MapPiece{b, H, widths.rows, widths.length(b), first, count, std::min(seen, valid),
                 visible.causal});
    }
  }
}

// The log-sum-exp of scale s over the first w of a row; all threads of the block must call.
template <class T>
__device__ double row_lse(const T* s, int64_t w, T scale) {
  T top = -INFINITY;
  for (int64_t j = threadIdx.x; j < w; j += blockDim.x) top = Max{}(top, s[j] * scale);
  top = block_reduce(top, T(-INFINITY), Max{});
  double sum = 0;
  for (int64_t j = threadIdx.x; j < w; j += blockDim.x)
    sum += double(math::exp(s[j] * scale - top));
  return double(top) + log(block_sum(sum));
}

// The scale of a teacher's scores.
inline double teacher_scale(const TeacherAttention& teacher) {
  return teacher.map.defined() ? 1 : 1 / std::sqrt(double(teacher.q.dim(3)));
}

}  // namespace brine::cuda
