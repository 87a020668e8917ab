// AdamW: one pass over the flat buffers, a pack of neighbours per thread.
#include <cmath>

#include "tensor/cuda/core/packs.cuh"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

template <class T>
struct Rates {
  T beta1, beta2, fresh1, fresh2, correct2, rate, decay, eps, scale;

  explicit Rates(const AdamwStep& step)
      : beta1(T(step.beta1)),
        beta2(T(step.beta2)),
        fresh1(T(1 - step.beta1)),
        fresh2(T(1 - step.beta2)),
        correct2(T(1 / (1 - std::pow(step.beta2, double(step.step))))),
        rate(T(step.learning_rate / (1 - std::pow(step.beta1, double(step.step))))),
        decay(T(step.learning_rate * step.weight_decay)),
        eps(T(step.eps)),
        scale(T(step.grad_scale)) {}

  __device__ void operator()(T& w, T& m, T& v, T g) const {
    const T gradient = g * scale;
    m = beta1 * m + fresh1 * gradient;
    v = beta2 * v + fresh2 * gradient * gradient;
    w -= rate * m / (std::sqrt(v * correct2) + eps) + decay * w;
  }
};

template <class T>
__global__ void adamw_kernel(T* w, T* m, T* v, const T* g, int64_t n, bool packed, Rates<T> rates) {
  constexpr int kN = kWide<T>;
  const int64_t first = piece() * kN;
  if (packed && first + kN <= n) {
    Pack<T, kN> pw = load_pack<kN>(w + first), pm = load_pack<kN>(m + first);
    Pack<T, kN> pv = load_pack<kN>(v + first);
    const Pack<T, kN> pg = load_pack<kN>(g + first);
    for (int i = 0; i < kN; ++i) rates(pw.v[i], pm.v[i], pv.v[i], pg.v[i]);
    store_pack(w + first, pw);
    store_pack(m + first, pm);
    store_pack(v + first, pv);
  } else {
    for (int64_t i = first; i < n && i < first + kN; ++i) rates(w[i], m[i], v[i], g[i]);
  }
}

}  // namespace

void adamw(Tensor w, Tensor m, Tensor v, Tensor g, AdamwStep step) {
  const int64_t n = w.numel();
  dispatch_float(w.dtype(), [&]<class T>() {
    launch_each("adamw", (n + kWide<T> - 1) / kWide<T>, adamw_kernel<T>, w.data<T>(), m.data<T>(),
                v.data<T>(), g.data<T>(), n, aligned(16, w.raw(), m.raw(), v.raw(), g.raw()),
                Rates<T>(step));
  });
}

}  // namespace brine::cuda
