// Initial values (docs/method.md section 4.4): drawn from an explicit random stream, in the type of
// the model.
#pragma once

#include <cmath>

#include "tensor/base/random.h"
#include "tensor/tensor.h"

namespace brine::nn {

// An argument of every constructor that makes parameters.
struct Init {
  RandomStream random;
  Dtype dtype = Dtype::f32;
  double linear_std = 0.02;
  // The device of new parameters. On the meta device they are shapes: a ParameterStore gives them
  // memory, a file the values.
  Device device = {};
  // false: parameters outside attention methods have memory and no values, since weights that are
  // loaded next replace them all. The random stream advances as if they had been drawn, so what is
  // drawn has the same bits.
  bool base_values = true;

  Tensor normal(const Shape& shape, double std) { return draw(shape, std, true); }
  // U(-bound, bound)
  Tensor uniform(const Shape& shape, double bound) { return draw(shape, bound, false); }
  Tensor zeros(const Shape& shape) const { return full(shape, 0); }
  Tensor full(const Shape& shape, double value) const {
    return Tensor::full(shape, value, dtype, device);
  }

 private:
  Tensor draw(const Shape& shape, double size, bool gaussian) {
    if (device.is_meta()) return Tensor::empty(shape, dtype, device);  // nothing is drawn
    RandomSlice slice = random.take(uint64_t(shape.numel()));
    if (!base_values) return Tensor::empty(shape, dtype, device);
    return Tensor::filled(shape, dtype, device, [&](const Tensor& t) {
      dispatch_float(dtype, [&]<class T>() {
        T* values = t.data<T>();
        for (int64_t i = 0; i < t.numel(); ++i) {
          double u = gaussian ? slice.normal(uint64_t(i)) : 2 * slice.uniform(uint64_t(i) * 4) - 1;
          values[i] = T(size * u);
        }
      });
    });
  }
};

}  // namespace brine::nn
