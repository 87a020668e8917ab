// L_prob: the distance of softmax(scale q k^T) from the teacher's attention. A block has a row of a
// piece of the map; the backward pass makes the scores again, turns them into their gradients and
// multiplies those with k and q.
#include "tensor/cuda/dense/loss_sums.cuh"
#include "tensor/cuda/teacher/map_rows.cuh"
#include "tensor/kernels/teacher.h"

namespace brine::cuda {
namespace {

// parts [B H rows, 2] = KL and the squares of each row. u: the teacher's scores, or its map.
template <class T>
__global__ void prob_loss_kernel(double* parts, T* lse, T* teacher_lse, MapView<T> scores,
                                 MapView<T> teacher, bool map, T scale, T teacher_scale,
                                 MapPiece at) {
  const T *s = scores.row(at), *u = teacher.row(at);
  const int64_t w = at.width(), r = at.row();
  const double log_sum = row_lse(s, w, scale);
  const double teacher_log_sum = map ? 0 : row_lse(u, w, teacher_scale);
  double kl = 0, square = 0;
  for (int64_t j = threadIdx.x; j < w; j += blockDim.x) {
    const double log_a = double(s[j] * scale) - log_sum;
    double log_t = 0, t = double(u[j]);
    if (!map) {
      log_t = double(u[j] * teacher_scale) - teacher_log_sum;
      t = double(math::exp(T(log_t)));
    } else if (t > 0) {
      log_t = double(math::log(u[j]));
    }
    const double off = double(math::exp(T(log_a))) - t;
    kl += t > 0 ? t * (log_t - log_a) : 0;
    square += off * off;
  }
  kl = block_sum(kl);
  square = block_sum(square);
  if (threadIdx.x > 0) return;
  lse[r] = T(log_sum);
  teacher_lse[r] = T(teacher_log_sum);
  parts[2 * r] = kl;
  parts[2 * r + 1] = square / double(at.length);
}

// scores: the gradient of those that are not scaled, 0 at keys that the row does not see. Where the
// teacher has no map, `teacher` becomes it. weights [2]: of KL and MSE, of one row.
template <class T>
__global__ void prob_slopes_kernel(MapView<T> scores, MapView<T> teacher, bool map, const T* lse,
                                   const T* teacher_lse, T scale, T teacher_scale,
                                   const double* weights, MapPiece at) {
  T *s = scores.row(at), *u = teacher.row(at);
  const int64_t w = at.width(), r = at.row();
  T mass = 0, mean = 0;
  for (int64_t j = threadIdx.x; j < w; j += blockDim.x) {
    const T a = math::exp(s[j] * scale - lse[r]);
    const T t = map ? u[j] : math::exp(u[j] * teacher_scale - teacher_lse[r]);
    mass += t;
    mean += a * (a - t);
    s[j] = a;
    if (!map) u[j] = t;
  }
  mass = block_sum(mass);
  mean = block_sum(mean);
  const T kl = T(weights[0]) * scale, square = T(2 * weights[1] / double(at.length)) * scale;
  for (int64_t j = threadIdx.x; j < at.keys; j += blockDim.x) {
    const T a = s[j], t = j < w ? u[j] : T(0);
    s[j] = j < w ? kl * (mass * a - t) + square * a * (a - t - mean) : T(0);
  }
}

}  // namespace

void prob_loss(Tensor y, Tensor lse, Tensor teacher_lse, Tensor q, Tensor k,
               TeacherAttention teacher, Visibility visible, double scale) {
  const int64_t B = q.dim(0), H = q.dim(1), rows = q.dim(2);
  const DeviceWidths widths(visible, rows, q.device());
  const Tensor parts = Tensor::zeros({B * H * rows, 2}, Dtype::f64, q.device());
  fill(lse, 0);
  fill(teacher_lse, 0);
  dispatch_float(lse.dtype(), [&]<class T>() {
    each_map_piece(q, visible, 2, lse.dtype(), [&](const MapPiece& at) {
      const Tensor s = at.scores(q, k, lse.dtype()), u = at.of_teacher(teacher, lse.dtype());
      launch("prob_loss", prob_loss_kernel<T>, dim3(at.blocks()), dim3(kThreads), 0,
             parts.data<double>(), lse.data<T>(), teacher_lse.data<T>(), MapView<T>(s),
             MapView<T>(u), teacher.map.defined(), T(scale), T(teacher_scale(teacher)), at);
    });
    loss_means<T>("prob_loss", y, parts, widths.get(), B, H);
  });
}

void prob_loss_backward(Tensor dq, Tensor dk, Tensor dy, Tensor q, Tensor k,
                        TeacherAttention teacher, Tensor lse, Tensor teacher_lse,
                        Visibility visible, double scale) {
  const char* name = "prob_loss_backward";
  const DeviceWidths widths(visible, q.dim(2), q.device());
  const Tensor weights = Tensor::empty({2}, Dtype::f64, q.device());
  fill(dq, 0);
  fill(dk, 0);
  dispatch_float(lse.dtype(), [&]<class T>() {
    launch(name, loss_weights_kernel<T>, dim3(1), dim3(kThreads), 0, weights.data<double>(),
           dy.data<T>(), widths.get(), q.dim(0), q.dim(1));
    each_map_piece(q, visible, 2, lse.dtype(), [&](const MapPiece& at) {
      const Tensor s = at.scores(q, k, lse.dtype()), u = at.of_teacher(teacher, lse.dtype());
      launch(name, prob_slopes_kernel<T>, dim3(at.blocks()), dim3(kThreads), 0, MapView<T>(s),
             MapView<T>(u), teacher.map.defined(), lse.data<T>(), teacher_lse.data<T>(), T(scale),
             T(teacher_scale(teacher)), weights.data<double>(), at);
      matmul(at.rows_of(dq), s, at.keys_of(k), false, false, 1, 0);
      matmul(at.keys_of(dk), s, at.rows_of(q), true, false, 1, 1);
    });
  });
}

}  // namespace brine::cuda
