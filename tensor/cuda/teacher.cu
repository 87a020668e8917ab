// The summary of a teacher's attention that L_approx needs, by tiles of rows and keys: one pass
// over a map; from q and k one pass for the log-sum-exp of the rows and one for the rest.
#include "tensor/cuda/columns.cuh"
#include "tensor/cuda/score_tile.cuh"
#include "tensor/kernels_sparse.h"

namespace brine::cuda {
namespace {

constexpr int kParts = kTileThreads / kSide;  // threads that sum the columns of a row

// tau += the mass of a tile's keys. A column belongs to the same thread in every tile, so it may
// add to memory; w, keys of the thread's row, from key0 on.
template <class T>
__device__ void add_columns(T* tau, const T* row, int64_t w, int64_t key0, int64_t K) {
  const int64_t end = w < key0 + kSide ? w : key0 + kSide;
  if (key0 >= end) return;
  const int64_t last = column_of(end - 1, w, K);
  int64_t c = column_of(key0, w, K), part = int64_t(threadIdx.x) % kParts;
  c += (part - c % kParts + kParts) % kParts;
  for (; c <= last; c += kParts) {
    const int64_t begin = column_begin(c, w, K), behind = column_begin(c + 1, w, K);
    T sum = 0;
    const int from = int((begin > key0 ? begin : key0) - key0);
    const int to = int((behind < end ? behind : end) - key0);
    for (int j = from; j < to; ++j) sum += row[j];
    if (from < to) tau[c] += sum;
  }
}

// What a thread adds up of its rows.
template <class T>
struct RowSums {
  T logs[4] = {}, squares[4] = {};

  __device__ void write(T* t_log_t, T* t_square, const RowTile& at, int64_t rows) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const T log = row_sum(logs[i]), square = row_sum(squares[i]);
      const int64_t t = at.first + tile_row(i);
      if (tile_x() > 0 || t >= rows) continue;
      t_log_t[at.bh * rows + t] = log;
      t_square[at.bh * rows + t] = square;
    }
  }
};

template <class T>
__device__ void teacher_lse(T (&lse)[4], T* tiles, const TeacherView<T>& teacher,
                            const RowTile& at) {
  TileLse<T> running[4];
  for (int64_t key0 = 0; key0 < at.keys; key0 += kSide) {
    Scores<T> u;
    teacher.scores(u, tiles, at.bh, at.first, at.rows, key0, at.keys_from(key0));
#pragma unroll
    for (int i = 0; i < 4; ++i) running[i].add(u[i], at.w[i] - key0);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) lse[i] = running[i].whole();
}

// t = the teacher's attention in a tile, 0 where it is not seen; adds to the sums of the rows.
template <class T>
__device__ void teacher_tile(Scores<T>& t, RowSums<T>& sums, T* tiles,
                             const TeacherView<T>& teacher, const RowTile& at, int64_t key0,
                             const T (&lse)[4]) {
  const bool has_map = teacher.map != nullptr;
  if (has_map) {
    teacher.read(t, at.bh, at.first, key0, at.w);
  } else {
    teacher.scores(t, tiles, at.bh, at.first, at.rows, key0, at.keys_from(key0));
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      T p = t[i][j], log = 0;
      if (has_map) {
        log = p > 0 ? math::log(p) : T(0);
      } else if (key0 + tile_key(j) < at.w[i]) {
        log = p - lse[i];
        p = math::exp(log);
      } else {
        p = 0;
      }
      sums.logs[i] += p > 0 ? p * log : T(0);
      sums.squares[i] += p * p;
      t[i][j] = p;
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    summarize_kernel(T* tau, T* t_log_t, T* t_square, TeacherView<T> teacher, Widths widths,
                     int64_t heads, int64_t H, int64_t K) {
  T *tiles = dynamic_shared<T>(), *shown = tiles;  // the queries' tile, once the scores are made
  const RowTile at = last_tiles_first(widths, heads, H);
  const int64_t own = threadIdx.x / kParts, rows = widths.rows;
  const int64_t w = widths(at.b, at.first + own);
  T* const mine = tau + (at.bh * rows + at.first + own) * K;
  const int64_t here = rows - at.first < kSide ? rows - at.first : int64_t(kSide);
  for (int64_t e = threadIdx.x; e < here * K; e += kTileThreads) {
    tau[(at.bh * rows + at.first) * K + e] = 0;
  }
  T lse[4] = {};
  if (!teacher.map) teacher_lse(lse, tiles, teacher, at);
  RowSums<T> sums;
  for (int64_t key0 = 0; key0 < at.keys; key0 += kSide) {
    Scores<T> t;
    teacher_tile(t, sums, tiles, teacher, at, key0, lse);
    __syncthreads();  // the tile before may still be summed, the queries' be read
    store_tile(shown, t);
    __syncthreads();
    if (own < at.rows) add_columns(mine, shown + own * kPitch<T>, w, key0, K);
  }
  sums.write(t_log_t, t_square, at, rows);
}

}  // namespace

void summarize_teacher(TeacherSummary summary, TeacherAttention teacher, Visibility see) {
  const int64_t B = summary.tau.dim(0), H = summary.tau.dim(1), rows = summary.tau.dim(2);
  const int64_t K = summary.tau.dim(3), blocks = B * H * tiles_of(rows);
  if (blocks == 0) return;
  const DeviceWidths widths(see, rows, summary.tau.device());
  dispatch_float(summary.tau.dtype(), [&]<class T>() {
    launch("summarize_teacher", summarize_kernel<T>, dim3(blocks_for(blocks, 1)),
           dim3(kTileThreads), tile_bytes<T>(2), summary.tau.data<T>(), summary.t_log_t.data<T>(),
           summary.t_square.data<T>(), TeacherView<T>(teacher, rows), widths.get(), B * H, H, K);
  });
}

}  // namespace brine::cuda
