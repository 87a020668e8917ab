// Sums in f64, in pieces that depend only on the sizes: a second launch sums the parts of the
// pieces in a fixed order.
#include <cmath>
#include <limits>
#include <type_traits>

#include "tensor/cuda/core/band_sums.cuh"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

constexpr int64_t kPiece = 8192;   // elements of a block of sum_kernel, at least
constexpr int64_t kPieces = 1024;  // blocks of it, at most

struct Itself {
  template <class T>
  __device__ double operator()(T x) const {
    return double(x);
  }
};
struct Square {
  template <class T>
  __device__ double operator()(T x) const {
    return double(x) * double(x);
  }
};
// 1 for an exponent of all ones: NaN or infinity.
struct Nonfinite {
  template <class T>
  __device__ double operator()(T x) const {
    if constexpr (sizeof(T) == 2) {
      const uint16_t mask = std::is_same_v<T, bf16> ? 0x7f80 : 0x7c00;
      return (x.bits & mask) == mask;
    } else {
      return !(std::fabs(x) <= std::numeric_limits<T>::max());
    }
  }
};

// out[block] = the sum of f(x) over a piece of `size` elements.
template <class Out, class In, class F>
__global__ void sum_kernel(Out* out, const In* x, int64_t n, int64_t size, F f) {
  const int64_t begin = blockIdx.x * size, end = begin + size < n ? begin + size : n;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) sum += f(x[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = Out(sum);
}

// y[0] = the sum of f(x) over n elements.
template <class Out, class In, class F>
void sum_into(const char* name, Out* y, const In* x, int64_t n, Device device, F f) {
  const int64_t size = std::max(kPiece, (n + kPieces - 1) / kPieces);
  const unsigned pieces = blocks_for(n, size);
  if (pieces == 1) {
    return launch(name, sum_kernel<Out, In, F>, dim3(1), dim3(kThreads), 0, y, x, n, size, f);
  }
  Tensor parts = Tensor::empty({int64_t(pieces)}, Dtype::f64, device);
  double* p = parts.data<double>();
  launch(name, sum_kernel<double, In, F>, dim3(pieces), dim3(kThreads), 0, p, x, n, size, f);
  launch(name, sum_kernel<Out, double, Itself>, dim3(1), dim3(kThreads), 0, y, p, int64_t(pieces),
         int64_t(pieces), Itself{});
}

}  // namespace

void sum_all(Tensor y, Tensor x) {
  dispatch_float(x.dtype(), [&]<class T>() {
    sum_into("sum_all", y.data<T>(), x.data<T>(), x.numel(), x.device(), Itself{});
  });
}

void square_sum(Tensor y, Tensor x) {
  dispatch_float(x.dtype(), [&]<class T>() {
    sum_into("square_sum", y.data<double>(), x.data<T>(), x.numel(), x.device(), Square{});
  });
}

void count_nonfinite(Tensor y, Tensor x) {
  dispatch_any(x.dtype(), [&]<class T>() {
    if constexpr (std::is_integral_v<T>) {
      check_cuda(cudaMemsetAsync(y.raw(), 0, sizeof(int64_t), stream()), "count_nonfinite");
    } else {
      sum_into("count_nonfinite", y.data<int64_t>(), x.data<T>(), x.numel(), x.device(),
               Nonfinite{});
    }
  });
}

namespace {

template <class T>
struct RowTerms {
  const T* x;
  int64_t C;
  __device__ void operator()(double (&sum)[1], int64_t, int64_t r, int64_t c) const {
    sum[0] += double(x[r * C + c]);
  }
};
template <class T>
struct AddToRow {
  T* y;
  __device__ void operator()(int64_t, int64_t, int64_t c, const double (&sum)[1]) const {
    y[c] = T(double(y[c]) + sum[0]);
  }
};

}  // namespace

void sum_rows(Tensor y, Tensor x) {
  const int64_t C = y.numel(), R = C ? x.numel() / C : 0;
  if (R == 0) return;
  dispatch_float(x.dtype(), [&]<class T>() {
    sum_bands<1>("sum_rows", 1, R, C, RowTerms<T>{x.data<T>(), C}, AddToRow<T>{y.data<T>()},
                 x.device());
  });
}

}  // namespace brine::cuda
