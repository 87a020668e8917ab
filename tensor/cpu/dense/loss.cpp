// Losses over the vocabulary. A row is processed in chunks that stay in L1, with the running
// maximum and the running sum of exponentials relative to it, so memory is read once.
#include "tensor/kernels/dense.h"

#include <cmath>
#include <vector>

#include "tensor/base/math.h"
#include "tensor/base/parallel.h"
#include "tensor/cpu/core/lanes.h"
#include "tensor/cpu/core/pieces.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kChunk = 2048;
constexpr double kSmallRest = 1e-9;

// log(sum of exp(x)), accumulated by chunks.
template <class T>
struct LogSumExp {
  T top = std::numeric_limits<T>::lowest();
  double sum = 0;

  void add(const T* x, int64_t n) {
    const T highest = std::max(top, max_lanes<T>(n, [=](int64_t i) { return x[i]; }));
    if (sum > 0) sum *= std::exp(double(top) - double(highest));
    sum +=
        double(sum_lanes<T>(n, [=](int64_t i) { return math::exp_nonpositive(x[i] - highest); }));
    top = highest;
  }
  double value() const { return double(top) + std::log(sum); }
};

template <class T>
double row_lse(const T* x, int64_t n) {
  LogSumExp<T> total;
  for (int64_t i = 0; i < n; i += kChunk) total.add(x + i, std::min(kChunk, n - i));
  return total.value();
}

// log(exp(a) + exp(b))
double log_add(double a, double b) {
  const double high = std::max(a, b), low = std::min(a, b);
  return std::isinf(low) ? high : high + std::log1p(std::exp(low - high));
}

}  // namespace

void log_sum_exp(Tensor y, Tensor x) {
  const int64_t V = x.dim(-1);
  dispatch_float(x.dtype(), [&]<class T>() {
    T* py = y.data<T>();
    const T* px = x.data<T>();
    each_row(x.rows(), V, [=](int64_t r) { py[r] = T(row_lse(px + r * V, V)); });
  });
}

void cross_entropy(Tensor loss, Tensor lse, Tensor logits, Tensor target) {
  const int64_t V = logits.dim(-1);
  const int32_t* id = target.data<int32_t>();
  dispatch_float(logits.dtype(), [&]<class T>() {
    T* ploss = loss.data<T>();
    T* plse = lse.data<T>();
    const T* px = logits.data<T>();
    each_row(logits.rows(), V, [=](int64_t r) {
      ploss[r] = plse[r] = 0;
      if (id[r] < 0) return;
      const double total = row_lse(px + r * V, V);
      plse[r] = T(total);
      ploss[r] = T(total - double(px[r * V + id[r]]));
    });
  });
}

void cross_entropy_backward(Tensor dlogits, Tensor dloss, Tensor logits, Tensor lse,
                            Tensor target) {
  const int64_t V = logits.dim(-1);
  const int32_t* id = target.data<int32_t>();
  dispatch_float(logits.dtype(), [&]<class T>() {
    T* pdx = dlogits.data<T>();
    const T* pdloss = dloss.data<T>();
    const T* px = logits.data<T>();
    const T* plse = lse.data<T>();
    each_row(logits.rows(), V, [=](int64_t r) {
      T* out = pdx + r * V;
      const T* row = px + r * V;
      const T g = pdloss[r], total = plse[r];
      if (id[r] < 0 || g == 0) return void(std::fill(out, out + V, T(0)));
#pragma omp simd
      for (int64_t i = 0; i < V; ++i) out[i] = math::exp_nonpositive(row[i] - total) * g;
      out[id[r]] -= g;
    });
  });
}

namespace {

// The data of a teacher's row that both directions need.
template <class T>
struct TeacherRow {
  const T* values;
  const int32_t* ids;  // null: all of the vocabulary, in order
  int64_t n;
  double lse;

  double p(int64_t i) const { return std::exp(double(values[i]) - lse); }
  double listed_mass() const {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += p(i);
    return sum;
  }
};

// The teacher's unlisted mass; 0 when it is negligible or nothing is unlisted.
double rest_of(double listed, int64_t n, int64_t V) {
  const double rest = 1 - listed;
  return rest < kSmallRest || n == V ? 0.0 : rest;
}

// sum of p (log p - log q) over the vocabulary
template <class T>
double kl_full(const TeacherRow<T>& teacher, const T* row, int64_t V, double lse) {
  const T* values = teacher.values;
  const T teacher_lse = T(teacher.lse), gap = T(teacher.lse - lse);
  double sum = 0;
  for (int64_t i = 0; i < V; i += kChunk) {
    sum += double(sum_lanes<T>(std::min(kChunk, V - i), [=](int64_t j) {
      const T v = values[i + j];
      const T p = math::exp_nonpositive(v - teacher_lse);
      return p > 0 ? p * (v - row[i + j] - gap) : p;  // p log p is 0 for p = 0; NaN stays
    }));
  }
  return sum;
}

// Log-sum-exp of the row without the listed ids, each of which is masked in a copy of its chunk.
// Subtracting the listed mass from the whole would cancel all digits when the student is confident.
template <class T>
double unlisted_lse(const TeacherRow<T>& teacher, const T* row, int64_t V) {
  std::vector<int32_t> hidden(teacher.ids, teacher.ids + teacher.n);
  std::sort(hidden.begin(), hidden.end());
  LogSumExp<T> total;
  T chunk[kChunk];
  size_t next = 0;
  for (int64_t i = 0; i < V; i += kChunk) {
    const int64_t end = std::min(V, i + kChunk);
    std::copy(row + i, row + end, chunk);
    for (; next < hidden.size() && hidden[next] < end; ++next) {
      chunk[hidden[next] - i] = -std::numeric_limits<T>::infinity();
    }
    total.add(chunk, end - i);
  }
  return total.value();
}

template <class T>
void kl_row(const TeacherRow<T>& teacher, const T* row, int64_t V, T& loss, T& lse, T& unlisted) {
  if (!teacher.ids) {
    const double total = row_lse(row, V);
    lse = T(total);
    unlisted = 0;
    loss = T(kl_full(teacher, row, V, total));
    return;
  }
  const double off = unlisted_lse(teacher, row, V);
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t i = 0; i < teacher.n; ++i) top = std::max(top, double(row[teacher.ids[i]]));
  for (int64_t i = 0; i < teacher.n; ++i) sum += std::exp(double(row[teacher.ids[i]]) - top);
  const double total = log_add(off, top + std::log(sum));
  double kl = 0;
  for (int64_t i = 0; i < teacher.n; ++i) {
    const double p = teacher.p(i);
    if (p > 0 || p != p)
      kl += p * (double(teacher.values[i]) - teacher.lse - double(row[teacher.ids[i]]) + total);
  }
  const double rest = rest_of(teacher.listed_mass(), teacher.n, V);
  if (rest > 0) kl += rest * (std::log(rest) - (off - total));
  loss = T(kl);
  lse = T(total);
  unlisted = T(off);
}

// d KL / d logit = q - p on the ids; the gradient of the bucket is distributed over the other ids:
// q - rest q / (student's mass off the ids).
template <class T>
void kl_backward_row(const TeacherRow<T>& teacher, T* out, const T* row, int64_t V, T g, T lse,
                     T unlisted) {
  const T* values = teacher.values;
  if (!teacher.ids) {
    const T teacher_lse = T(teacher.lse);
#pragma omp simd
    for (int64_t i = 0; i < V; ++i) {
      out[i] = g * (math::exp_nonpositive(row[i] - lse) -
                    math::exp_nonpositive(values[i] - teacher_lse));
    }
    return;
  }
  std::vector<double> listed(size_t(teacher.n));  // read before out, which may be row
  for (int64_t i = 0; i < teacher.n; ++i) listed[size_t(i)] = double(row[teacher.ids[i]]);
  const double mass = teacher.listed_mass(), rest = rest_of(mass, teacher.n, V);
  const double weight = mass + rest;
  const T share = T((weight * std::exp(double(unlisted) - double(lse)) - rest) * double(g));
#pragma omp simd
  for (int64_t i = 0; i < V; ++i) out[i] = math::exp_nonpositive(row[i] - unlisted) * share;
  for (int64_t i = 0; i < teacher.n; ++i) {
    const double q = std::exp(listed[size_t(i)] - double(lse));
    out[teacher.ids[i]] = T(double(g) * (q * weight - teacher.p(i)));
  }
}

template <class T>
TeacherRow<T> teacher_row(const Tensor& values, const Tensor& ids, const Tensor& lse, int64_t r) {
  const int64_t n = values.dim(-1);
  return {values.data<T>() + r * n, ids.defined() ? ids.data<int32_t>() + r * n : nullptr, n,
          double(lse.data<T>()[r])};
}

}  // namespace

void kl_logits(Tensor loss, Tensor lse, Tensor unlisted, Tensor logits, Tensor values, Tensor ids,
               Tensor teacher_lse) {
  const int64_t V = logits.dim(-1);
  dispatch_float(logits.dtype(), [&]<class T>() {
    each_row(logits.rows(), V, [&](int64_t r) {
      kl_row(teacher_row<T>(values, ids, teacher_lse, r), logits.data<T>() + r * V, V,
             loss.data<T>()[r], lse.data<T>()[r], unlisted.data<T>()[r]);
    });
  });
}

void kl_logits_backward(Tensor dlogits, Tensor dloss, Tensor logits, Tensor lse, Tensor unlisted,
                        Tensor values, Tensor ids, Tensor teacher_lse) {
  const int64_t V = logits.dim(-1);
  dispatch_float(logits.dtype(), [&]<class T>() {
    each_row(logits.rows(), V, [&](int64_t r) {
      T* out = dlogits.data<T>() + r * V;
      const T g = dloss.data<T>()[r];
      if (g == 0) return void(std::fill(out, out + V, T(0)));
      kl_backward_row(teacher_row<T>(values, ids, teacher_lse, r), out, logits.data<T>() + r * V, V,
                      g, lse.data<T>()[r], unlisted.data<T>()[r]);
    });
  });
}

}  // namespace brine::BRINE_CPU
