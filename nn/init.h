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

  Tensor normal(const Shape& shape, double std) { return draw(shape, std, true); }
  // U(-bound, bound)
  Tensor uniform(const Shape& shape, double bound) { return draw(shape, bound, false); }
  Tensor zeros(const Shape& shape) const { return Tensor::zeros(shape, dtype); }
  Tensor full(const Shape& shape, double value) const { return Tensor::full(shape, value, dtype); }

 private:
  Tensor draw(const Shape& shape, double size, bool gaussian) {
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
