// The summary of a teacher's attention that L_approx needs: one pass over its rows.
#include "tensor/teacher.h"

#include "tensor/cpu/pieces.h"
#include "tensor/cpu/score_tile.h"
#include "tensor/kernels_sparse.h"

namespace brine::BRINE_CPU {
namespace {

template <class T>
void summarize_row(T* tau, T& t_log_t, T& t_square, const T* t, int64_t w, int64_t K) {
  T logs = 0, squares = 0;
#pragma omp simd reduction(+ : logs, squares)
  for (int64_t j = 0; j < w; ++j) {
    logs += t[j] > 0 ? t[j] * math::log(t[j]) : T(0);
    squares += t[j] * t[j];
  }
  t_log_t = logs;
  t_square = squares;
  for (int64_t c = 0, j = 0; c < K; ++c) {
    T sum = 0;
    for (int64_t end = math::column_begin(c + 1, w, K); j < end; ++j) sum += t[j];
    tau[c] = sum;
  }
}

}  // namespace

void summarize_teacher(TeacherSummary summary, TeacherAttention teacher, Visibility see) {
  int64_t B = summary.tau.dim(0), H = summary.tau.dim(1), T = summary.tau.dim(2);
  int64_t K = summary.tau.dim(3), step = tile_rows(T), tiles = (T + step - 1) / step;
  RowWidths widths(see, T);
  dispatch_float(summary.tau.dtype(), [&]<class R>() {
    TeacherRows<R> rows(teacher, T);
    R *tau = summary.tau.data<R>(), *logs = summary.t_log_t.data<R>();
    R* squares = summary.t_square.data<R>();
    for_pieces(B * H * tiles, 16 * B * H * T * T, [&](int64_t i) {
      thread_local std::vector<R> scores;
      int64_t bh = i / tiles, b = bh / H, first = i % tiles * step,
              last = std::min(T, first + step);
      int64_t seen = std::min(last, widths.valid(b));
      int64_t keys = seen > first ? widths(b, seen - 1) : 0;
      if (keys && !rows.has_map()) {
        scores.resize(size_t((seen - first) * keys));
        rows.scores(scores.data(), bh, first, seen - first, keys);
      }
      for (int64_t t = first; t < last; ++t) {
        int64_t r = bh * T + t, w = widths(b, t);
        const R* row = nullptr;
        if (rows.has_map()) {
          row = rows.map_row(bh, t);
        } else if (w) {
          R* mine = scores.data() + (t - first) * keys;
          softmax_row(mine, mine, w, rows.scale());
          row = mine;
        }
        summarize_row(tau + r * K, logs[r], squares[r], row, w, K);
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
