// The summary of a teacher's attention that L_approx needs: a block has a row of a piece of the
// map, and its threads the row's columns.
#include "tensor/cuda/core/columns.cuh"
#include "tensor/cuda/teacher/map_rows.cuh"
#include "tensor/kernels/teacher.h"

namespace brine::cuda {
namespace {

// Where the teacher has no map, its scores become it.
template <class T>
__global__ void summarize_kernel(T* tau, T* t_log_t, T* t_square, MapView<T> teacher, bool map,
                                 T scale, int64_t K, MapPiece at) {
  T* u = teacher.row(at);
  const int64_t w = at.width(), r = at.row();
  const T lse = map ? T(0) : T(row_lse(u, w, scale));
  T logs = 0, squares = 0;
  for (int64_t j = threadIdx.x; j < w; j += blockDim.x) {
    T t = u[j], log = 0;
    if (!map) {
      log = t * scale - lse;
      u[j] = t = math::exp(log);
    } else if (t > 0) {
      log = math::log(t);
    }
    logs += t > 0 ? t * log : T(0);
    squares += t * t;
  }
  logs = block_sum(logs);
  squares = block_sum(squares);  // which also waits for the row's map
  if (threadIdx.x == 0) {
    t_log_t[r] = logs;
    t_square[r] = squares;
  }
  for (int64_t c = threadIdx.x; c < K; c += blockDim.x) {
    T sum = 0;
    const int64_t end = column_begin(c + 1, w, K);
    for (int64_t j = column_begin(c, w, K); j < end; ++j) sum += u[j];
    tau[r * K + c] = sum;
  }
}

}  // namespace

void summarize_teacher(TeacherSummary summary, TeacherAttention teacher, Visibility visible) {
  for (const Tensor& x : {summary.tau, summary.t_log_t, summary.t_square}) fill(x, 0);
  const Dtype dtype = summary.tau.dtype();
  dispatch_float(dtype, [&]<class T>() {
    each_map_piece(summary.tau, visible, 1, dtype, [&](const MapPiece& at) {
      const Tensor u = at.of_teacher(teacher, dtype);
      launch("summarize_teacher", summarize_kernel<T>, dim3(at.blocks()), dim3(kThreads), 0,
             summary.tau.data<T>(), summary.t_log_t.data<T>(), summary.t_square.data<T>(),
             MapView<T>(u), teacher.map.defined(), T(teacher_scale(teacher)), summary.tau.dim(3),
             at);
    });
  });
}

}  // namespace brine::cuda
