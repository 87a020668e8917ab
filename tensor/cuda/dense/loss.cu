// Losses over the vocabulary: rows are read once, with the running maximum and the sum of
// exponentials relative to it on every thread, which are combined at the end.
//
// KL(teacher || student): a block for each row. Listed ids are marked as bits of a tile of the
// vocabulary in shared memory.
#include <cmath>
#include <limits>

#include "tensor/cuda/core/rows.cuh"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

// log(sum of exp) of a row that is read once.
template <class T>
struct RunningLse {
  static constexpr int kAtOnce = 4;  // values per call of add(): independent loads

  T top = std::numeric_limits<T>::lowest();
  double sum = 0;

  // Values of -inf add nothing. NaN is not a maximum; it stays in the sum.
  __device__ void add(const T (&x)[kAtOnce]) {
    T highest = top;
    for (int j = 0; j < kAtOnce; ++j) highest = x[j] > highest ? x[j] : highest;
    if (highest > top) {
      sum *= math::exp(double(top) - double(highest));
      top = highest;
    }
    T terms = 0;
    for (int j = 0; j < kAtOnce; ++j) terms += math::exp_nonpositive(x[j] - top);
    sum += double(terms);
  }

  // The combined value of all threads of a row.
  template <class Row>
  __device__ double value() const {
    const T highest = Row::max(top);
    const double all = Row::sum(sum * math::exp(double(top) - double(highest)));
    return double(highest) + math::log(all);
  }
};

// Of a row of n values, by all threads of the row.
template <class Row, class T>
__device__ double row_lse(const T* x, int64_t n) {
  constexpr int kN = RunningLse<T>::kAtOnce;
  RunningLse<T> total;
  for (int64_t first = Row::lane(); first < n; first += kN * Row::size()) {
    T values[kN];
    for (int j = 0; j < kN; ++j) {
      const int64_t i = first + j * Row::size();
      values[j] = i < n ? x[i] : -std::numeric_limits<T>::infinity();
    }
    total.add(values);
  }
  return total.template value<Row>();
}

template <class Row, class T>
__global__ void log_sum_exp_kernel(T* y, const T* x, int64_t rows, int64_t V) {
  const int64_t r = Row::row();
  if (r >= rows) return;
  const double total = row_lse<Row>(x + r * V, V);
  if (Row::lane() == 0) y[r] = T(total);
}

template <class Row, class T>
__global__ void cross_entropy_kernel(T* loss, T* lse, const T* logits, const int32_t* target,
                                     int64_t rows, int64_t V) {
  const int64_t r = Row::row();
  if (r >= rows) return;
  const int32_t id = target[r];
  const double total = id < 0 ? 0 : row_lse<Row>(logits + r * V, V);
  if (Row::lane() == 0) {
    lse[r] = T(total);
    loss[r] = id < 0 ? T(0) : T(total - double(logits[r * V + id]));
  }
}

// dlogits may be logits: the thread that writes an element is the one that reads it.
template <class Row, class T>
__global__ void cross_entropy_backward_kernel(T* dlogits, const T* dloss, const T* logits,
                                              const T* lse, const int32_t* target, int64_t rows,
                                              int64_t V) {
  const int64_t r = Row::row();
  if (r >= rows) return;
  dlogits += r * V;
  logits += r * V;
  const T g = dloss[r], total = lse[r];
  const int32_t id = target[r];
  const bool counts = id >= 0 && g != 0;
  for (int64_t i = Row::lane(); i < V; i += Row::size()) {
    T d = 0;
    if (counts) d = math::exp_nonpositive(logits[i] - total) * g - (i == id ? g : T(0));
    dlogits[i] = d;
  }
}

constexpr int64_t kVocabularyTile = 65536;  // of the vocabulary
constexpr int kWords = int(kVocabularyTile / 32);
constexpr double kSmallRest = 1e-9;

// The data of a teacher's row that both directions need.
template <class T>
struct TeacherRow {
  const T* values;
  const int32_t* ids;
  int64_t n;
  double lse;

  __device__ double p(int64_t i) const { return math::exp(double(values[i]) - lse); }
  // Of the listed ids; the same on all threads of the block.
  __device__ double mass() const {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += p(i);
    return block_sum(sum);
  }
};

template <class T>
__device__ TeacherRow<T> teacher_row(const T* values, const int32_t* ids, int64_t n, const T* lse) {
  const int64_t r = blockIdx.x;
  return {values + r * n, ids + r * n, n, double(lse[r])};
}

// The teacher's unlisted mass; 0 when it is negligible or nothing is unlisted.
__device__ inline double rest_of(double listed, int64_t n, int64_t V) {
  const double rest = 1 - listed;
  return rest < kSmallRest || n == V ? 0.0 : rest;
}

// log(exp(a) + exp(b))
__device__ inline double log_add(double a, double b) {
  const double high = a > b ? a : b, low = a > b ? b : a;
  return std::isinf(low) ? high : high + std::log1p(std::exp(low - high));
}

// Marks the ids within [first, first + kVocabularyTile). All threads of the block call.
__device__ inline void mark(unsigned* bits, const int32_t* ids, int64_t n, int64_t first) {
  __syncthreads();  // the marks of the previous tile may still be read
  for (int i = int(threadIdx.x); i < kWords; i += int(blockDim.x)) bits[i] = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const int64_t at = ids[i] - first;
    if (at >= 0 && at < kVocabularyTile) atomicOr(bits + at / 32, 1u << (at % 32));
  }
  __syncthreads();
}
__device__ inline bool marked(const unsigned* bits, int64_t at) {
  return bits[at / 32] >> (at % 32) & 1;
}

// Log-sum-exp of the row without the listed ids. Subtracting the listed mass from the whole would
// cancel all digits when the student is confident.
template <class T>
__device__ double unlisted_lse(const TeacherRow<T>& teacher, const T* row, int64_t V) {
  __shared__ unsigned bits[kWords];
  constexpr int kN = RunningLse<T>::kAtOnce;
  RunningLse<T> total;
  for (int64_t tile = 0; tile < V; tile += kVocabularyTile) {
    mark(bits, teacher.ids, teacher.n, tile);
    const int64_t size = tile + kVocabularyTile < V ? kVocabularyTile : V - tile;
    for (int64_t first = threadIdx.x; first < size; first += kN * blockDim.x) {
      T values[kN];
      for (int j = 0; j < kN; ++j) {
        const int64_t at = first + int64_t(j) * blockDim.x;
        values[j] =
            at < size && !marked(bits, at) ? row[tile + at] : -std::numeric_limits<T>::infinity();
      }
      total.add(values);
    }
  }
  return total.template value<RowBlock>();
}

// Log-sum-exp of the listed values of the row.
template <class T>
__device__ double listed_lse(const TeacherRow<T>& teacher, const T* row) {
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t i = threadIdx.x; i < teacher.n; i += blockDim.x) {
    const double v = double(row[teacher.ids[i]]);
    top = v > top ? v : top;
  }
  top = RowBlock::max(top);
  for (int64_t i = threadIdx.x; i < teacher.n; i += blockDim.x) {
    sum += math::exp(double(row[teacher.ids[i]]) - top);
  }
  return top + math::log(block_sum(sum));
}

template <class T>
__global__ void kl_listed_kernel(T* loss, T* lse, T* unlisted, const T* logits, const T* values,
                                 const int32_t* ids, const T* teacher_lse, int64_t n, int64_t V) {
  const int64_t r = blockIdx.x;
  const TeacherRow<T> teacher = teacher_row(values, ids, n, teacher_lse);
  const T* row = logits + r * V;
  const double off = unlisted_lse(teacher, row, V);
  const double total = log_add(off, listed_lse(teacher, row));
  double kl = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const double p = teacher.p(i);
    if (p > 0 || p != p) {
      kl += p * (double(teacher.values[i]) - teacher.lse - double(row[teacher.ids[i]]) + total);
    }
  }
  kl = block_sum(kl);
  const double rest = rest_of(teacher.mass(), n, V);
  if (threadIdx.x != 0) return;
  if (rest > 0) kl += rest * (math::log(rest) - (off - total));
  loss[r] = T(kl);
  lse[r] = T(total);
  unlisted[r] = T(off);
}

// sum of p (log p - log q) over the vocabulary, in one pass: p (v - row) is summed together with p,
// whose sum is then multiplied by the difference of the log-sum-exps.
template <class T>
__global__ void kl_full_kernel(T* loss, T* lse, T* unlisted, const T* logits, const T* values,
                               const T* teacher_lse, int64_t V) {
  constexpr int kN = RunningLse<T>::kAtOnce;
  const int64_t r = blockIdx.x;
  logits += r * V;
  values += r * V;
  const T origin = teacher_lse[r];
  RunningLse<T> student;
  double along = 0, mass = 0;
  for (int64_t first = threadIdx.x; first < V; first += kN * blockDim.x) {
    T x[kN], v[kN];
    for (int j = 0; j < kN; ++j) {
      const int64_t i = first + int64_t(j) * blockDim.x;
      x[j] = i < V ? logits[i] : -std::numeric_limits<T>::infinity();
      v[j] = i < V ? values[i] : -std::numeric_limits<T>::infinity();
    }
    student.add(x);
    for (int j = 0; j < kN; ++j) {
      const double p = double(math::exp_nonpositive(v[j] - origin));
      mass += p;
      // p log p is 0 for p = 0; NaN stays.
      along += p > 0 ? p * (double(v[j]) - double(x[j])) : p;
    }
  }
  const double total = student.template value<RowBlock>();
  along = block_sum(along);
  mass = block_sum(mass);
  if (threadIdx.x != 0) return;
  loss[r] = T(along - mass * (double(origin) - total));
  lse[r] = T(total);
  unlisted[r] = 0;
}

// d KL / d logit = q - p. A row whose dloss is 0 gets zeros.
template <class T>
__global__ void kl_full_backward_kernel(T* dlogits, const T* dloss, const T* logits, const T* lse,
                                        const T* values, const T* teacher_lse, int64_t V) {
  const int64_t r = blockIdx.x;
  dlogits += r * V;
  logits += r * V;
  values += r * V;
  const T g = dloss[r], row_lse = lse[r], teacher_row_lse = teacher_lse[r];
  for (int64_t i = threadIdx.x; i < V; i += blockDim.x) {
    T d = 0;
    if (g != 0) {
      d = g * (math::exp_nonpositive(logits[i] - row_lse) -
               math::exp_nonpositive(values[i] - teacher_row_lse));
    }
    dlogits[i] = d;
  }
}

// q - p on the ids; the gradient of the bucket is distributed over the other ids: q - rest q /
// (student's mass off the ids). Listed elements are left unchanged at first, since out may be the
// row.
template <class T>
__global__ void kl_listed_backward_kernel(T* dlogits, const T* dloss, const T* logits, const T* lse,
                                          const T* unlisted, const T* values, const int32_t* ids,
                                          const T* teacher_lse, int64_t n, int64_t V) {
  __shared__ unsigned bits[kWords];
  const int64_t r = blockIdx.x;
  T* out = dlogits + r * V;
  const T* row = logits + r * V;
  const T g = dloss[r], off = unlisted[r];
  if (g == 0) {
    for (int64_t i = threadIdx.x; i < V; i += blockDim.x) out[i] = 0;
    return;
  }
  const TeacherRow<T> teacher = teacher_row(values, ids, n, teacher_lse);
  const double total = double(lse[r]), mass = teacher.mass(), rest = rest_of(mass, n, V);
  const double weight = mass + rest;
  const T share = T((weight * math::exp(double(off) - total) - rest) * double(g));
  for (int64_t tile = 0; tile < V; tile += kVocabularyTile) {
    mark(bits, teacher.ids, n, tile);
    const int64_t size = tile + kVocabularyTile < V ? kVocabularyTile : V - tile;
    for (int64_t at = threadIdx.x; at < size; at += blockDim.x) {
      if (!marked(bits, at)) out[tile + at] = math::exp_nonpositive(row[tile + at] - off) * share;
    }
  }
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const int64_t id = teacher.ids[i];
    out[id] = T(double(g) * (math::exp(double(row[id]) - total) * weight - teacher.p(i)));
  }
}

}  // namespace

void log_sum_exp(Tensor y, Tensor x) {
  const int64_t rows = x.rows(), V = x.dim(-1);
  dispatch_float(x.dtype(), [&]<class T>() {
    launch_rows("log_sum_exp", rows, V, log_sum_exp_kernel<RowWarp, T>,
                log_sum_exp_kernel<RowBlock, T>, y.data<T>(), x.data<T>(), rows, V);
  });
}

void cross_entropy(Tensor loss, Tensor lse, Tensor logits, Tensor target) {
  const int64_t rows = logits.rows(), V = logits.dim(-1);
  const OnDevice ids(target, logits.device());
  dispatch_float(logits.dtype(), [&]<class T>() {
    launch_rows("cross_entropy", rows, V, cross_entropy_kernel<RowWarp, T>,
                cross_entropy_kernel<RowBlock, T>, loss.data<T>(), lse.data<T>(), logits.data<T>(),
                ids.data<int32_t>(), rows, V);
  });
}

void cross_entropy_backward(Tensor dlogits, Tensor dloss, Tensor logits, Tensor lse,
                            Tensor target) {
  const int64_t rows = logits.rows(), V = logits.dim(-1);
  const OnDevice ids(target, logits.device());
  dispatch_float(logits.dtype(), [&]<class T>() {
    launch_rows("cross_entropy_backward", rows, V, cross_entropy_backward_kernel<RowWarp, T>,
                cross_entropy_backward_kernel<RowBlock, T>, dlogits.data<T>(), dloss.data<T>(),
                logits.data<T>(), lse.data<T>(), ids.data<int32_t>(), rows, V);
  });
}

void kl_logits(Tensor loss, Tensor lse, Tensor unlisted, Tensor logits, Tensor values, Tensor ids,
               Tensor teacher_lse) {
  const int64_t R = logits.rows(), V = logits.dim(-1), n = values.dim(-1);
  if (R == 0) return;
  const OnDevice listed(ids, logits.device());
  const dim3 grid(blocks_for(R, 1)), block(kThreads);
  dispatch_float(logits.dtype(), [&]<class T>() {
    if (ids.defined()) {
      launch("kl_logits", kl_listed_kernel<T>, grid, block, 0, loss.data<T>(), lse.data<T>(),
             unlisted.data<T>(), logits.data<T>(), values.data<T>(), listed.data<int32_t>(),
             teacher_lse.data<T>(), n, V);
    } else {
      launch("kl_logits", kl_full_kernel<T>, grid, block, 0, loss.data<T>(), lse.data<T>(),
             unlisted.data<T>(), logits.data<T>(), values.data<T>(), teacher_lse.data<T>(), V);
    }
  });
}

void kl_logits_backward(Tensor dlogits, Tensor dloss, Tensor logits, Tensor lse, Tensor unlisted,
                        Tensor values, Tensor ids, Tensor teacher_lse) {
  const int64_t R = logits.rows(), V = logits.dim(-1), n = values.dim(-1);
  if (R == 0) return;
  const OnDevice listed(ids, logits.device());
  const dim3 grid(blocks_for(R, 1)), block(kThreads);
  dispatch_float(logits.dtype(), [&]<class T>() {
    if (ids.defined()) {
      launch("kl_logits_backward", kl_listed_backward_kernel<T>, grid, block, 0, dlogits.data<T>(),
             dloss.data<T>(), logits.data<T>(), lse.data<T>(), unlisted.data<T>(), values.data<T>(),
             listed.data<int32_t>(), teacher_lse.data<T>(), n, V);
    } else {
      launch("kl_logits_backward", kl_full_backward_kernel<T>, grid, block, 0, dlogits.data<T>(),
             dloss.data<T>(), logits.data<T>(), lse.data<T>(), values.data<T>(),
             teacher_lse.data<T>(), V);
    }
  });
}

}  // namespace brine::cuda
