// The gradient of L_prob by tiles that make the scores again: dq in a pass over tiles of queries,
// dk in a pass over tiles of keys, each in a fixed order and without T x T memory. With a and t the
// attention of student and teacher, the gradient of a score is
//   ds = kl (mass a - t) + square a (a - t - mean), mass = sum t, mean = sum a (a - t) of its row.
// The first pass does not know mass and mean yet: with
//   ds = (kl + square a) (a - t) + (kl (mass - 1) - square mean) a
// it sums the products of k with both parts separately, and leaves the numbers to the second pass.
// Near the teacher all of this is small, so that rounding a part costs no more than it does in ds.
#include "tensor/cuda/dense/loss_sums.cuh"
#include "tensor/cuda/teacher/score_tile.cuh"
#include "tensor/kernels/teacher.h"

namespace brine::cuda {
namespace {

template <class T>
struct SlopeJob {
  StoredRows<T> q, k;
  const T *lse, *teacher_lse;
  TeacherView<T> teacher;
  RowWidths widths;
  int64_t heads, H;
  T scale;
  const double* weights;  // [2] of KL and MSE, of one row
};

// The weights of a sequence, for scores that are not scaled.
template <class T>
struct Weights {
  T kl, square;
  __device__ Weights(const SlopeJob<T>& job, int64_t b)
      : kl(T(job.weights[0]) * job.scale), square(0) {
    const int64_t length = job.widths.length(b);
    if (length > 0) square = T(2 * job.weights[1] / double(length)) * job.scale;
  }
};

// The work of a block: the rows [first, first + count) of one side of a head with the rows [begin,
// end) of the other. The long tiles of a causal mask come first: the last ones of queries, the
// first ones of keys.
template <class Layout, bool ByKeys>
struct Meeting {
  int64_t bh, b, valid, first, count, begin = 0, end = 0;
  bool causal;

  __device__ Meeting(const RowWidths& widths, int64_t heads, int64_t H) : causal(widths.causal) {
    const int64_t turn = int64_t(blockIdx.x) / heads;
    bh = int64_t(blockIdx.x) % heads;
    b = bh / H;
    valid = widths.valid(b);
    first = (ByKeys ? turn : tiles_of<Layout>(widths.rows) - 1 - turn) * Layout::rows;
    const int64_t left = valid - first;
    count = left < 0 ? 0 : (left < Layout::rows ? left : Layout::rows);
    if (count == 0) return;
    begin = ByKeys && causal ? first : 0;
    end = ByKeys || !causal ? valid : first + count;
  }
  __device__ int64_t others(int64_t other) const {
    return end - other < Layout::rows ? end - other : int64_t(Layout::rows);
  }
  // Of a score of the thread in the tile from `other` on.
  __device__ int64_t query(int i, int n, int64_t other) const {
    return ByKeys ? other + Layout::key(n) : first + Layout::row(i);
  }
  __device__ int64_t key(int i, int n, int64_t other) const {
    return ByKeys ? first + Layout::row(i) : other + Layout::key(n);
  }
  __device__ bool sees(int64_t query, int64_t key) const {
    return query < valid && key < (causal ? query + 1 : valid);
  }
  template <class T>
  __device__ ScoreJob<T> scores(const StoredRows<T>& q, const StoredRows<T>& k, T scale,
                                int64_t rows, int64_t other) const {
    const int64_t head = bh * rows;
    return {ByKeys ? k : q, ByKeys ? q : k, head + first, count,
            head + other,   others(other),  scale};
  }
};

// The thread's data of the rows of queries in its scores: its rows, or those of its keys in the
// layout when the rows of the tile are keys.
template <class Layout, bool ByKeys>
using OfQueries = typename Layout::T[ByKeys ? Layout::keys : Layout::thread_rows];

template <class Layout, bool ByKeys, class F>
__device__ inline void each_query(F&& f) {
#pragma unroll
  for (int i = 0; i < (ByKeys ? Layout::keys : Layout::thread_rows); ++i) f(i);
}

// a, t = the attention in the tile from `other` on, 0 where it is not visible. The last columns of
// the student's moving rows are left in `tiles`.
template <class Layout, bool ByKeys, class T>
__device__ void attention_tile(Scores<Layout>& a, Scores<Layout>& t, ScoreTiles<Layout>& tiles,
                               const SlopeJob<T>& job, const Meeting<Layout, ByKeys>& at,
                               int64_t other) {
  const int64_t rows = job.widths.rows, head = at.bh * rows;
  const TeacherView<T>& teacher = job.teacher;
  if (!teacher.map) {
    tiles.score_teacher(t, at.scores(teacher.q, teacher.k, teacher.scale, rows, other));
  }
  tiles.score(a, at.scores(job.q, job.k, job.scale, rows, other));
  OfQueries<Layout, ByKeys> lse, teacher_lse;
  each_query<Layout, ByKeys>([&](int i) {
    const int64_t query = at.query(i, i, other);
    const bool inside = query < at.valid;
    lse[i] = inside ? job.lse[head + query] : T(0);
    teacher_lse[i] = inside ? job.teacher_lse[head + query] : T(0);
  });
  each_score<Layout>(a, [&](int i, int n, T& x) {
    const int64_t query = at.query(i, n, other), key = at.key(i, n, other);
    const int local_query = ByKeys ? n : i;
    const bool seen = at.sees(query, key);
    x = seen ? math::exp(x - lse[local_query]) : T(0);
    if (teacher.map) {
      t[i][n] = seen ? teacher.map[(head + query) * rows + key] : T(0);
    } else {
      t[i][n] = seen ? math::exp(t[i][n] - teacher_lse[local_query]) : T(0);
    }
  });
}

// The columns [c0, c0 + 64) of the moving rows: the tile of the last columns, if it is that one.
template <class Layout, bool ByKeys, class T>
__device__ const T* moved_columns(ScoreTiles<Layout>& tiles, const StoredRows<T>& moves,
                                  const Meeting<Layout, ByKeys>& at, int64_t rows, int64_t other,
                                  int64_t c0) {
  if (moves.d > kSide) {
    __syncthreads();  // the tile may still be read
    moves.template load<Layout>(tiles.moved(), at.bh * rows + other, at.others(other), c0);
    __syncthreads();
  }
  return tiles.moved();
}

// A thread's part of a tile of results.
template <class Layout>
using Sums = typename Layout::T[Layout::thread_rows][Layout::columns];

// y [., d] = sums at `rows` rows and the columns from c0 on.
template <class Layout, class T>
__device__ void write_tile(T* y, const Sums<Layout>& sums, int64_t rows, int64_t d, int64_t c0) {
#pragma unroll
  for (int i = 0; i < Layout::thread_rows; ++i) {
    if (Layout::row(i) >= rows) continue;
#pragma unroll
    for (int c = 0; c < Layout::columns; ++c) {
      const int64_t column = c0 + Layout::column(c);
      if (column < d) y[Layout::row(i) * d + column] = sums[i][c];
    }
  }
}

// stats [rows, 2] = {mass, mean}. blockIdx.y counts pieces of 64 columns of d. Two blocks instead
// of kScoreBlocks: with sums in addition to the scores a third one would have to spill.
template <class Layout, class T = typename Layout::T>
__global__ void __launch_bounds__(Layout::threads, 2)
    prob_loss_dq_kernel(T* dq, T* stats, SlopeJob<T> job) {
  ScoreTiles<Layout> tiles(dynamic_shared<T>());
  const Meeting<Layout, false> at(job.widths, job.heads, job.H);
  const int64_t c0 = int64_t(blockIdx.y) * kSide, rows = job.widths.rows, d = job.q.d;
  const Weights<T> weights(job, at.b);
  Sums<Layout> sum_a{}, sum_rest{};
  T mass[Layout::thread_rows] = {}, mean[Layout::thread_rows] = {};
  for (int64_t key0 = at.begin; key0 < at.end; key0 += Layout::rows) {
    Scores<Layout> a, t;
    attention_tile(a, t, tiles, job, at, key0);
    each_score<Layout>(t, [&](int i, int n, T& x) {
      const T p = a[i][n], difference = p - x;
      mass[i] += x;
      mean[i] += p * difference;
      x = (weights.kl + weights.square * p) * difference;
    });
    const T* keys = moved_columns(tiles, job.k, at, rows, key0, c0);
    Layout::add(sum_a, a, keys, tiles.rest());
    Layout::add(sum_rest, t, keys, tiles.rest());
  }
#pragma unroll
  for (int i = 0; i < Layout::thread_rows; ++i) {
    mass[i] = row_sum<Layout>(mass[i]);
    mean[i] = row_sum<Layout>(mean[i]);
    const T factor = weights.kl * (mass[i] - 1) - weights.square * mean[i];
#pragma unroll
    for (int c = 0; c < Layout::columns; ++c) sum_rest[i][c] += factor * sum_a[i][c];
    if (!first_of_row<Layout>() || c0 > 0 || Layout::row(i) >= at.count) continue;
    T* to = stats + 2 * (at.bh * rows + at.first + Layout::row(i));
    to[0] = mass[i];
    to[1] = mean[i];
  }
  write_tile<Layout>(dq + (at.bh * rows + at.first) * d, sum_rest, rows - at.first, d, c0);
}

template <class Layout, class T = typename Layout::T>
__global__ void __launch_bounds__(Layout::threads, 2)
    prob_loss_dk_kernel(T* dk, const T* stats, SlopeJob<T> job) {
  ScoreTiles<Layout> tiles(dynamic_shared<T>());
  const Meeting<Layout, true> at(job.widths, job.heads, job.H);
  const int64_t c0 = int64_t(blockIdx.y) * kSide, rows = job.widths.rows, d = job.q.d;
  const Weights<T> weights(job, at.b);
  Sums<Layout> sums{};
  for (int64_t query0 = at.begin; query0 < at.end; query0 += Layout::rows) {
    Scores<Layout> a, t;
    attention_tile(a, t, tiles, job, at, query0);
    OfQueries<Layout, true> mass, mean;
    each_query<Layout, true>([&](int n) {
      const int64_t query = query0 + Layout::key(n);
      const T* from = stats + 2 * (at.bh * rows + query);
      mass[n] = query < at.valid ? from[0] : T(0);
      mean[n] = query < at.valid ? from[1] : T(0);
    });
    each_score<Layout>(a, [&](int i, int n, T& p) {
      const T target = t[i][n];
      p = weights.kl * (mass[n] * p - target) + weights.square * p * (p - target - mean[n]);
    });
    const T* queries = moved_columns(tiles, job.q, at, rows, query0, c0);
    Layout::add(sums, a, queries, tiles.rest());
  }
  write_tile<Layout>(dk + (at.bh * rows + at.first) * d, sums, rows - at.first, d, c0);
}

}  // namespace

void prob_loss_backward(Tensor dq, Tensor dk, Tensor dy, Tensor q, Tensor k,
                        TeacherAttention teacher, Tensor lse, Tensor teacher_lse,
                        Visibility visible, double scale) {
  const int64_t B = q.dim(0), H = q.dim(1), rows = q.dim(2), d = q.dim(3);
  if (B * H * rows == 0 || d == 0) return;
  const DeviceWidths widths(visible, rows, q.device());
  Tensor weights = Tensor::empty({2}, Dtype::f64, q.device());
  Tensor stats = Tensor::empty({B * H * rows, 2}, lse.dtype(), q.device());
  dispatch_float(lse.dtype(), [&]<class T>() {
    launch("prob_loss_backward", loss_weights_kernel<T>, dim3(1), dim3(kThreads), 0,
           weights.data<double>(), dy.data<T>(), widths.get(), B, H);
    const SlopeJob<T> job{.q = StoredRows<T>(q),
                          .k = StoredRows<T>(k),
                          .lse = lse.data<T>(),
                          .teacher_lse = teacher_lse.data<T>(),
                          .teacher = TeacherView<T>(teacher, rows),
                          .widths = widths.get(),
                          .heads = B * H,
                          .H = H,
                          .scale = T(scale),
                          .weights = weights.data<double>()};
    dispatch_scores<T>({q, teacher.q}, [&]<class Layout>() {
      const dim3 grid(blocks_for(B * H * tiles_of<Layout>(rows), 1),
                      unsigned((d + kSide - 1) / kSide));
      const size_t shared = tile_bytes<Layout>(ScoreTiles<Layout>::count, Layout::weights);
      launch("prob_loss_backward", prob_loss_dq_kernel<Layout>, grid, dim3(Layout::threads), shared,
             dq.data<T>(), stats.data<T>(), job);
      launch("prob_loss_backward", prob_loss_dk_kernel<Layout>, grid, dim3(Layout::threads), shared,
             dk.data<T>(), stats.data<T>(), job);
    });
  });
}

}  // namespace brine::cuda
