// Sums over units of rows, from which a decoding state starts after its prompt.
#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

constexpr int kUnitWarps = 8;
// Rows of a unit from which one block would take long: then several share it.
constexpr int64_t kLong = 2048;

// Which rows of x [B, G, T, m] are summed.
struct UnitRows {
  const int64_t *lengths, *limits;  // of a sequence, both limits; null: T
  const int64_t* units;             // null: `unit`
  int64_t unit, G, T, m, R;

  __device__ int64_t end(int64_t b) const {
    const int64_t length = lengths && lengths[b] < T ? lengths[b] : T;
    return limits && limits[b] < length ? limits[b] : length;
  }
};

// A block for 32 columns of a row of y: its warps take every eighth row of the unit, and their sums
// are added in order.
template <class Y, class T>
__global__ void sum_units_kernel(Y* y, const T* x, UnitRows s) {
  __shared__ double parts[kUnitWarps][kWarp];
  const int64_t tiles = (s.m + kWarp - 1) / kWarp, block = blockIdx.x;
  const int64_t r = block / tiles % s.R, n = block / tiles / s.R, b = n / s.G;
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  const int64_t c = block % tiles * kWarp + lane;
  const int64_t unit = s.units ? s.units[b] : s.unit, first = r * unit, end = s.end(b);
  const int64_t last = first + unit < end ? first + unit : end;
  double sum = 0;
  if (c < s.m) {
    for (int64_t t = first + warp; t < last; t += kUnitWarps)
      sum += double(x[(n * s.T + t) * s.m + c]);
  }
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || c >= s.m) return;
  for (int w = 1; w < kUnitWarps; ++w) sum += parts[w][lane];
  y[(n * s.R + r) * s.m + c] = Y(sum);
}

template <class Y, class T>
void sum_of(Y* y, const T* x, const UnitRows& s, int64_t B) {
  const int64_t blocks = B * s.G * s.R * ((s.m + kWarp - 1) / kWarp);
  if (blocks == 0) return;
  launch("sum_units", sum_units_kernel<Y, T>, dim3(blocks_for(blocks, 1)), dim3(kUnitWarps * kWarp),
         0, y, x, s);
}

}  // namespace

void sum_units(Tensor y, Tensor x, Tensor lengths, Tensor units) {
  const OnDevice device_lengths(lengths, x.device()), unit(units, x.device());
  const int64_t B = x.dim(0), G = x.dim(1), T = x.dim(2), m = x.dim(3), R = y.dim(2);
  dispatch_float(x.dtype(), [&]<class F>() {
    dispatch_float(y.dtype(), [&]<class Y>() {
      const F* from = x.data<F>();
      if (R > 1 || T <= kLong) {
        const UnitRows s{
            device_lengths.data<int64_t>(), nullptr, unit.data<int64_t>(), 0, G, T, m, R};
        return sum_of(y.data<Y>(), from, s, B);
      }
      // One unit of many rows: first the sums of its parts.
      const int64_t parts = (T + kLong - 1) / kLong;
      const Tensor sums = Tensor::empty({B, G, parts, m}, Dtype::f64, x.device());
      const UnitRows of_part{
          device_lengths.data<int64_t>(), unit.data<int64_t>(), nullptr, kLong, G, T, m, parts};
      sum_of(sums.data<double>(), from, of_part, B);
      const UnitRows of_all{nullptr, nullptr, nullptr, parts, G, parts, m, 1};
      sum_of(y.data<Y>(), sums.data<double>(), of_all, B);
    });
  });
}

}  // namespace brine::cuda
