// The summary of a teacher's attention that L_approx needs, by tiles of rows and keys: one pass
// over a map; from q and k one pass for the log-sum-exp of the rows and one for the rest.
#include "tensor/cuda/core/columns.cuh"
#include "tensor/cuda/teacher/score_tile.cuh"
#include "tensor/kernels/teacher.h"

namespace brine::cuda {
namespace {

// Threads that sum the columns of a row.
template <class Layout>
constexpr int kParts = Layout::threads / Layout::rows;

// tau += the mass of a tile's keys. A column belongs to the same thread in every tile, so that
// thread may accumulate in memory; w, keys of the thread's row, from key0 on.
template <class Layout, class T>
__device__ void add_columns(T* tau, const T* row, int64_t w, int64_t key0, int64_t K) {
  constexpr int parts = kParts<Layout>;
  const int64_t end = w < key0 + Layout::rows ? w : key0 + Layout::rows;
  if (key0 >= end) return;
  const int64_t last = column_of(end - 1, w, K);
  int64_t c = column_of(key0, w, K), part = int64_t(threadIdx.x) % parts;
  c += (part - c % parts + parts) % parts;
  for (; c <= last; c += parts) {
    const int64_t begin = column_begin(c, w, K), column_end = column_begin(c + 1, w, K);
    T sum = 0;
    const int from = int((begin > key0 ? begin : key0) - key0);
    const int to = int((column_end < end ? column_end : end) - key0);
    for (int j = from; j < to; ++j) sum += row[j];
    if (from < to) tau[c] += sum;
  }
}

// A thread's sums over its rows.
template <class Layout, class T = typename Layout::T>
struct SummaryRow {
  T logs[Layout::thread_rows] = {}, squares[Layout::thread_rows] = {};

  __device__ void write(T* t_log_t, T* t_square, const RowTile<Layout>& at, int64_t rows) const {
#pragma unroll
    for (int i = 0; i < Layout::thread_rows; ++i) {
      const T log = row_sum<Layout>(logs[i]), square = row_sum<Layout>(squares[i]);
      const int64_t t = at.first + Layout::row(i);
      if (!first_of_row<Layout>() || t >= rows) continue;
      t_log_t[at.bh * rows + t] = log;
      t_square[at.bh * rows + t] = square;
    }
  }
};

template <class Layout, class T>
__device__ void teacher_lse(T (&lse)[Layout::thread_rows], ScoreTiles<Layout, 1>& tiles,
                            const TeacherView<T>& teacher, const RowTile<Layout>& at) {
  TileLse<Layout> running[Layout::thread_rows];
  for (int64_t key0 = 0; key0 < at.keys; key0 += Layout::rows) {
    Scores<Layout> u;
    tiles.score(u, at.scores(teacher.q, teacher.k, teacher.scale, teacher.rows, key0));
#pragma unroll
    for (int i = 0; i < Layout::thread_rows; ++i) running[i].add(u[i], at.w[i] - key0);
  }
#pragma unroll
  for (int i = 0; i < Layout::thread_rows; ++i) lse[i] = running[i].whole();
}

// t = the teacher's attention in a tile, 0 where it is not visible; adds to the sums of the rows.
template <class Layout, class T>
__device__ void teacher_tile(Scores<Layout>& t, SummaryRow<Layout>& sums,
                             ScoreTiles<Layout, 1>& tiles, const TeacherView<T>& teacher,
                             const RowTile<Layout>& at, int64_t key0,
                             const T (&lse)[Layout::thread_rows]) {
  const bool has_map = teacher.map != nullptr;
  if (has_map) {
    at.read(t, teacher, key0);
  } else {
    tiles.score(t, at.scores(teacher.q, teacher.k, teacher.scale, teacher.rows, key0));
  }
  each_score<Layout>(t, [&](int i, int n, T& x) {
    T p = x, log = 0;
    if (has_map) {
      log = p > 0 ? math::log(p) : T(0);
    } else if (key0 + Layout::key(n) < at.w[i]) {
      log = p - lse[i];
      p = math::exp(log);
    } else {
      p = 0;
    }
    sums.logs[i] += p > 0 ? p * log : T(0);
    sums.squares[i] += p * p;
    x = p;
  });
}

template <class Layout, class T = typename Layout::T>
__global__ void __launch_bounds__(Layout::threads, kScoreBlocks<Layout>)
    summarize_kernel(T* tau, T* t_log_t, T* t_square, TeacherView<T> teacher, RowWidths widths,
                     int64_t heads, int64_t H, int64_t K) {
  ScoreTiles<Layout, 1> tiles(dynamic_shared<T>());
  T* const shown = tiles.moved();  // the keys' tile, after the scores are computed
  const auto at = last_tiles_first<Layout>(widths, heads, H);
  const int64_t row = threadIdx.x / kParts<Layout>, rows = widths.rows;
  const int64_t w = widths(at.b, at.first + row);
  T* const row_tau = tau + (at.bh * rows + at.first + row) * K;
  const int64_t here = rows - at.first < Layout::rows ? rows - at.first : int64_t(Layout::rows);
  for (int64_t e = threadIdx.x; e < here * K; e += Layout::threads) {
    tau[(at.bh * rows + at.first) * K + e] = 0;
  }
  T lse[Layout::thread_rows] = {};
  if (!teacher.map) teacher_lse(lse, tiles, teacher, at);
  SummaryRow<Layout> sums;
  for (int64_t key0 = 0; key0 < at.keys; key0 += Layout::rows) {
    Scores<Layout> t;
    teacher_tile(t, sums, tiles, teacher, at, key0, lse);
    __syncthreads();  // the previous tile may still be summed, the keys' tile be read
    each_score<Layout>(t, [&](int i, int n, T& x) {
      shown[Layout::row(i) * Layout::score_step + Layout::key(n)] = x;
    });
    __syncthreads();
    if (row < at.rows) {
      add_columns<Layout>(row_tau, shown + row * Layout::score_step, w, key0, K);
    }
  }
  sums.write(t_log_t, t_square, at, rows);
}

}  // namespace

void summarize_teacher(TeacherSummary summary, TeacherAttention teacher, Visibility visible) {
  const int64_t B = summary.tau.dim(0), H = summary.tau.dim(1), rows = summary.tau.dim(2);
  const int64_t K = summary.tau.dim(3);
  if (B * H * rows == 0) return;
  const DeviceWidths widths(visible, rows, summary.tau.device());
  dispatch_float(summary.tau.dtype(), [&]<class T>() {
    dispatch_scores<T>({teacher.q}, [&]<class Layout>() {
      launch("summarize_teacher", summarize_kernel<Layout>,
             dim3(blocks_for(B * H * tiles_of<Layout>(rows), 1)), dim3(Layout::threads),
             tile_bytes<Layout>(ScoreTiles<Layout, 1>::count), summary.tau.data<T>(),
             summary.t_log_t.data<T>(), summary.t_square.data<T>(), TeacherView<T>(teacher, rows),
             widths.get(), B * H, H, K);
    });
  });
}

}  // namespace brine::cuda
