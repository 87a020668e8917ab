// The primitives on the device: one thread for each output element or line, one block for each
// reduction. Sums are in a fixed order, without atomics, so that bits repeat.
#include <utility>

#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/scalar_ops.h"

namespace brine::cuda {
namespace {

template <class F, class Y, class... X, size_t... I>
__device__ inline Y evaluate(F f, const int64_t* at, std::index_sequence<I...>, const X*... x) {
  return f(x[at[I]]...);
}

// y[i] = f(x[i]...); the tensors of the index are those of x.
template <class F, class Y, class... X>
__global__ void map_kernel(Y* y, int64_t n, StridedIndex<int(sizeof...(X))> index, F f,
                           const X*... x) {
  const int64_t i = piece();
  if (i >= n) return;
  int64_t at[sizeof...(X)];
  index.locate(i, at);
  y[i] = evaluate<F, Y>(f, at, std::index_sequence_for<X...>{}, x...);
}

template <class Y, class... X, class F>
void map(const char* name, Y* y, int64_t n, const StridedIndex<int(sizeof...(X))>& index, F f,
         const X*... x) {
  launch_each(name, n, map_kernel<F, Y, X...>, y, n, index, f, x...);
}

template <class U>
const U* bits(const Tensor& x) {
  return reinterpret_cast<const U*>(x.raw());
}

struct Larger {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return larger(a, b);
  }
};

// One block for each output; its threads share the n elements of the line.
template <class T>
__global__ void reduce_kernel(T* y, const T* x, StridedIndex<1> kept, StridedIndex<1> reduced,
                              int64_t n, Reduction reduction) {
  int64_t first[1], at[1];
  kept.locate(blockIdx.x, first);
  if (reduction == Reduction::max) {
    const T lowest = -std::numeric_limits<T>::infinity();
    T best = lowest;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      reduced.locate(i, at);
      best = larger(best, x[first[0] + at[0]]);
    }
    best = block_reduce(best, lowest, Larger{});
    if (threadIdx.x == 0) y[blockIdx.x] = best;
  } else {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      reduced.locate(i, at);
      sum += double(x[first[0] + at[0]]);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) y[blockIdx.x] = T(reduction == Reduction::mean ? sum / double(n) : sum);
  }
}

template <class T>
__global__ void cumsum_kernel(T* y, const T* x, int64_t lines, StridedIndex<2> index, int64_t n,
                              int64_t step_y, int64_t step_x, bool reverse) {
  const int64_t i = piece();
  if (i >= lines) return;
  int64_t at[2];
  index.locate(i, at);
  cumsum_line(y + at[0], x + at[1], n, step_y, step_x, reverse);
}

template <class U>
__global__ void gather_kernel(U* y, const U* x, const int64_t* index, int64_t n,
                              StridedIndex<2> offsets, int64_t step) {
  const int64_t i = piece();
  if (i >= n) return;
  int64_t at[2];
  offsets.locate(i, at);
  y[i] = x[at[0] + index[at[1]] * step];
}

// The distances between neighbours of a line in y, x and the index.
struct LineSteps {
  int64_t y, x, index;
};

template <class T>
__global__ void scatter_add_kernel(T* y, const T* x, const int64_t* index, int64_t lines,
                                   StridedIndex<3> begins, int64_t n, LineSteps step) {
  const int64_t i = piece();
  if (i >= lines) return;
  int64_t at[3];
  begins.locate(i, at);
  scatter_line(y + at[0], x + at[1], index + at[2], n, step.y, step.x, step.index);
}

}  // namespace

void map_unary(Tensor y, Tensor x, UnaryOp op) {
  const auto index = StridedIndex<1>::over(y.shape(), x.strides());
  dispatch_float(y.dtype(), [&]<class T>() {
    map<T, T>("map_unary", y.data<T>(), y.numel(), index, Unary{op}, x.data<T>());
  });
}

void map_binary(Tensor y, Tensor a, Tensor b, BinaryOp op) {
  const auto index = StridedIndex<2>::over(y.shape(), a.strides(), b.strides());
  dispatch_float(y.dtype(), [&]<class T>() {
    map<T, T, T>("map_binary", y.data<T>(), y.numel(), index, Binary{op}, a.data<T>(), b.data<T>());
  });
}

void compare(Tensor y, Tensor a, Tensor b, Relation relation) {
  const auto index = StridedIndex<2>::over(y.shape(), a.strides(), b.strides());
  dispatch_any(a.dtype(), [&]<class T>() {
    map<uint8_t, T, T>("compare", y.data<uint8_t>(), y.numel(), index, Compare{relation},
                       a.data<T>(), b.data<T>());
  });
}

void where(Tensor y, Tensor condition, Tensor a, Tensor b) {
  const auto index =
      StridedIndex<3>::over(y.shape(), condition.strides(), a.strides(), b.strides());
  dispatch_bits(y.dtype(), [&]<class U>() {
    map<U, uint8_t, U, U>("where", reinterpret_cast<U*>(y.raw()), y.numel(), index, Where{},
                          condition.data<uint8_t>(), bits<U>(a), bits<U>(b));
  });
}

void reduce(Tensor y, Tensor x, Reduction reduction) {
  if (y.numel() == 0) return;
  const ReducedAxes axes(y.shape(), x.shape(), x.strides());
  const dim3 grid(blocks_for(y.numel(), 1)), block(axes.count > kThreads ? kThreads : kWarp);
  dispatch_float(y.dtype(), [&]<class T>() {
    launch("reduce", reduce_kernel<T>, grid, block, 0, y.data<T>(), x.data<T>(), axes.kept,
           axes.reduced, axes.count, reduction);
  });
}

void cumsum(Tensor y, Tensor x, int axis, bool reverse) {
  if (y.numel() == 0) return;
  const int64_t n = y.dim(axis), lines = y.numel() / n;
  const auto index =
      StridedIndex<2>::over(without_axis(y.shape(), axis), without_axis(y.strides(), axis),
                            without_axis(x.strides(), axis));
  dispatch_float(y.dtype(), [&]<class T>() {
    launch_each("cumsum", lines, cumsum_kernel<T>, y.data<T>(), x.data<T>(), lines, index, n,
                y.stride(axis), x.stride(axis), reverse);
  });
}

void gather(Tensor y, Tensor x, Tensor index, int axis) {
  const auto offsets =
      StridedIndex<2>::over(y.shape(), with_axis(x.strides(), axis, 0), index.strides());
  dispatch_bits(y.dtype(), [&]<class U>() {
    launch_each("gather", y.numel(), gather_kernel<U>, reinterpret_cast<U*>(y.raw()), bits<U>(x),
                index.data<int64_t>(), y.numel(), offsets, x.stride(axis));
  });
}

void scatter_add(Tensor y, Tensor x, Tensor index, int axis) {
  if (x.numel() == 0) return;
  const int64_t n = x.dim(axis), lines = x.numel() / n;
  const auto begins =
      StridedIndex<3>::over(without_axis(x.shape(), axis), without_axis(y.strides(), axis),
                            without_axis(x.strides(), axis), without_axis(index.strides(), axis));
  const LineSteps step{y.stride(axis), x.stride(axis), index.stride(axis)};
  dispatch_float(y.dtype(), [&]<class T>() {
    launch_each("scatter_add", lines, scatter_add_kernel<T>, y.data<T>(), x.data<T>(),
                index.data<int64_t>(), lines, begins, n, step);
  });
}

}  // namespace brine::cuda
