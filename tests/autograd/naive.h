// Arrays of doubles by coordinates: oracles are written with them, one element at a time, and share
// nothing with the kernels.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "tensor/tensor.h"

namespace brine::test {

using Coordinates = std::vector<int64_t>;
using Values = std::vector<double>;

struct Array {
  Coordinates shape;
  Values values;

  Array(const Tensor& x) : shape(x.shape().begin(), x.shape().end()), values(x.to_vector()) {}
  Array(Coordinates sizes, double value) : shape(std::move(sizes)) {
    int64_t n = 1;
    for (int64_t size : shape) n *= size;
    values.assign(size_t(n), value);
  }

  // The offset of an element in row-major order. Leading coordinates that the array does not have
  // are ignored, and an axis of size 1 has the same element everywhere: NumPy's broadcasting.
  size_t offset(std::span<const int64_t> c) const {
    size_t at = 0;
    const size_t skipped = c.size() - shape.size();
    for (size_t i = 0; i < shape.size(); ++i) {
      at = at * size_t(shape[i]) + (shape[i] == 1 ? 0 : size_t(c[skipped + i]));
    }
    return at;
  }
  double operator()(const Coordinates& c) const { return values.at(offset(c)); }
  double& operator[](const Coordinates& c) { return values.at(offset(c)); }
  // The same of as many coordinates as there are axes.
  template <class... More>
  double operator()(int64_t first, More... more) const {
    if (shape.size() != 1 + sizeof...(more)) throw std::out_of_range("coordinates of an array");
    const int64_t c[] = {first, int64_t(more)...};
    return values.at(offset(c));
  }
};

// Calls f(coordinates) for every element of a shape, the last axis fastest.
template <class F>
void each(const Coordinates& shape, F f) {
  Coordinates c(shape.size(), 0);
  for (int64_t size : shape) {
    if (size == 0) return;
  }
  for (;;) {
    f(c);
    size_t i = shape.size();
    while (i > 0 && ++c[i - 1] == shape[i - 1]) c[--i] = 0;
    if (i == 0) return;
  }
}

// The values f(coordinates) of a shape, in row-major order.
template <class F>
Values tabulate(const Coordinates& shape, F f) {
  Values values;
  each(shape, [&](const Coordinates& c) { values.push_back(f(c)); });
  return values;
}

// The shape of two that broadcast.
inline Coordinates joined(const Coordinates& a, const Coordinates& b) {
  const Coordinates &longer = a.size() < b.size() ? b : a, &other = a.size() < b.size() ? a : b;
  Coordinates shape = longer;
  for (size_t i = 0; i < other.size(); ++i) {
    int64_t& size = shape[longer.size() - other.size() + i];
    if (size == 1) size = other[i];
  }
  return shape;
}

}  // namespace brine::test
