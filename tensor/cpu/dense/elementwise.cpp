// Elementwise kernels: one loop each over contiguous memory, split into pieces for the threads.
#include "tensor/base/parallel.h"
#include "tensor/cpu/core/draw.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/stream.h"
#include "tensor/kernels/activations.h"
#include "tensor/kernels/dense.h"

namespace brine::BRINE_CPU {
namespace {

// Calls f(out, first, n) on blocks that cover [begin, end) of y: out[i] becomes y[first + i].
template <class T, class F>
void each_block(const Tensor& y, T* py, int64_t begin, int64_t end, F f) {
  Streamed<T> out(y);
  for (int64_t i = begin; i < end; i += kStreamBlock) {
    const int64_t n = std::min(kStreamBlock, end - i);
    f(out.at(py + i), i, n);
    out.done(n);
  }
}

// y[i] = f(x[i])
template <class T, class F>
void map(const Tensor& y, const Tensor& x, F f) {
  T* py = y.data<T>();
  const T* px = x.data<T>();
  parallel_for(y.numel(), kGrain, [&, py, px](int64_t begin, int64_t end) {
    each_block<T>(y, py, begin, end, [=](T* out, int64_t first, int64_t n) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) out[i] = f(px[first + i]);
    });
  });
}

// y[i] = f(a[i], b[i])
template <class T, class F>
void map(const Tensor& y, const Tensor& a, const Tensor& b, F f) {
  T* py = y.data<T>();
  const T* pa = a.data<T>();
  const T* pb = b.data<T>();
  parallel_for(y.numel(), kGrain, [&, py, pa, pb](int64_t begin, int64_t end) {
    each_block<T>(y, py, begin, end, [=](T* out, int64_t first, int64_t n) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) out[i] = f(pa[first + i], pb[first + i]);
    });
  });
}

// One type by name: F<T>{} is the function that map() calls.
template <template <class> class F, class... X>
void map_typed(const Tensor& y, const X&... x) {
  dispatch_float(y.dtype(), [&]<class T>() { map<T>(y, x..., F<T>{}); });
}

}  // namespace

void add(Tensor y, Tensor a, Tensor b) { map_typed<math::map::Sum>(y, a, b); }

void sub(Tensor y, Tensor a, Tensor b) { map_typed<math::map::Difference>(y, a, b); }

void mul(Tensor y, Tensor a, Tensor b) { map_typed<math::map::Product>(y, a, b); }

void axpby(Tensor y, Tensor x, double alpha, double beta) {
  dispatch_float(y.dtype(), [&]<class T>() {
    if (beta == 0) {
      map<T>(y, x, math::map::Scaled<T>{T(alpha)});
    } else {
      map<T>(y, x, y, math::map::Mixed<T>{T(alpha), T(beta)});
    }
  });
}

void activation(Tensor y, Tensor x, Activation f) {
  dispatch_float(y.dtype(), [&]<class T>() {
    with_activation<T>(f, [&](auto function) { map<T>(y, x, function); });
  });
}

void activation_backward(Tensor dx, Tensor dy, Tensor saved, Activation f) {
  dispatch_float(dx.dtype(), [&]<class T>() {
    with_activation<T>(f, [&](auto gradient) { map<T>(dx, dy, saved, gradient); });
  });
}

void dropout(Tensor y, Tensor x, double p, RandomSlice random) {
  // uniform(i) >= p as a comparison of the underlying integers: word > below.
  const int64_t below = int64_t(std::ceil(p * 4294967296.0 - 0.5)) - 1;
  if (below < 0) return copy(y, x);
  dispatch_float(y.dtype(), [&]<class T>() {
    T* py = y.data<T>();
    const T* px = x.data<T>();
    const T keep = T(1 / (1 - p));
    const uint32_t limit = uint32_t(below);
    parallel_for(y.numel(), kGrain, [=](int64_t begin, int64_t end) {
      uint32_t words[kDrawWords];
      for (int64_t at = begin; at < end; at += kDrawWords) {
        draw(random.seed, random.stream, random.first + uint64_t(at / 4), words);
        const int64_t n = std::min(kDrawWords, end - at);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) py[at + i] = words[i] > limit ? px[at + i] * keep : T(0);
      }
    });
  });
}

void zero_padding(Tensor y, Tensor x, Tensor lengths) {
  const int64_t B = x.dim(0), T = x.dim(1), C = x.numel() ? x.numel() / (B * T) : 0;
  const int64_t* length = lengths.data<int64_t>();
  const int64_t bytes = C * int64_t(item_size(x.dtype()));
  unsigned char* py = y.raw();
  const unsigned char* px = x.raw();
  each_row(B * T, C, [=](int64_t r) {
    if (r % T >= length[r / T]) {
      std::fill_n(py + r * bytes, bytes, 0);
    } else if (py != px) {
      std::copy_n(px + r * bytes, bytes, py + r * bytes);
    }
  });
}

}  // namespace brine::BRINE_CPU
