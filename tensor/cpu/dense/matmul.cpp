// Matrix products: batched, strided, in pieces that depend only on their sizes.
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "tensor/base/parallel.h"
#include "tensor/cpu/core/gemm.h"
#include "tensor/cpu/core/gemm_f64.h"
#include "tensor/cpu/core/onednn.h"
#include "tensor/kernels/activations.h"
#include "tensor/kernels/dense.h"

namespace brine::BRINE_CPU {
namespace {

// The pieces of a product: `batch` matrices of tiles m x n, and K in runs of k.
struct Cut {
  int64_t m = 0, n = 0, k = 0;
};

int64_t pieces(int64_t n, int64_t step) { return (n + step - 1) / step; }

// Halves a side, rounded up to whole registers.
int64_t half(int64_t n) { return (n / 2 + 15) / 16 * 16; }

// Two tasks for each CPU of the machine, whether or not this process may use it: bits may depend on
// the machine, never on the number of threads.
int64_t max_tasks() {
  static const int64_t cpus = sysconf(_SC_NPROCESSORS_CONF);
  return std::clamp<int64_t>(2 * cpus, 4, 16);
}

// Up to that many tasks of at least 20 MFLOP. oneDNN packs its operands when both sides of a tile
// reach 544, which is faster; below that it reads them in place, which is slow for a transposed
// left side, so runs of K are preferred there; their sums are added in order afterwards.
Cut cut(int64_t batch, int64_t M, int64_t N, int64_t K) {
  constexpr int64_t kPacked = 544, kSmallest = 192, kLargest = 2048, kShortest = 1024;
  constexpr double kWork = 2e7;
  Cut c = {M, N, K};
  double work = std::max(2.0 * double(M) * double(N) * double(K),
                         8.0 * (double(M) * double(K) + double(K) * double(N))) *
                double(batch);
  int64_t wanted = int64_t(std::clamp(work / kWork, 1.0, double(max_tasks())));
  auto tasks = [&] { return batch * pieces(M, c.m) * pieces(N, c.n) * pieces(K, c.k); };
  auto halve_tiles = [&](int64_t smallest, int64_t enough) {
    while (tasks() < enough || std::max(c.m, c.n) > kLargest) {
      int64_t& side = c.m >= c.n ? c.m : c.n;
      if (half(side) < smallest) break;
      side = half(side);
    }
  };
  bool packed = M >= kPacked && N >= kPacked;
  halve_tiles(packed ? kPacked : kSmallest, wanted);
  if (tasks() < wanted && K >= 2 * kShortest) {
    int64_t runs = std::min((wanted + tasks() - 1) / tasks(), K / kShortest);
    c.k = (pieces(K, runs) + 15) / 16 * 16;
  }
  if (packed) halve_tiles(kSmallest, std::min<int64_t>(wanted, 4));
  return c;
}

// One operand: its matrix (after op) has strides row and column; axes of size 1 in the batch are
// shared with a step of 0.
struct Operand {
  const unsigned char* data = nullptr;
  int64_t row = 0, column = 0;
  Shape steps;  // of the leading axes of y
};

Operand operand(const Tensor& t, bool transposed, const Tensor& y) {
  int rank = t.rank();
  Operand o{t.raw(), t.stride(-2), t.stride(-1), {}};
  if (transposed) std::swap(o.row, o.column);
  for (int i = 0; i < y.rank() - 2; ++i) {
    int axis = i - (y.rank() - rank);
    o.steps.push_back(axis < 0 || t.dim(axis) == 1 ? 0 : t.stride(axis));
  }
  return o;
}

// Offset, in elements, of matrix n.
int64_t offset(const Shape& steps, const Shape& sizes, int64_t n) {
  int64_t at = 0;
  for (int i = steps.rank() - 1; i >= 0; --i) {
    at += n % sizes[i] * steps[i];
    n /= sizes[i];
  }
  return at;
}

struct Job {
  int64_t M = 0, N = 0, K = 0;
  Operand a, b, y;
  const void* bias = nullptr;
  double alpha = 1, beta = 0;
  std::optional<Activation> activation;  // of the result, whose values go to `activated`,
  unsigned char* activated = nullptr;    // a dense matrix [M, N], which may be that of y
};

// BLAS's leading dimension: the distance of rows (or columns, when `transposed`). False when
// neither axis is dense.
bool leading(int64_t row, int64_t column, int64_t rows, int64_t columns, bool& transposed,
             int64_t& ld) {
  if ((column == 1 || columns == 1) && (row >= columns || rows == 1)) {
    transposed = false;
    ld = std::max(row, columns);
    return true;
  }
  if ((row == 1 || rows == 1) && (column >= rows || columns == 1)) {
    transposed = true;
    ld = std::max(column, rows);
    return true;
  }
  return false;
}

template <class T>
void product(int64_t M, int64_t N, int64_t K, double alpha, Strided<const T> a, Strided<const T> b,
             double beta, Strided<float> y) {
  onednn::Gemm g{.M = M,
                 .N = N,
                 .K = K,
                 .ldc = std::max(y.row, N),
                 .alpha = float(alpha),
                 .beta = float(beta)};
  bool plain =
      leading(a.row, a.column, M, K, g.ta, g.lda) && leading(b.row, b.column, K, N, g.tb, g.ldb);
  // oneDNN reads a narrow product's left side in place, column by column: 40 against 62 GFLOP/s.
  bool walks_columns = g.ta && g.lda >= 1024 && N <= 128 && K >= 256;
  if (plain && !(walks_columns && std::is_same_v<T, float>)) {
    onednn::gemm(g, a.data, b.data, y.data);
  } else if constexpr (std::is_same_v<T, float>) {
    gemm_packed(M, N, K, g.alpha, a, b, g.beta, y);
  }
}

void product(int64_t M, int64_t N, int64_t K, double alpha, Strided<const double> a,
             Strided<const double> b, double beta, Strided<double> y) {
  gemm_f64(M, N, K, alpha, a, b, beta, y);
}

// to[i] = f(from[i]); they may be the same.
template <class T>
void activate_row(Activation f, T* to, const T* from, int64_t n) {
  with_activation<T>(f, [=](auto function) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = function(from[i]);
  });
}

// Adds the bias to rows i.. and columns j.. of a result, and activates them when they are `whole`:
// while a row is in L1.
template <class Y>
void finish_rows(const Job& job, Strided<Y> y, int64_t i, int64_t M, int64_t j, int64_t N,
                 bool whole) {
  const Y* bias = static_cast<const Y*>(job.bias);
  const bool activates = whole && job.activation;
  if (!bias && !activates) return;
  for (int64_t r = 0; r < M; ++r) {
    Y* row = y.at(r, 0);
    if (bias) {
      for (int64_t c = 0; c < N; ++c) row[c] += bias[j + c];
    }
    if (activates) {
      Y* to = reinterpret_cast<Y*>(job.activated) + (i + r) * job.N + j;
      activate_row(*job.activation, to, row, N);
    }
  }
}

template <class T, class Y>
void run(const Job& job, const Shape& batch) {
  int64_t matrices = batch.numel(), M = job.M, N = job.N, K = job.K;
  Cut c = cut(matrices, M, N, K);
  if constexpr (std::is_same_v<Y, double>)
    c = {std::min<int64_t>(M, 192), std::min<int64_t>(N, 512), K};
  int64_t runs = pieces(K, c.k), across = pieces(N, c.n), tiles = pieces(M, c.m) * across;
  // Runs of K after the first write to separate sums, [runs - 1, matrices, M, N].
  Tensor rest = runs > 1 ? Tensor::empty({runs - 1, matrices, M, N}, DtypeOf<Y>::value) : Tensor();
  double work = 2.0 * double(c.m) * double(c.n) * double(c.k);
  parallel_for(matrices * runs * tiles, int64_t(1e6 / work), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      int64_t tile = task % tiles, piece = task / tiles % runs, n = task / tiles / runs;
      int64_t i = tile / across * c.m, j = tile % across * c.n, k = piece * c.k;
      int64_t m_size = std::min(c.m, M - i), n_size = std::min(c.n, N - j);
      Strided<const T> a{reinterpret_cast<const T*>(job.a.data) + offset(job.a.steps, batch, n),
                         job.a.row, job.a.column};
      Strided<const T> b{reinterpret_cast<const T*>(job.b.data) + offset(job.b.steps, batch, n),
                         job.b.row, job.b.column};
      Strided<Y> y{reinterpret_cast<Y*>(const_cast<unsigned char*>(job.y.data)) +
                       offset(job.y.steps, batch, n),
                   job.y.row, 1};
      if (piece > 0) y = {rest.data<Y>() + ((piece - 1) * matrices + n) * M * N, N, 1};
      a.data = a.at(i, k);
      b.data = b.at(k, j);
      y.data = y.at(i, j);
      product(m_size, n_size, std::min(c.k, K - k), job.alpha, a, b, piece ? 0 : job.beta, y);
      if (piece == 0) finish_rows(job, y, i, m_size, j, n_size, runs == 1);
    }
  });
  if (runs == 1) return;
  parallel_for(matrices * M, std::max<int64_t>(1, 16384 / N), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      int64_t n = r / M;
      Y* y = reinterpret_cast<Y*>(const_cast<unsigned char*>(job.y.data)) +
             offset(job.y.steps, batch, n) + r % M * job.y.row;
      const Y* more = rest.data<Y>() + r * N;
      for (int64_t p = 1; p < runs; ++p, more += matrices * M * N) {
        for (int64_t j = 0; j < N; ++j) y[j] += more[j];
      }
      if (job.activation) {
        activate_row(*job.activation, reinterpret_cast<Y*>(job.activated) + r * N, y, N);
      }
    }
  });
}

// The product over an empty K: y = beta y (+ bias).
void scale_only(Tensor y, double beta, Tensor bias) {
  dispatch_float(y.dtype(), [&]<class T>() {
    Shape sizes;
    for (int i = 0; i < y.rank() - 1; ++i) sizes.push_back(y.dim(i));
    Shape steps;
    for (int i = 0; i < y.rank() - 1; ++i) steps.push_back(y.stride(i));
    for (int64_t r = 0; r < sizes.numel(); ++r) {
      T* row = y.data<T>() + offset(steps, sizes, r);
      for (int64_t j = 0; j < y.dim(-1); ++j) {
        row[j] =
            (beta == 0 ? T(0) : T(beta) * row[j]) + (bias.defined() ? bias.data<T>()[j] : T(0));
      }
    }
  });
}

// A copy in f32 that keeps the order of the last two axes in memory.
Tensor widened_tensor(const Tensor& x) {
  bool flip = x.stride(-2) == 1 && x.stride(-1) != 1;
  Tensor from = flip ? x.transpose(-1, -2) : x;
  Tensor to = Tensor::empty(from.shape(), Dtype::f32, x.device());
  copy(to, from);
  return flip ? to.transpose(-1, -2) : to;
}

void multiply(Tensor y, Tensor a, Tensor b, bool ta, bool tb, double alpha, double beta,
              Tensor bias, Job job = {}) {
  if (y.numel() == 0) return;
  job.M = y.dim(-2);
  job.N = y.dim(-1);
  job.K = ta ? a.dim(-2) : a.dim(-1);
  if (job.K == 0) return scale_only(y, beta, bias);
  auto dense = [](const Tensor& x) {
    bool transposed;
    int64_t ld;
    return leading(x.stride(-2), x.stride(-1), x.dim(-2), x.dim(-1), transposed, ld);
  };
  const bool half = a.dtype() == Dtype::bf16 && b.dtype() == Dtype::bf16 &&
                    onednn::has_bf16_gemm() && dense(a) && dense(b);
  if (!half && item_size(a.dtype()) == 2) a = widened_tensor(a);
  if (!half && item_size(b.dtype()) == 2) b = widened_tensor(b);
  job.a = operand(a, ta, y);
  job.b = operand(b, tb, y);
  job.y = operand(y, false, y);
  job.alpha = alpha;
  job.beta = beta;
  job.bias = bias.defined() ? bias.raw() : nullptr;
  Shape batch;
  for (int i = 0; i < y.rank() - 2; ++i) batch.push_back(y.dim(i));
  if (half) {
    run<bf16, float>(job, batch);
  } else if (y.dtype() == Dtype::f64) {
    run<double, double>(job, batch);
  } else {
    run<float, float>(job, batch);
  }
}

}  // namespace

void matmul(Tensor y, Tensor a, Tensor b, bool ta, bool tb, double alpha, double beta) {
  multiply(y, a, b, ta, tb, alpha, beta, {});
}

void linear(Tensor y, Tensor x, Tensor w, Tensor b) {
  if (is_thin(y, x, w)) return thin_linear(y, x, w, b);
  multiply(y, x, w, false, true, 1, 0, b);
}

void linear_activation(Tensor y, Tensor before, Tensor x, Tensor w, Tensor b, Activation f) {
  const Tensor sums = before.defined() ? before : y;
  if (is_thin(sums, x, w) || x.dim(1) == 0) {
    linear(sums, x, w, b);
    return activation(y, sums, f);
  }
  Job job;
  job.activation = f;
  job.activated = y.raw();
  multiply(sums, x, w, false, true, 1, 0, b, job);
}

}  // namespace brine::BRINE_CPU
