// Running means of rows and their gradient: running sums in f64 by chunks of rows. The sums of the
// chunks are computed first, then those before each chunk, from which its rows continue.
#include "tensor/cuda/core/running_sum.cuh"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

constexpr int64_t kChunk = 64;  // rows that a thread processes

// A thread has a column of a chunk of a matrix [tokens, C]; chunks are counted in processing order,
// which is backwards for the gradient.
struct Scan {
  int64_t tokens, C, chunks, threads;

  // Offset of the column in x, and the first token of the chunk and the one after its last.
  __device__ int64_t column(int64_t i, int64_t& begin, int64_t& end) const {
    const int64_t above = quotient(i, C), c = i - above * C;
    const int64_t matrix = quotient(above, chunks), chunk = above - matrix * chunks;
    begin = chunk * kChunk;
    end = begin + kChunk < tokens ? begin + kChunk : tokens;
    return matrix * tokens * C + c;
  }
};

// The term of step `s`: row s, or for the gradient the row s from the end, times its weight in the
// mean.
template <bool kBackward>
__device__ inline int64_t row_of(int64_t s, int64_t tokens) {
  return kBackward ? tokens - 1 - s : s;
}
template <bool kBackward>
__device__ inline double weight_of(int64_t t) {
  return kBackward ? 1.0 / double(t + 1) : 1.0;
}

// sums [matrices, chunks, C]
template <bool kBackward, class T>
__global__ void chunk_sums_kernel(double* sums, const T* x, Scan scan) {
  const int64_t i = piece();
  if (i >= scan.threads) return;
  int64_t begin, end;
  x += scan.column(i, begin, end);
  double sum = 0;
  for (int64_t s = begin; s < end; ++s) {
    const int64_t t = row_of<kBackward>(s, scan.tokens);
    sum += double(x[t * scan.C]) * weight_of<kBackward>(t);
  }
  sums[i] = sum;
}

// `before` is null if there is a single chunk.
template <bool kBackward, class T>
__global__ void running_kernel(T* y, const T* x, const double* before, Scan scan) {
  const int64_t i = piece();
  if (i >= scan.threads) return;
  int64_t begin, end;
  const int64_t column = scan.column(i, begin, end);
  x += column;
  y += column;
  double sum = before ? before[i] : 0;
  for (int64_t s = begin; s < end; ++s) {
    const int64_t t = row_of<kBackward>(s, scan.tokens);
    sum += double(x[t * scan.C]) * weight_of<kBackward>(t);
    y[t * scan.C] = T(kBackward ? sum : sum * (1.0 / double(t + 1)));
  }
}

template <bool kBackward>
void run(const char* name, const Tensor& y, const Tensor& x) {
  if (x.numel() == 0) return;
  const int64_t C = x.dim(-1), tokens = x.dim(-2), columns = x.numel() / tokens;
  const int64_t chunks = (tokens + kChunk - 1) / kChunk;
  const Scan scan{tokens, C, chunks, columns * chunks};
  Tensor sums;
  dispatch_float(y.dtype(), [&]<class T>() {
    if (chunks > 1) {
      sums = Tensor::empty({columns * chunks}, Dtype::f64, x.device());
      launch_each(name, scan.threads, chunk_sums_kernel<kBackward, T>, sums.data<double>(),
                  x.data<T>(), scan);
      sums_before(name, sums.data<double>(), columns / C, chunks, C, false, x.device());
    }
    launch_each(name, scan.threads, running_kernel<kBackward, T>, y.data<T>(), x.data<T>(),
                chunks > 1 ? sums.data<double>() : nullptr, scan);
  });
}

}  // namespace

void running_mean(Tensor y, Tensor x) { run<false>("running_mean", y, x); }

void running_mean_backward(Tensor dx, Tensor dy) { run<true>("running_mean_backward", dx, dy); }

}  // namespace brine::cuda
