// The summary of a teacher's attention that L_approx needs: one pass over its rows.
#include "tensor/mask/teacher.h"

#include "tensor/cpu/core/columns.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/teacher/score_tile.h"
#include "tensor/kernels/teacher.h"

namespace brine::BRINE_CPU {
namespace {

// Mass of each column. Columns own n or n + 1 keys: many short ones are summed in parallel, so that
// no branch depends on the end of a column.
template <class T>
void column_mass(T* tau, const T* t, int64_t w, int64_t K) {
  thread_local std::vector<int32_t> buffer;
  buffer.resize(size_t(K + 1));
  int32_t* starts = buffer.data();
  column_starts(starts, w, K);
  int32_t n = int32_t(w / K);
  if (n < 32) {
#pragma omp simd
    for (int64_t c = 0; c < K; ++c) {
      bool longer = starts[c + 1] - starts[c] > n;
      tau[c] = longer ? t[starts[c + 1] - 1] : T(0);
    }
    for (int32_t i = 0; i < n; ++i) {
#pragma omp simd
      for (int64_t c = 0; c < K; ++c) tau[c] += t[starts[c] + i];
    }
    return;
  }
  for (int64_t c = 0; c < K; ++c) {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int32_t j = starts[c]; j < starts[c + 1]; ++j) sum += t[j];
    tau[c] = sum;
  }
}

template <class T>
void sum_row(T& t_log_t, T& t_square, const T* t, int64_t w) {
  T logs = 0, squares = 0;
#pragma omp simd reduction(+ : logs, squares)
  for (int64_t j = 0; j < w; ++j) {
    logs += t[j] > 0 ? t[j] * math::log(t[j]) : T(0);
    squares += t[j] * t[j];
  }
  t_log_t = logs;
  t_square = squares;
}

// As above for softmax(scale u), which is written to t: no logarithm is needed.
template <class T>
void sum_row(T& t_log_t, T& t_square, T* t, const T* u, int64_t w, T scale) {
  T lse = softmax_row(t, u, w, scale), logs = 0, squares = 0;
#pragma omp simd reduction(+ : logs, squares)
  for (int64_t j = 0; j < w; ++j) {
    logs += t[j] * (u[j] * scale - lse);
    squares += t[j] * t[j];
  }
  t_log_t = logs;
  t_square = squares;
}

}  // namespace

void summarize_teacher(TeacherSummary summary, TeacherAttention teacher, Visibility visible) {
  int64_t B = summary.tau.dim(0), H = summary.tau.dim(1), T = summary.tau.dim(2);
  int64_t K = summary.tau.dim(3), step = tile_rows(T), tiles = (T + step - 1) / step;
  RowWidths widths(visible, T);
  dispatch_float(summary.tau.dtype(), [&]<class R>() {
    TeacherRows<R> rows(teacher, T);
    R *tau = summary.tau.data<R>(), *logs = summary.t_log_t.data<R>();
    R* squares = summary.t_square.data<R>();
    for_pieces(B * H * tiles, 16 * B * H * T * T, [&](int64_t i) {
      thread_local std::vector<R> scores, row;
      int64_t bh = i / tiles, b = bh / H, first = i % tiles * step,
              last = std::min(T, first + step);
      int64_t seen = std::min(last, widths.valid(b));
      int64_t keys = seen > first ? widths(b, seen - 1) : 0;
      row.resize(size_t(keys));
      if (keys && !rows.has_map()) {
        scores.resize(size_t((seen - first) * keys));
        rows.scores(scores.data(), bh, first, seen - first, keys);
      }
      for (int64_t t = first; t < last; ++t) {
        int64_t r = bh * T + t, w = widths(b, t);
        logs[r] = squares[r] = 0;
        const R* mass = row.data();
        if (rows.has_map()) {
          mass = rows.map_row(bh, t);
          sum_row(logs[r], squares[r], mass, w);
        } else if (w) {
          sum_row(logs[r], squares[r], row.data(), scores.data() + (t - first) * keys, w,
                  rows.scale());
        }
        column_mass(tau + r * K, mass, w, K);
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
