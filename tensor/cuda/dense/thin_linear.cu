// x w^T for few rows of x: a warp for every output, whose weights it reads once for up to 8 rows.
//
// A lane sums every 32nd group of four elements in one chain; the lanes are then added in a tree.
// This does not depend on the number of rows, so neither do a row's bits.
#include "tensor/base/stored.h"
#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

constexpr int kOutputs = 4;  // warps of a block

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T v[4];
};

template <class T, class S>
struct Thin {
  T* y;
  const T *x, *b;
  const S* w;
  int64_t R, O, I, ld;  // ld: from one row of w to the next
};

// Elements [i, i + 4) of a row; 0 from I on. Vector loads are used if all rows are aligned to them.
template <bool vectors, class T>
__device__ inline Four<T> load_four(const T* row, int64_t i, int64_t I) {
  if constexpr (vectors) {
    return *reinterpret_cast<const Four<T>*>(row + i);
  } else {
    Four<T> four;
    for (int j = 0; j < 4; ++j) four.v[j] = i + j < I ? row[i + j] : T(0);
    return four;
  }
}

template <class T, class S, int rows, bool vectors>
__global__ void __launch_bounds__(kOutputs* kWarp) thin_linear_kernel(Thin<T, S> p) {
  const int64_t o = int64_t(blockIdx.x) * kOutputs + threadIdx.x / kWarp;
  const int64_t first = int64_t(blockIdx.y) * rows;
  if (o >= p.O) return;
  const int lane = int(threadIdx.x) % kWarp;
  const S* w = p.w + o * p.ld;
  const T* x[rows];
  T sum[rows];
#pragma unroll
  for (int k = 0; k < rows; ++k) {
    x[k] = p.x + (first + k < p.R ? first + k : p.R - 1) * p.I;
    sum[k] = 0;
  }
#pragma unroll 2
  for (int64_t i = 4 * lane; i < p.I; i += 4 * kWarp) {
    const Four<S> weight = load_four<vectors>(w, i, p.I);
#pragma unroll
    for (int k = 0; k < rows; ++k) {
      const Four<T> in = load_four<vectors>(x[k], i, p.I);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[k] = fma(in.v[j], T(weight.v[j]), sum[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < rows; ++k) {
    const T all = warp_sum(sum[k]);
    if (lane == 0 && first + k < p.R) {
      p.y[(first + k) * p.O + o] = p.b ? all + p.b[o] : all;
    }
  }
}

template <int rows, class T, class S>
void run(const Thin<T, S>& p) {
  const dim3 grid(blocks_for(p.O, kOutputs), blocks_for(p.R, rows)), block(kOutputs * kWarp);
  const bool vectors = reinterpret_cast<uintptr_t>(p.x) % sizeof(Four<T>) == 0 &&
                       reinterpret_cast<uintptr_t>(p.w) % sizeof(Four<S>) == 0 && p.I % 4 == 0 &&
                       p.ld % 4 == 0;
  auto kernel =
      vectors ? thin_linear_kernel<T, S, rows, true> : thin_linear_kernel<T, S, rows, false>;
  launch("thin_linear", kernel, grid, block, 0, p);
}

}  // namespace

void thin_linear(Tensor y, Tensor x, Tensor w, Tensor b) {
  if (y.numel() == 0) return;
  dispatch_stored(y.dtype(), w.dtype(), [&]<class T, class S>() {
    const Thin<T, S> p{.y = y.data<T>(),
                       .x = x.data<T>(),
                       .b = b.defined() ? b.data<T>() : nullptr,
                       .w = w.data<S>(),
                       .R = x.dim(0),
                       .O = w.dim(0),
                       .I = x.dim(1),
                       .ld = w.stride(0)};
    check(p.R <= 8 * 65535, "thin_linear: ", p.R, " rows are too many for one launch");
    if (p.R == 1) {
      run<1>(p);
    } else if (p.R <= 4) {
      run<4>(p);
    } else {
      run<8>(p);
    }
  });
}

}  // namespace brine::cuda
