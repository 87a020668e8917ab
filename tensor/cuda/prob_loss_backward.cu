// The gradient of L_prob by tiles that make the scores again: dq in a pass over tiles of rows, dk
// in a pass over tiles of keys, each in a fixed order and without T x T memory. With a and t the
// attention of student and teacher, the gradient of a score is
//   ds = kl (mass a - t) + square a (a - t - mean), mass = sum t, mean = sum a (a - t) of its row.
// The first pass does not know mass and mean yet: it sums the products of k with a and with the
// rest of ds apart, and leaves both numbers to the second pass.
#include "tensor/cuda/loss_sums.cuh"
#include "tensor/cuda/score_tile.cuh"
#include "tensor/kernels_sparse.h"

namespace brine::cuda {
namespace {

template <class T>
struct Job {
  const T *q, *k;
  const T *lse, *their_lse;
  TeacherView<T> teacher;
  Widths widths;
  int64_t heads, H, d;
  T scale;
  const double* weights;  // [2] of KL and MSE, of one row
};

// The weights of a sequence, for scores that are not scaled.
template <class T>
struct Weights {
  T kl, square;
  __device__ Weights(const Job<T>& job, int64_t b) : kl(T(job.weights[0]) * job.scale), square(0) {
    const int64_t length = job.widths.length(b);
    if (length > 0) square = T(2 * job.weights[1] / double(length)) * job.scale;
  }
};

// a, t = the attention in a tile, 0 where it is not seen. The student's tiles of the last columns
// of q and k are left in `tiles`.
template <class T>
__device__ void attention_tile(Scores<T>& a, Scores<T>& t, T* tiles, const Job<T>& job,
                               const RowTile& at, int64_t key0) {
  const int64_t keys = at.keys_from(key0), head = at.bh * job.widths.rows;
  const bool has_map = job.teacher.map != nullptr;
  if (has_map) {
    job.teacher.read(t, at.bh, at.first, key0, at.w);
  } else {
    job.teacher.scores(t, tiles, at.bh, at.first, at.rows, key0, keys);
  }
  score_tile(a, tiles, job.q + (head + at.first) * job.d, at.rows, job.k + (head + key0) * job.d,
             keys, job.d, job.scale);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t r = head + at.first + tile_row(i), seen = at.w[i] - key0;
    const T lse = seen > 0 ? job.lse[r] : T(0), theirs = seen > 0 ? job.their_lse[r] : T(0);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool visible = tile_key(j) < seen;
      a[i][j] = visible ? math::exp(a[i][j] - lse) : T(0);
      if (!has_map) t[i][j] = visible ? math::exp(t[i][j] - theirs) : T(0);
    }
  }
}

// out [4 y + i][4 x + j] += sum over keys of weights [row][key] values [key][column].
template <class T>
__device__ void add_products(Scores<T>& own, Scores<T>& rest, const T* own_weights,
                             const T* rest_weights, const T* values) {
  const int column = 4 * tile_x();
#pragma unroll 1
  for (int key = 0; key < kSide; key += 4) {
    Four<T> v[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) v[e] = four_at(values + (key + e) * kPitch<T> + column);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Four<T> p = four_at(own_weights + tile_row(i) * kPitch<T> + key);
      const Four<T> r = four_at(rest_weights + tile_row(i) * kPitch<T> + key);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          own[i][j] += p.v[e] * v[e].v[j];
          rest[i][j] += r.v[e] * v[e].v[j];
        }
      }
    }
  }
}

// out [4 y + i][4 x + j] += sum over rows of weights [row][key] values [row][column].
template <class T>
__device__ void add_transposed(Scores<T>& out, const T* weights, const T* values) {
#pragma unroll 4
  for (int row = 0; row < kSide; ++row) {
    const Four<T> p = four_at(weights + row * kPitch<T> + 4 * tile_y());
    const Four<T> v = four_at(values + row * kPitch<T> + 4 * tile_x());
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) out[i][j] += p.v[i] * v.v[j];
    }
  }
}

// y [., d] = out at rows 4 y + i < rows and columns c0 + 4 x + j < d.
template <class T>
__device__ void write_tile(T* y, const Scores<T>& out, int64_t rows, int64_t d, int64_t c0) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (tile_row(i) >= rows) continue;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t c = c0 + 4 * tile_x() + j;
      if (c < d) y[tile_row(i) * d + c] = out[i][j];
    }
  }
}

// stats [rows, 2] = {mass, mean}. blockIdx.y counts pieces of 64 columns of d.
template <class T>
__global__ void __launch_bounds__(kTileThreads) prob_loss_dq_kernel(T* dq, T* stats, Job<T> job) {
  // Once the scores are made, the queries' tile is free for what is made of them.
  T *tiles = dynamic_shared<T>(), *own = tiles;
  T *keys = tiles + kTileSize<T>, *rest = keys + kTileSize<T>;
  const RowTile at = last_tiles_first(job.widths, job.heads, job.H);
  const int64_t c0 = int64_t(blockIdx.y) * kSide, rows = job.widths.rows;
  const Weights<T> weights(job, at.b);
  Scores<T> sum_own{}, sum_rest{};
  T mass[4] = {}, mean[4] = {};
  for (int64_t key0 = 0; key0 < at.keys; key0 += kSide) {
    Scores<T> a, t;
    attention_tile(a, t, tiles, job, at, key0);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const T off = a[i][j] * (a[i][j] - t[i][j]);
        mass[i] += t[i][j];
        mean[i] += off;
        t[i][j] = weights.square * off - weights.kl * t[i][j];
      }
    }
    __syncthreads();  // the tile of the queries may still be read
    store_tile(own, a);
    store_tile(rest, t);
    __syncthreads();
    if (job.d > kSide) {
      load_tile(keys, job.k + (at.bh * rows + key0) * job.d, at.keys_from(key0), job.d, c0);
      __syncthreads();
    }
    add_products(sum_own, sum_rest, own, rest, keys);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    mass[i] = row_sum(mass[i]);
    mean[i] = row_sum(mean[i]);
    const T factor = weights.kl * mass[i] - weights.square * mean[i];
#pragma unroll
    for (int j = 0; j < 4; ++j) sum_rest[i][j] += factor * sum_own[i][j];
    if (tile_x() > 0 || c0 > 0 || tile_row(i) >= at.rows) continue;
    T* to = stats + 2 * (at.bh * rows + at.first + tile_row(i));
    to[0] = mass[i];
    to[1] = mean[i];
  }
  write_tile(dq + (at.bh * rows + at.first) * job.d, sum_rest, rows - at.first, job.d, c0);
}

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    prob_loss_dk_kernel(T* dk, const T* stats, Job<T> job) {
  // Once the scores are made, the keys' tile is free for what is made of them.
  T *tiles = dynamic_shared<T>(), *gradient = tiles + kTileSize<T>;
  const int64_t tile = int64_t(blockIdx.x) / job.heads, key0 = tile * kSide;
  const int64_t c0 = int64_t(blockIdx.y) * kSide, rows = job.widths.rows;
  const int64_t bh = int64_t(blockIdx.x) % job.heads, b = bh / job.H;
  const int64_t valid = job.widths.valid(b);
  const Weights<T> weights(job, b);
  Scores<T> out{};
  const int64_t first = job.widths.causal ? tile : 0;
  const int64_t last = key0 < valid ? (valid + kSide - 1) / kSide : 0;
  for (int64_t row_tile = first; row_tile < last; ++row_tile) {
    const RowTile at(job.widths, bh, job.H, row_tile);
    Scores<T> a, t;
    attention_tile(a, t, tiles, job, at, key0);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const T* from = stats + 2 * (bh * rows + at.first + tile_row(i));
      const bool here = tile_row(i) < at.rows;
      const T mass = here ? from[0] : T(0), mean = here ? from[1] : T(0);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const T own = a[i][j], their = t[i][j];
        a[i][j] = weights.kl * (mass * own - their) + weights.square * own * (own - their - mean);
      }
    }
    __syncthreads();  // the tile of the keys may still be read
    store_tile(gradient, a);
    __syncthreads();
    if (job.d > kSide) {
      load_tile(tiles, job.q + (bh * rows + at.first) * job.d, at.rows, job.d, c0);
      __syncthreads();
    }
    add_transposed(out, gradient, tiles);
  }
  write_tile(dk + (bh * rows + key0) * job.d, out, rows - key0, job.d, c0);
}

}  // namespace

void prob_loss_backward(Tensor dq, Tensor dk, Tensor dy, Tensor q, Tensor k,
                        TeacherAttention teacher, Tensor lse, Tensor teacher_lse, Visibility see,
                        double scale) {
  const int64_t B = q.dim(0), H = q.dim(1), rows = q.dim(2), d = q.dim(3);
  const int64_t blocks = B * H * tiles_of(rows);
  if (blocks == 0 || d == 0) return;
  const DeviceWidths widths(see, rows, q.device());
  Tensor weights = Tensor::empty({2}, Dtype::f64, q.device());
  Tensor stats = Tensor::empty({B * H * rows, 2}, q.dtype(), q.device());
  dispatch_float(q.dtype(), [&]<class T>() {
    launch("prob_loss_backward", loss_weights_kernel<T>, dim3(1), dim3(kThreads), 0,
           weights.data<double>(), dy.data<T>(), widths.get(), B, H);
    const Job<T> job{.q = q.data<T>(),
                     .k = k.data<T>(),
                     .lse = lse.data<T>(),
                     .their_lse = teacher_lse.data<T>(),
                     .teacher = TeacherView<T>(teacher, rows),
                     .widths = widths.get(),
                     .heads = B * H,
                     .H = H,
                     .d = d,
                     .scale = T(scale),
                     .weights = weights.data<double>()};
    const dim3 grid(blocks_for(blocks, 1), unsigned(tiles_of(d)));
    launch("prob_loss_backward", prob_loss_dq_kernel<T>, grid, dim3(kTileThreads), tile_bytes<T>(3),
           dq.data<T>(), stats.data<T>(), job);
    launch("prob_loss_backward", prob_loss_dk_kernel<T>, grid, dim3(kTileThreads), tile_bytes<T>(2),
           dk.data<T>(), stats.data<T>(), job);
  });
}

}  // namespace brine::cuda
