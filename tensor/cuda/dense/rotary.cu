// Rotary positions: a thread computes the angle of one pair of a token and turns it in every head.
#include <cmath>

#include "tensor/cuda/core/packs.cuh"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

// Thread (token, i) of B T tokens and d - n features: pair i for i < n, else the feature n + i,
// which stays.
template <class S>
__global__ void rotary_kernel(S* y, const S* x, const int64_t* first, const double* frequencies,
                              double sign, int64_t threads, int64_t H, int64_t T, int64_t d,
                              int64_t n) {
  const int64_t at = piece();
  if (at >= threads) return;
  const int64_t token = quotient(at, d - n), i = at - token * (d - n);
  const int64_t b = quotient(token, T), t = token - b * T;
  int64_t row = (b * H * T + t) * d;
  if (i >= n) {
    for (int64_t h = 0; h < H; ++h, row += T * d) y[row + n + i] = x[row + n + i];
    return;
  }
  const double angle = double((first ? first[b] : 0) + t) * frequencies[i];
  const S cosine = S(cos(angle)), sine = S(sign * sin(angle));
  for (int64_t h = 0; h < H; ++h, row += T * d) {
    const S u = x[row + i], v = x[row + n + i];
    y[row + i] = u * cosine - v * sine;
    y[row + n + i] = v * cosine + u * sine;
  }
}

}  // namespace

void rotary(Tensor y, Tensor x, Tensor first, Tensor frequencies, double sign) {
  const int64_t B = x.dim(0), H = x.dim(1), T = x.dim(2), d = x.dim(3), n = frequencies.numel();
  if (x.numel() == 0) return;
  const OnDevice start(first, x.device()), frequency(frequencies, x.device());
  const int64_t threads = B * T * (d - n);
  dispatch_float(y.dtype(), [&]<class S>() {
    launch_each("rotary", threads, rotary_kernel<S>, y.data<S>(), x.data<S>(),
                start.data<int64_t>(), frequency.data<double>(), sign, threads, H, T, d, n);
  });
}

}  // namespace brine::cuda
