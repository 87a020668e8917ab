// L_prob: the distance of softmax(scale q k^T) from the teacher's attention, in one pass over the
// keys. A block has a tile of rows; each thread sums over its keys of a few rows, relative to
// the largest score so far, and the threads of a row are combined at the end.
#include "tensor/cuda/dense/loss_sums.cuh"
#include "tensor/cuda/teacher/score_tile.cuh"
#include "tensor/kernels/dense.h"
#include "tensor/kernels/teacher.h"

namespace brine::cuda {
namespace {

// Sums over keys j of a row with scores s and u, e = exp(s - max), f = exp(u - teacher_max); with a
// map f = t. The squares of e / sum e - f / sum f are computed from sums of products; this is exact
// for these e and f because they are in f64.
template <class Layout, class T = typename Layout::T>
struct RowSums {
  static constexpr int N = Layout::keys;
  T max = -INFINITY, teacher_max = -INFINITY;
  double e = 0, ee = 0, f = 0, ff = 0, ef = 0;
  double kl = 0;  // of f (u - s), with a map of f (log f - s)

  __device__ void scale_student(double by) {
    e *= by;
    ee *= by * by;
    ef *= by;
  }
  __device__ void scale_teacher(double by) {
    f *= by;
    ff *= by * by;
    ef *= by;
    kl *= by;
  }
  __device__ void add(T student, T teacher, T difference) {
    e += double(student);
    ee += double(student) * double(student);
    f += double(teacher);
    ff += double(teacher) * double(teacher);
    ef += double(student) * double(teacher);
    kl += double(teacher) * double(difference);
  }

  __device__ static T raise(T& max, const T (&s)[N], int64_t seen) {
    T top = max;
#pragma unroll
    for (int j = 0; j < N; ++j) top = Layout::key(j) < seen && s[j] > top ? s[j] : top;
    const T factor = top > max ? math::exp(max - top) : T(1);
    max = top;
    return factor;
  }

  // Keys below `seen`, counted from the tile's first; u are the teacher's scores.
  __device__ void add_scores(const T (&s)[N], const T (&u)[N], int64_t seen) {
    const T factor = raise(max, s, seen), teacher_factor = raise(teacher_max, u, seen);
    if (factor != 1) scale_student(double(factor));
    if (teacher_factor != 1) scale_teacher(double(teacher_factor));
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (Layout::key(j) >= seen) continue;
      add(math::exp(s[j] - max), math::exp(u[j] - teacher_max), u[j] - s[j]);
    }
  }
  // t are rows of a map.
  __device__ void add_map(const T (&s)[N], const T (&t)[N], int64_t seen) {
    const T factor = raise(max, s, seen);
    if (factor != 1) scale_student(double(factor));
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (Layout::key(j) >= seen) continue;
      add(math::exp(s[j] - max), t[j], t[j] > 0 ? math::log(t[j]) - s[j] : T(0));
    }
  }

  // Combines the threads of the row, all of which must call.
  __device__ void join(bool has_map) {
    const T top = row_max<Layout>(max), teacher_top = row_max<Layout>(teacher_max);
    scale_student(max > -INFINITY ? double(math::exp(max - top)) : 1);
    if (!has_map)
      scale_teacher(teacher_max > -INFINITY ? double(math::exp(teacher_max - teacher_top)) : 1);
    max = top;
    teacher_max = teacher_top;
    e = row_sum<Layout>(e);
    ee = row_sum<Layout>(ee);
    f = row_sum<Layout>(f);
    ff = row_sum<Layout>(ff);
    ef = row_sum<Layout>(ef);
    kl = row_sum<Layout>(kl);
  }
};

// Writes the log-sum-exps of a combined row and adds to the block's sums.
template <class Layout, class T>
__device__ void finish_row(double& kl, double& square, T& lse, T& teacher_lse,
                           const RowSums<Layout>& row, bool has_map) {
  const double log_sum = double(row.max) + log(row.e);
  const double teacher_log_sum = has_map ? 0 : double(row.teacher_max) + log(row.f);
  const double a = 1 / row.e, t = has_map ? 1 : 1 / row.f;
  lse = T(log_sum);
  teacher_lse = T(teacher_log_sum);
  kl += has_map ? row.kl + log_sum * row.f : row.kl * t - (teacher_log_sum - log_sum);
  square += (row.ee * a - 2 * row.ef * t) * a + row.ff * t * t;
}

template <class T>
struct ProbJob {
  StoredRows<T> q, k;
  TeacherView<T> teacher;
  RowWidths widths;
  int64_t heads, H;
  T scale;
};

template <class Layout, class T>
__device__ void sum_tile(RowSums<Layout> (&sums)[Layout::thread_rows], ScoreTiles<Layout>& tiles,
                         const ProbJob<T>& job, const RowTile<Layout>& at, int64_t key0) {
  const int64_t rows = job.widths.rows;
  const TeacherView<T>& teacher = job.teacher;
  Scores<Layout> s, u;
  if (teacher.map) {
    at.read(u, teacher, key0);
  } else {
    tiles.score_teacher(u, at.scores(teacher.q, teacher.k, teacher.scale, rows, key0));
  }
  tiles.score(s, at.scores(job.q, job.k, job.scale, rows, key0));
#pragma unroll
  for (int i = 0; i < Layout::thread_rows; ++i) {
    if (teacher.map) {
      sums[i].add_map(s[i], u[i], at.w[i] - key0);
    } else {
      sums[i].add_scores(s[i], u[i], at.w[i] - key0);
    }
  }
}

// parts [blocks, 2] = the sums over a block's rows.
template <class Layout, class T = typename Layout::T>
__global__ void __launch_bounds__(Layout::threads, kScoreBlocks<Layout>)
    prob_loss_kernel(double* parts, T* lse, T* teacher_lse, ProbJob<T> job) {
  ScoreTiles<Layout> tiles(dynamic_shared<T>());
  const auto at = last_tiles_first<Layout>(job.widths, job.heads, job.H);
  const bool has_map = job.teacher.map != nullptr;
  RowSums<Layout> sums[Layout::thread_rows];
  for (int64_t key0 = 0; key0 < at.keys; key0 += Layout::rows) sum_tile(sums, tiles, job, at, key0);
  double kl = 0, square = 0;
#pragma unroll
  for (int i = 0; i < Layout::thread_rows; ++i) {
    sums[i].join(has_map);
    const int64_t t = at.first + Layout::row(i), r = at.bh * job.widths.rows + t;
    if (!first_of_row<Layout>() || t >= job.widths.rows) continue;
    lse[r] = teacher_lse[r] = 0;
    if (at.w[i] == 0) continue;
    finish_row(kl, square, lse[r], teacher_lse[r], sums[i], has_map);
  }
  kl = block_sum(kl);
  square = block_sum(square);
  if (threadIdx.x > 0) return;
  parts[2 * int64_t(blockIdx.x)] = kl;
  parts[2 * int64_t(blockIdx.x) + 1] = at.rows > 0 ? square / double(job.widths.length(at.b)) : 0;
}

}  // namespace

void prob_loss(Tensor y, Tensor lse, Tensor teacher_lse, Tensor q, Tensor k,
               TeacherAttention teacher, Visibility visible, double scale) {
  const int64_t B = q.dim(0), H = q.dim(1), rows = q.dim(2);
  const DeviceWidths widths(visible, rows, q.device());
  dispatch_float(lse.dtype(), [&]<class T>() {
    const ProbJob<T> job{
        StoredRows<T>(q), StoredRows<T>(k), TeacherView<T>(teacher, rows), widths.get(), B * H, H,
        T(scale)};
    dispatch_scores<T>({q, teacher.q}, [&]<class Layout>() {
      const int64_t blocks = B * H * tiles_of<Layout>(rows);
      Tensor parts = Tensor::empty({blocks, 2}, Dtype::f64, q.device());
      if (blocks > 0) {
        launch("prob_loss", prob_loss_kernel<Layout>, dim3(blocks_for(blocks, 1)),
               dim3(Layout::threads), tile_bytes<Layout>(ScoreTiles<Layout>::count),
               parts.data<double>(), lse.data<T>(), teacher_lse.data<T>(), job);
      }
      loss_means<T>("prob_loss", y, parts, widths.get(), B, H);
    });
  });
}

}  // namespace brine::cuda
