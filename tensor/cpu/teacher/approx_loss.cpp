// L_approx in the K columns: the distance of the widened estimate from the teacher, without a T x T
// map (docs/method.md section 4.1).
#include <vector>

#include "tensor/base/math.h"
#include "tensor/base/parallel.h"
#include "tensor/cpu/core/columns.h"
#include "tensor/kernels/teacher.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kRows = 64;

// n[c] = keys of column c in a row that sees w of them.
template <class T>
void column_sizes(T* n, int64_t* starts, int64_t w, int64_t K) {
  column_starts(starts, w, K);
  for (int64_t c = 0; c < K; ++c) n[c] = T(starts[c + 1] - starts[c]);
}

// a[c] = exp S_c / sum_j n_j exp S_j where n_c > 0, else 0; returns the log of the sum.
template <class T>
T widened(T* a, const T* scores, const T* n, int64_t K) {
  T maximum = -INFINITY, sum = 0;
#pragma omp simd reduction(max : maximum)
  for (int64_t c = 0; c < K; ++c) maximum = n[c] > 0 && scores[c] > maximum ? scores[c] : maximum;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < K; ++c) {
    a[c] = n[c] > 0 ? math::exp(scores[c] - maximum) : T(0);
    sum += n[c] * a[c];
  }
  T inverse = 1 / sum;
#pragma omp simd
  for (int64_t c = 0; c < K; ++c) a[c] *= inverse;
  return maximum + math::log(sum);
}

// f(row, b, w, sizes, scratch [K]) for every row; w = 0 at padding.
template <class T, class F>
void for_rows(const Tensor& scores, const Visibility& visible, F&& f) {
  int64_t H = scores.dim(1), rows = scores.dim(2), K = scores.dim(3);
  RowWidths widths(visible, rows);
  parallel_for(scores.rows(), kRows, [&](int64_t r0, int64_t r1) {
    std::vector<T> buffer(static_cast<size_t>(2 * K));
    std::vector<int64_t> starts(static_cast<size_t>(K + 1));
    for (int64_t r = r0; r < r1; ++r) {
      int64_t b = r / (H * rows), w = widths(b, r % rows);
      if (w) column_sizes(buffer.data(), starts.data(), w, K);
      f(r, b, w, buffer.data(), buffer.data() + K);
    }
  });
}

}  // namespace

void approx_loss(Tensor y, Tensor scores, TeacherSummary summary, Visibility visible) {
  int64_t K = scores.dim(3), R = scores.rows();
  RowWidths widths(visible, scores.dim(2));
  std::vector<double> kl(static_cast<size_t>(R), 0), square(static_cast<size_t>(R), 0);
  dispatch_float(scores.dtype(), [&]<class T>() {
    const T *xs = scores.data<T>(), *xt = summary.tau.data<T>();
    const T *logs = summary.t_log_t.data<T>(), *squares = summary.t_square.data<T>();
    for_rows<T>(scores, visible, [&](int64_t r, int64_t b, int64_t w, const T* n, T* a) {
      if (w == 0) return;
      const T *s = xs + r * K, *tau = xt + r * K;
      T lse = widened(a, s, n, K);
      double cross = 0, distance = 0;
#pragma omp simd reduction(+ : cross, distance)
      for (int64_t c = 0; c < K; ++c) {
        // Columns without keys have tau 0, but their score is unspecified.
        cross += n[c] > 0 ? double(tau[c]) * (double(lse) - double(s[c])) : 0.0;
        distance += double(a[c]) * (double(n[c]) * double(a[c]) - 2 * double(tau[c]));
      }
      kl[size_t(r)] = double(logs[r]) + cross;
      square[size_t(r)] = (distance + double(squares[r])) / double(widths.length(b));
    });
    double sum_kl = 0, sum_square = 0;
    for (size_t r = 0; r < size_t(R); ++r) {
      sum_kl += kl[r];
      sum_square += square[r];
    }
    double count = double(scores.dim(1) * widths.valid_rows(scores.dim(0)));
    y.data<T>()[0] = count > 0 ? T(sum_kl / count) : T(0);
    y.data<T>()[1] = count > 0 ? T(sum_square / count) : T(0);
  });
}

void approx_loss_backward(Tensor dscores, Tensor dy, Tensor scores, TeacherSummary summary,
                          Visibility visible) {
  int64_t K = scores.dim(3);
  RowWidths widths(visible, scores.dim(2));
  double count = double(scores.dim(1) * widths.valid_rows(scores.dim(0)));
  dispatch_float(scores.dtype(), [&]<class T>() {
    const T *xs = scores.data<T>(), *xt = summary.tau.data<T>(), *g = dy.data<T>();
    T* out = dscores.data<T>();
    for_rows<T>(scores, visible, [&](int64_t r, int64_t b, int64_t w, const T* n, T* a) {
      T* dx = out + r * K;
      if (w == 0) return (void)std::fill(dx, dx + K, T(0));
      const T* tau = xt + r * K;
      widened(a, xs + r * K, n, K);
      T mass = 0, mean = 0;
#pragma omp simd reduction(+ : mass, mean)
      for (int64_t c = 0; c < K; ++c) {
        mass += tau[c];
        mean += a[c] * (n[c] * a[c] - tau[c]);
      }
      T kl = T(double(g[0]) / count);
      T square = T(2 * double(g[1]) / (count * double(widths.length(b))));
#pragma omp simd
      for (int64_t c = 0; c < K; ++c) {
        T p = n[c] * a[c];
        dx[c] = kl * (mass * p - tau[c]) + square * (a[c] * (p - tau[c]) - p * mean);
        dx[c] = n[c] > 0 ? dx[c] : T(0);
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
