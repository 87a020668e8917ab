// Products of one row with the rows of the keys of a mask's entries: the scores of sparse
// attention. Rows stored in 16 bits (S) are widened in registers.
#pragma once

#include "tensor/cpu/core/fold.h"
#include "tensor/cpu/core/stored_vectors.h"
#include "tensor/kernels/kernel.h"
#include "tensor/mask/csr.h"

namespace brine::BRINE_CPU {

// f.operator()<D>(): D = d for the common head sizes, otherwise 0. Returns a function, whose caller
// is then compiled once, not for each size.
template <class F>
auto function_of_width(int64_t d, F&& f) {
  switch (d) {
    case 32:
      return f.template operator()<32>();
    case 64:
      return f.template operator()<64>();
    case 128:
      return f.template operator()<128>();
    default:
      return f.template operator()<0>();
  }
}

// x . y, in two independent chains of sums.
template <int D, class T, class S>
T dot(const T* x, const S* y, int64_t width) {
  constexpr int W = kWidth<T>;
  const int64_t d = D ? D : width;
  Vector<T> even = {}, odd = {};
  int64_t c = 0;
#pragma GCC unroll 16
  for (; c + 2 * W <= d; c += 2 * W) {
    even += load(x + c) * load_as<T>(y + c);
    odd += load(x + c + W) * load_as<T>(y + c + W);
  }
  T sum = sum_of_vector<T, kVectorBytes>(even + odd);
  for (; c < d; ++c) sum += x[c] * T(y[c]);
  return sum;
}

// out[l] = factor (x . rows[columns[l]]) for the vector of entries that begins at columns[0], of
// which `count` are used. D is whole vectors. A lane's bits do not depend on the others.
template <int D, class T, class S>
void dots_of_vector(T* out, const T* x, const S* origin, T factor, const int32_t* columns,
                    int64_t count) {
  constexpr int W = kWidth<T>;
  constexpr int V = D / W;
  Vector<T> x_vectors[V];
#pragma GCC unroll 8
  for (int i = 0; i < V; ++i) x_vectors[i] = load(x + i * W);
  auto product = [&](int l) __attribute__((always_inline)) {
    const S* row = origin + columns[l] * int64_t(D);
    Vector<T> sum = x_vectors[0] * load_as<T>(row);
#pragma GCC unroll 8
    for (int i = 1; i < V; ++i) sum += x_vectors[i] * load_as<T>(row + i * W);
    return sum;
  };
  int32_t rest[W];
  if (count < W) {  // lanes beyond the last entry repeat the first one's
    for (int l = 0; l < W; ++l) rest[l] = columns[l < count ? l : 0];
    columns = rest;
  }
  const Vector<T> products = factor * folded<T>(product);
  if (count >= W) return store(out, products);
  for (int64_t l = 0; l < count; ++l) out[l] = products[l];
}

// out[e] = factor (x . rows[key(e)])
template <int D, class T, class S>
void dots(T* out, const T* x, const S* rows, int64_t d, T factor, const RowEntries& at) {
  const S* origin = rows - at.base * d;
  if constexpr (D > 0 && D % kWidth<T> == 0) {
    for (int64_t e = 0; e < at.count; e += kWidth<T>) {
      dots_of_vector<D>(out + e, x, origin, factor, at.columns + e, at.count - e);
    }
    return;
  }
  for (int64_t e = 0; e < at.count; ++e) {
    out[e] = factor * dot<D>(x, origin + at.columns[e] * d, d);
  }
}

}  // namespace brine::BRINE_CPU
