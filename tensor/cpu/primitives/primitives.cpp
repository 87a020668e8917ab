// The primitives on the CPU: each output element or line is computed by one thread, in order.
#include <algorithm>
#include <iterator>
#include <utility>

#include "tensor/base/parallel.h"
#include "tensor/kernels/scalar_ops.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kPiece = 4096;  // elements of a piece

// f(i, count, at) for lines of elements i .. i + count - 1 of n, which begin at `at` in each tensor
// of the index and go on by its steps.
template <int N, class F>
void each_line(int64_t n, const StridedIndex<N>& index, F f) {
  parallel_for(n, kPiece, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      int64_t at[N];
      index.locate(i, at);
      const int64_t run = std::min(index.inner() - i % index.inner(), end - i);
      f(i, run, at);
      i += run;
    }
  });
}

// y[i] = f(x[i]...) for n elements; the tensors of the index are those of x.
template <class Y, class... X, class F>
void map(Y* y, int64_t n, const StridedIndex<int(sizeof...(X))>& index, F f, const X*... x) {
  each_line(n, index, [&](int64_t i, int64_t count, const int64_t* at) {
    [&]<size_t... I>(std::index_sequence<I...>) {
      for (int64_t j = 0; j < count; ++j) y[i + j] = f(x[at[I] + j * index.step(int(I))]...);
    }
    (std::index_sequence_for<X...>{});
  });
}

// y[j] = op x[j step] for n elements, and y[j] = a[j step_a] op b[j step_b]. The op is known when
// they are compiled, so that their loops become vectors.
template <class T, UnaryOp op>
void unary_line(T* y, int64_t n, const T* x, int64_t step) {
  constexpr Unary f{op};
  if (step == 1) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) y[j] = f(x[j]);
  } else {
    for (int64_t j = 0; j < n; ++j) y[j] = f(x[j * step]);
  }
}
template <class T, BinaryOp op>
void binary_line(T* y, int64_t n, const T* a, int64_t step_a, const T* b, int64_t step_b) {
  constexpr Binary f{op};
  if (step_a == 1 && step_b == 1) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) y[j] = f(a[j], b[j]);
  } else if (step_a == 1 && step_b == 0) {
    const T right = *b;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) y[j] = f(a[j], right);
  } else {
    for (int64_t j = 0; j < n; ++j) y[j] = f(a[j * step_a], b[j * step_b]);
  }
}

template <class U>
const U* bits(const Tensor& x) {
  return reinterpret_cast<const U*>(x.raw());
}

// Pieces of about kPiece elements, for lines of n.
int64_t lines_of(int64_t n) { return std::max<int64_t>(1, kPiece / std::max<int64_t>(1, n)); }

// Calls f(number) for the n numbers of a line, in order.
template <class T, class F>
void each_of(const T* x, const StridedIndex<1>& index, int64_t n, F f) {
  const int64_t run = index.inner(), step = index.step(0);
  for (int64_t i = 0; i < n; i += run) {
    int64_t at[1];
    index.locate(i, at);
    for (int64_t j = 0; j < run; ++j) f(x[at[0] + j * step]);
  }
}

}  // namespace

void map_unary(Tensor y, Tensor x, UnaryOp op) {
  const auto index = StridedIndex<1>::over(y.shape(), x.strides());
  dispatch_float(y.dtype(), [&]<class T>() {
    // By number of the op.
    constexpr void (*lines[])(T*, int64_t, const T*, int64_t) = {
        unary_line<T, UnaryOp::exp>, unary_line<T, UnaryOp::log>, unary_line<T, UnaryOp::sqrt>,
        unary_line<T, UnaryOp::sigmoid>, unary_line<T, UnaryOp::tanh>};
    static_assert(std::size(lines) == size_t(UnaryOp::tanh) + 1);
    const auto line = lines[int(op)];
    each_line(y.numel(), index, [&](int64_t i, int64_t n, const int64_t* at) {
      line(y.data<T>() + i, n, x.data<T>() + at[0], index.step(0));
    });
  });
}

void map_binary(Tensor y, Tensor a, Tensor b, BinaryOp op) {
  const auto index = StridedIndex<2>::over(y.shape(), a.strides(), b.strides());
  dispatch_float(y.dtype(), [&]<class T>() {
    constexpr void (*lines[])(T*, int64_t, const T*, int64_t, const T*, int64_t) = {
        binary_line<T, BinaryOp::add>, binary_line<T, BinaryOp::sub>, binary_line<T, BinaryOp::mul>,
        binary_line<T, BinaryOp::div>};
    static_assert(std::size(lines) == size_t(BinaryOp::div) + 1);
    const auto line = lines[int(op)];
    each_line(y.numel(), index, [&](int64_t i, int64_t n, const int64_t* at) {
      line(y.data<T>() + i, n, a.data<T>() + at[0], index.step(0), b.data<T>() + at[1],
           index.step(1));
    });
  });
}

void compare(Tensor y, Tensor a, Tensor b, Relation relation) {
  const auto index = StridedIndex<2>::over(y.shape(), a.strides(), b.strides());
  dispatch_any(a.dtype(), [&]<class T>() {
    map<uint8_t, T, T>(y.data<uint8_t>(), y.numel(), index, Compare{relation}, a.data<T>(),
                       b.data<T>());
  });
}

void where(Tensor y, Tensor condition, Tensor a, Tensor b) {
  const auto index =
      StridedIndex<3>::over(y.shape(), condition.strides(), a.strides(), b.strides());
  dispatch_bits(y.dtype(), [&]<class U>() {
    map<U, uint8_t, U, U>(reinterpret_cast<U*>(y.raw()), y.numel(), index, Where{},
                          condition.data<uint8_t>(), bits<U>(a), bits<U>(b));
  });
}

void reduce(Tensor y, Tensor x, Reduction reduction) {
  const ReducedAxes axes(y.shape(), x.shape(), x.strides());
  const int64_t n = axes.count;
  dispatch_float(y.dtype(), [&]<class T>() {
    T* py = y.data<T>();
    const T* px = x.data<T>();
    parallel_for(y.numel(), lines_of(n), [&, py, px](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t at[1];
        axes.kept.locate(i, at);
        const T* first = px + at[0];
        if (reduction == Reduction::max) {
          T best = -std::numeric_limits<T>::infinity();
          each_of(first, axes.reduced, n, [&](T x) { best = larger(best, x); });
          py[i] = best;
        } else {
          double sum = 0;
          each_of(first, axes.reduced, n, [&](T x) { sum += double(x); });
          py[i] = T(reduction == Reduction::mean ? sum / double(n) : sum);
        }
      }
    });
  });
}

void cumsum(Tensor y, Tensor x, int axis, bool reverse) {
  const int64_t n = y.dim(axis);
  if (y.numel() == 0) return;
  const auto lines =
      StridedIndex<2>::over(without_axis(y.shape(), axis), without_axis(y.strides(), axis),
                            without_axis(x.strides(), axis));
  dispatch_float(y.dtype(), [&]<class T>() {
    parallel_for(y.numel() / n, lines_of(n), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t at[2];
        lines.locate(i, at);
        cumsum_line(y.data<T>() + at[0], x.data<T>() + at[1], n, y.stride(axis), x.stride(axis),
                    reverse);
      }
    });
  });
}

void gather(Tensor y, Tensor x, Tensor index, int axis) {
  const auto offsets =
      StridedIndex<2>::over(y.shape(), with_axis(x.strides(), axis, 0), index.strides());
  const int64_t step = x.stride(axis), n = y.numel();
  dispatch_bits(y.dtype(), [&]<class U>() {
    U* py = reinterpret_cast<U*>(y.raw());
    parallel_for(n, kPiece, [&, py](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end;) {
        int64_t at[2];
        offsets.locate(i, at);
        const int64_t run = std::min(offsets.inner() - i % offsets.inner(), end - i);
        for (int64_t j = 0; j < run; ++j) {
          const int64_t position = index.data<int64_t>()[at[1] + j * offsets.step(1)];
          py[i + j] = bits<U>(x)[at[0] + j * offsets.step(0) + position * step];
        }
        i += run;
      }
    });
  });
}

void scatter_add(Tensor y, Tensor x, Tensor index, int axis) {
  const int64_t n = x.dim(axis);
  if (x.numel() == 0) return;
  const auto lines =
      StridedIndex<3>::over(without_axis(x.shape(), axis), without_axis(y.strides(), axis),
                            without_axis(x.strides(), axis), without_axis(index.strides(), axis));
  dispatch_float(y.dtype(), [&]<class T>() {
    parallel_for(x.numel() / n, lines_of(n), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t at[3];
        lines.locate(i, at);
        scatter_line(y.data<T>() + at[0], x.data<T>() + at[1], index.data<int64_t>() + at[2], n,
                     y.stride(axis), x.stride(axis), index.stride(axis));
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
