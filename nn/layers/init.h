// Initial values (method 4.4): drawn from an explicit random stream, in the type of the model.
#pragma once

#include <cmath>

#include "tensor/random.h"
#include "tensor/tensor.h"

namespace brine::nn {

// Handed to every constructor that makes parameters.
struct Init {
  RandomStream random;
  Dtype dtype = Dtype::f32;
  double linear_std = 0.02;
  bool blank = false;  // shapes only, without memory: a ParameterStore gives it, a file the values

  Tensor normal(const Shape& shape, double std) { return draw(shape, std, true); }
  // U(-bound, bound)
  Tensor uniform(const Shape& shape, double bound) { return draw(shape, bound, false); }
  Tensor zeros(const Shape& shape) const { return full(shape, 0); }
  Tensor full(const Shape& shape, double value) const {
    return blank ? shape_only(shape) : Tensor::full(shape, value, dtype);
  }

  // One element that stands for all.
  static bool is_shape_only(const Tensor& t) {
    for (int i = 0; i < t.rank(); ++i) {
      if (t.stride(i) != 0) return false;
    }
    return true;
  }

 private:
  Tensor shape_only(const Shape& shape) const {
    Shape strides = shape;
    for (int i = 0; i < strides.rank(); ++i) strides[i] = 0;
    return Tensor::zeros({1}, dtype).as_strided(shape, strides);
  }

  Tensor draw(const Shape& shape, double size, bool gaussian) {
    if (blank) return shape_only(shape);
    Tensor t = Tensor::empty(shape, dtype);
    RandomSlice slice = random.take(uint64_t(t.numel()));
    dispatch_float(dtype, [&]<class T>() {
      for (int64_t i = 0; i < t.numel(); ++i) {
        double u = gaussian ? slice.normal(uint64_t(i)) : 2 * slice.uniform(uint64_t(i) * 4) - 1;
        t.data<T>()[i] = T(size * u);
      }
    });
    return t;
  }
};

}  // namespace brine::nn
