// AdamW: one pass over the flat buffers.
#include "tensor/kernels/dense.h"

#include <cmath>

#include "tensor/base/parallel.h"

namespace brine::BRINE_CPU {

void adamw(Tensor w, Tensor m, Tensor v, Tensor g, AdamwStep step) {
  dispatch_float(w.dtype(), [&]<class T>() {
    T* pw = w.data<T>();
    T* pm = m.data<T>();
    T* pv = v.data<T>();
    const T* pg = g.data<T>();
    const T beta1 = T(step.beta1), beta2 = T(step.beta2);
    const T fresh1 = T(1 - step.beta1), fresh2 = T(1 - step.beta2);
    const T correct2 = T(1 / (1 - std::pow(step.beta2, double(step.step))));
    const T rate = T(step.learning_rate / (1 - std::pow(step.beta1, double(step.step))));
    const T decay = T(step.learning_rate * step.weight_decay);
    const T eps = T(step.eps), scale = T(step.grad_scale);
    parallel_for(w.numel(), 16384, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const T gradient = pg[i] * scale;
        const T first = beta1 * pm[i] + fresh1 * gradient;
        const T second = beta2 * pv[i] + fresh2 * gradient * gradient;
        pm[i] = first;
        pv[i] = second;
        pw[i] -= rate * first / (std::sqrt(second * correct2) + eps) + decay * pw[i];
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
