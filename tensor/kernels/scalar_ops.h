// The formulas of the primitives for one element and for one line of elements, and the index
// arithmetic of strided tensors: written once for both devices.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "tensor/base/math.h"
#include "tensor/kernels/primitives.h"

namespace brine {

// Maps the number of an element, counted in row-major order over one shape, to its offset in each
// of N strided tensors. Without axes of size 1; neighbouring axes are merged where no tensor has a
// gap between them. There is always at least one axis.
template <int N>
struct StridedIndex {
  int rank = 0;
  int64_t size[Shape::kMaxRank] = {};
  int64_t stride[N][Shape::kMaxRank] = {};

  template <class... Strides>
  static StridedIndex over(const Shape& shape, const Strides&... strides) {
    static_assert(sizeof...(strides) == N);
    StridedIndex index;
    for (int i = 0; i < shape.rank(); ++i) {
      if (shape[i] != 1) index.append(shape[i], {strides[i]...});
    }
    if (index.rank == 0) index.rank = index.size[0] = 1;
    return index;
  }

  // The stride of tensor t along the innermost axis.
  BRINE_HD int64_t step(int t) const { return stride[t][rank - 1]; }
  BRINE_HD int64_t inner() const { return size[rank - 1]; }

  BRINE_HD void locate(int64_t i, int64_t (&at)[N]) const {
    for (int t = 0; t < N; ++t) at[t] = 0;
    for (int a = rank - 1; a >= 0; --a) {
      const int64_t above = i / size[a], here = i - above * size[a];
      for (int t = 0; t < N; ++t) at[t] += here * stride[t][a];
      i = above;
    }
  }

 private:
  void append(int64_t n, const int64_t (&steps)[N]) {
    bool joins = rank > 0;
    for (int t = 0; joins && t < N; ++t) joins = stride[t][rank - 1] == n * steps[t];
    if (!joins) size[rank++] = 1;
    size[rank - 1] *= n;
    for (int t = 0; t < N; ++t) stride[t][rank - 1] = steps[t];
  }
};

// A shape or strides without one axis, or with another number for it.
inline Shape without_axis(const Shape& shape, int axis) {
  Shape result;
  for (int i = 0; i < shape.rank(); ++i) {
    if (i != axis) result.push_back(shape[i]);
  }
  return result;
}
inline Shape with_axis(Shape shape, int axis, int64_t value) {
  shape[axis] = value;
  return shape;
}

// A reduction of x to a shape with size 1 in some axes: the start of each output's line, and the
// `count` elements of a line.
struct ReducedAxes {
  StridedIndex<1> kept, reduced;
  int64_t count = 1;

  ReducedAxes(const Shape& to, const Shape& from, const Shape& strides) {
    Shape kept_sizes, kept_steps, sizes, steps;
    for (int i = 0; i < from.rank(); ++i) {
      const bool goes = to[i] != from[i];
      (goes ? sizes : kept_sizes).push_back(from[i]);
      (goes ? steps : kept_steps).push_back(strides[i]);
    }
    kept = StridedIndex<1>::over(kept_sizes, kept_steps);
    reduced = StridedIndex<1>::over(sizes, steps);
    count = sizes.numel();
  }
};

// ---- one element
// The larger number; NaN when either is.
template <class T>
BRINE_HD T larger(T a, T b) {
  return a > b || a != a ? a : b;
}
struct Unary {
  UnaryOp op;

  template <class T>
  BRINE_HD T operator()(T x) const {
    switch (op) {
      case UnaryOp::exp:
        return math::exp(x);
      case UnaryOp::log:
        return std::log(x);
      case UnaryOp::sqrt:
        return std::sqrt(x);
      case UnaryOp::sigmoid:
        return math::sigmoid(x);
      case UnaryOp::tanh:
        break;
    }
    return std::tanh(x);
  }
};

struct Binary {
  BinaryOp op;

  template <class T>
  BRINE_HD T operator()(T a, T b) const {
    switch (op) {
      case BinaryOp::add:
        return a + b;
      case BinaryOp::sub:
        return a - b;
      case BinaryOp::mul:
        return a * b;
      case BinaryOp::div:
        break;
    }
    return a / b;
  }
};

struct Compare {
  Relation relation;

  template <class T>
  BRINE_HD uint8_t operator()(T a, T b) const {
    if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>) {
      return (*this)(float(a), float(b));
    } else {
      switch (relation) {
        case Relation::equal:
          return a == b;
        case Relation::not_equal:
          return a != b;
        case Relation::less:
          return a < b;
        case Relation::less_equal:
          return a <= b;
        case Relation::greater:
          return a > b;
        case Relation::greater_equal:
          return a >= b;
        case Relation::both:
          break;
      }
      return a != T(0) && b != T(0);
    }
  }
};

struct Where {
  template <class T>
  BRINE_HD T operator()(uint8_t condition, T a, T b) const {
    return condition ? a : b;
  }
};

// ---- one line along an axis: n elements of each tensor, `step` apart
template <class T>
BRINE_HD void cumsum_line(T* y, const T* x, int64_t n, int64_t step_y, int64_t step_x,
                          bool reverse) {
  double sum = 0;
  for (int64_t j = 0; j < n; ++j) {
    const int64_t i = reverse ? n - 1 - j : j;
    sum += double(x[i * step_x]);
    y[i * step_y] = T(sum);
  }
}

template <class T, class I>
BRINE_HD void scatter_line(T* y, const T* x, const I* index, int64_t n, int64_t step_y,
                           int64_t step_x, int64_t step_index) {
  for (int64_t i = 0; i < n; ++i) y[int64_t(index[i * step_index]) * step_y] += x[i * step_x];
}

// ---- the types of a kernel
// Calls f.operator()<U>() with an unsigned type as large as the elements of `t`.
template <class F>
void dispatch_bits(Dtype t, F&& f) {
  switch (item_size(t)) {
    case 1:
      return f.template operator()<uint8_t>();
    case 2:
      return f.template operator()<uint16_t>();
    case 4:
      return f.template operator()<uint32_t>();
    default:
      return f.template operator()<uint64_t>();
  }
}

}  // namespace brine
