// Elementwise kernels: a pack of neighbours per thread, so that every load and store is a wide one.
#include <cmath>

#include "tensor/cuda/core/packs.cuh"
#include "tensor/kernels/activations.h"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

constexpr int kDrawn = 4;  // elements of one block of random numbers

// y[i] = f(x[i]...)
template <class T, class F, class... X>
__global__ void map_kernel(T* y, int64_t n, bool packed, F f, const X*... x) {
  constexpr int kN = kWide<T>;
  const int64_t first = piece() * kN;
  if (packed && first + kN <= n) {
    auto mapped = [&](const Pack<X, kN>&... in) {
      Pack<T, kN> out;
      for (int i = 0; i < kN; ++i) out.v[i] = f(in.v[i]...);
      return out;
    };
    store_pack(y + first, mapped(load_pack<kN>(x + first)...));
  } else {
    for (int64_t i = first; i < n && i < first + kN; ++i) y[i] = f(x[i]...);
  }
}

template <class T, class F, class... X>
void map(const char* name, const Tensor& y, F f, const X*... x) {
  const int64_t n = y.numel();
  launch_each(name, (n + kWide<T> - 1) / kWide<T>, map_kernel<T, F, X...>, y.data<T>(), n,
              aligned(16, y.raw(), x...), f, x...);
}

// One type by name: F<T>{} is the function that map() calls.
template <template <class> class F, class... X>
void map_typed(const char* name, const Tensor& y, const X&... x) {
  dispatch_float(y.dtype(), [&]<class T>() { map<T>(name, y, F<T>{}, x.template data<T>()...); });
}

// Four elements per thread: those of one block of random words. An element is kept when its word is
// above `limit`.
template <class T>
__global__ void dropout_kernel(T* y, const T* x, int64_t n, bool packed, T keep, uint32_t limit,
                               RandomSlice random) {
  const int64_t first = piece() * kDrawn;
  if (first >= n) return;
  const Philox words = philox(random.seed, random.stream, random.first + uint64_t(piece()));
  Pack<T, kDrawn> p{};
  if (packed && first + kDrawn <= n) {
    p = load_pack<kDrawn>(x + first);
  } else {
    for (int i = 0; i < kDrawn; ++i) {
      if (first + i < n) p.v[i] = x[first + i];
    }
  }
  for (int i = 0; i < kDrawn; ++i) p.v[i] = words.v[i] > limit ? p.v[i] * keep : T(0);
  if (packed && first + kDrawn <= n) {
    store_pack(y + first, p);
  } else {
    for (int i = 0; i < kDrawn; ++i) {
      if (first + i < n) y[first + i] = p.v[i];
    }
  }
}

// Rows of C units of a sequence of T rows. Elements that stay in place are not accessed.
template <class U>
__global__ void zero_padding_kernel(U* y, const U* x, const int64_t* lengths, int64_t n, int64_t T,
                                    int64_t C) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t r = quotient(i, C), b = quotient(r, T);
  if (r - b * T >= lengths[b]) {
    y[i] = U{};
  } else if (y != x) {
    y[i] = x[i];
  }
}

}  // namespace

void add(Tensor y, Tensor a, Tensor b) { map_typed<math::map::Sum>("add", y, a, b); }

void sub(Tensor y, Tensor a, Tensor b) { map_typed<math::map::Difference>("sub", y, a, b); }

void mul(Tensor y, Tensor a, Tensor b) { map_typed<math::map::Product>("mul", y, a, b); }

void axpby(Tensor y, Tensor x, double alpha, double beta) {
  dispatch_float(y.dtype(), [&]<class T>() {
    if (beta == 0) {
      map<T>("axpby", y, math::map::Scaled<T>{T(alpha)}, x.data<T>());
    } else {
      map<T>("axpby", y, math::map::Mixed<T>{T(alpha), T(beta)}, x.data<T>(), y.data<T>());
    }
  });
}

void activation(Tensor y, Tensor x, Activation f) {
  dispatch_float(y.dtype(), [&]<class T>() {
    with_activation<T>(f, [&](auto function) { map<T>("activation", y, function, x.data<T>()); });
  });
}

void activation_backward(Tensor dx, Tensor dy, Tensor saved, Activation f) {
  dispatch_float(dx.dtype(), [&]<class T>() {
    with_activation<T>(f, [&](auto gradient) {
      map<T>("activation_backward", dx, gradient, dy.data<T>(), saved.data<T>());
    });
  });
}

void dropout(Tensor y, Tensor x, double p, RandomSlice random) {
  // uniform(i) >= p as a comparison of the underlying integers: word > below.
  const int64_t below = int64_t(std::ceil(p * 4294967296.0 - 0.5)) - 1;
  if (below < 0) return copy(y, x);
  const int64_t n = y.numel();
  dispatch_float(y.dtype(), [&]<class T>() {
    launch_each("dropout", (n + kDrawn - 1) / kDrawn, dropout_kernel<T>, y.data<T>(), x.data<T>(),
                n, aligned(kDrawn * sizeof(T), y.raw(), x.raw()), T(1 / (1 - p)), uint32_t(below),
                random);
  });
}

void zero_padding(Tensor y, Tensor x, Tensor lengths) {
  if (x.numel() == 0) return;
  const OnDevice length(lengths, x.device());
  const int64_t rows = x.dim(0) * x.dim(1);
  const int64_t bytes = x.numel() / rows * int64_t(item_size(x.dtype()));
  const uint64_t bits =
      uint64_t(bytes) | reinterpret_cast<uintptr_t>(y.raw()) | reinterpret_cast<uintptr_t>(x.raw());
  dispatch_unit(bits, [&]<class U>() {
    const int64_t C = bytes / int64_t(sizeof(U));
    launch_each("zero_padding", rows * C, zero_padding_kernel<U>, reinterpret_cast<U*>(y.raw()),
                reinterpret_cast<const U*>(x.raw()), length.data<int64_t>(), rows * C, x.dim(1), C);
  });
}

}  // namespace brine::cuda
