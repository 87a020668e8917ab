// Nearest upsampling of an image to tokens x columns, and its gradient.
#include <algorithm>

#include "tensor/base/parallel.h"
#include "tensor/kernels/conv.h"

namespace brine::BRINE_CPU {
namespace {

int64_t live_tokens(const Upsampling& conf, int64_t b) {
  if (!conf.lengths.defined()) return conf.tokens;
  return std::clamp<int64_t>(conf.lengths.data<int64_t>()[b], 0, conf.tokens);
}

int64_t grain(int64_t row) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(row, 1)); }

}  // namespace

void upsample(Tensor y, Tensor x, Upsampling conf) {
  dispatch_float(x.dtype(), [&]<class T>() {
    const int64_t R = x.dim(1), W = x.dim(2), C = x.dim(3), K = conf.columns, rows = y.dim(1);
    parallel_for(y.dim(0) * rows, grain(K * C), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t b = i / rows, t = i % rows - conf.halo_before;
        T* to = y.data<T>() + i * K * C;
        if (t < 0 || t >= live_tokens(conf, b)) {
          std::fill(to, to + K * C, T(0));
          continue;
        }
        const T* from = x.data<T>() + (b * R + t / conf.stride) * W * C;
        for (int64_t c = 0; c < K; ++c) std::copy_n(from + c * W / K * C, C, to + c * C);
      }
    });
  });
}

void upsample_backward(Tensor dx, Tensor dy, Upsampling conf) {
  dispatch_float(dx.dtype(), [&]<class T>() {
    const int64_t R = dx.dim(1), W = dx.dim(2), C = dx.dim(3), K = conf.columns, rows = dy.dim(1);
    parallel_for(dx.dim(0) * R, grain(K * C * conf.stride), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t b = i / R, first = i % R * conf.stride;
        int64_t last = std::min(first + conf.stride, live_tokens(conf, b));
        T* to = dx.data<T>() + i * W * C;
        std::fill(to, to + W * C, T(0));
        for (int64_t t = first; t < last; ++t) {
          const T* from = dy.data<T>() + (b * rows + conf.halo_before + t) * K * C;
          for (int64_t c = 0; c < K; ++c) {
            T* sum = to + c * W / K * C;
            for (int64_t j = 0; j < C; ++j) sum[j] += from[c * C + j];
          }
        }
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
