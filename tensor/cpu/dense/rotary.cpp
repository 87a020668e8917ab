// Rotary positions: pairs of features rotated by angles that grow with the position.
#include <cmath>
#include <vector>

#include "tensor/base/parallel.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/kernels/dense.h"

namespace brine::BRINE_CPU {
namespace {

// One row of a head: features i and n + i are a pair, those from 2 n on stay.
template <class T>
void rotate_row(T* y, const T* x, const T* cosine, const T* sine, int64_t n, int64_t d) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const T a = x[i], b = x[n + i];
    y[i] = a * cosine[i] - b * sine[i];
    y[n + i] = b * cosine[i] + a * sine[i];
  }
  for (int64_t i = 2 * n; i < d; ++i) y[i] = x[i];
}

}  // namespace

// The angles of a token are computed once, in double, for all of its heads.
void rotary(Tensor y, Tensor x, Tensor first, Tensor frequencies, double sign) {
  const int64_t B = x.dim(0), H = x.dim(1), T = x.dim(2), d = x.dim(3), n = frequencies.numel();
  const int64_t* start = first.defined() ? first.data<int64_t>() : nullptr;
  const double* frequency = frequencies.data<double>();
  dispatch_float(y.dtype(), [&]<class S>() {
    S* py = y.data<S>();
    const S* px = x.data<S>();
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(H * d, 1));
    parallel_for(B * T, grain, [=](int64_t begin, int64_t end) {
      std::vector<S> rotation(size_t(2 * n));
      for (int64_t token = begin; token < end; ++token) {
        const int64_t b = token / T, t = token % T;
        const double position = double((start ? start[b] : 0) + t);
        for (int64_t i = 0; i < n; ++i) {
          rotation[size_t(i)] = S(std::cos(position * frequency[i]));
          rotation[size_t(n + i)] = S(sign * std::sin(position * frequency[i]));
        }
        for (int64_t h = 0; h < H; ++h) {
          const int64_t row = ((b * H + h) * T + t) * d;
          rotate_row(py + row, px + row, rotation.data(), rotation.data() + n, n, d);
        }
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
