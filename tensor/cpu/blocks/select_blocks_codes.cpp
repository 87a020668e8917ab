// Copies of keys in 4 bits, and the moments of their blocks: vertical over the channels.
#include <cmath>
#include <vector>

#include "tensor/base/stored.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/kernels/blocks.h"

namespace brine::BRINE_CPU {
namespace {

// One block of B keys k [B, d]; codes [B, half], steps [B], moments [2 d]. S: what these are stored
// in.
template <class T, class S>
class BlockCopy {
 public:
  void write(uint8_t* codes, T* steps, T* moments, const T* k, const T* sigma, int64_t B,
             int64_t d) {
    const int64_t half = (d + 1) / 2;
    T *mean = moments, *deviation = moments + d;
    std::fill_n(moments, 2 * d, T(0));
    for (int64_t j = 0; j < B; ++j) {
#pragma omp simd
      for (int64_t c = 0; c < d; ++c) mean[c] += k[j * d + c];
    }
    for (int64_t c = 0; c < d; ++c) mean[c] /= T(B);
    for (int64_t j = 0; j < B; ++j) {
#pragma omp simd
      for (int64_t c = 0; c < d; ++c) {
        const T x = k[j * d + c] - mean[c];
        deviation[c] += x * x;
      }
    }
    for (int64_t c = 0; c < d; ++c) deviation[c] = std::sqrt(deviation[c] / T(B));
    for (int64_t c = 0; c < d; ++c) mean[c] = T(S(mean[c]));
    r_.resize(size_t(d));
    z_.assign(size_t(2 * half), 8);
    for (int64_t j = 0; j < B; ++j) {
      T largest = 0;
#pragma omp simd reduction(max : largest)
      for (int64_t c = 0; c < d; ++c) {
        const T r = (k[j * d + c] - mean[c]) / sigma[c], size = std::fabs(r);
        r_[size_t(c)] = r;
        largest = size > largest ? size : largest;
      }
      const T a = T(S(largest / T(7.5)));
      steps[j] = a;
      for (int64_t c = 0; c < d; ++c) {
        // NaN and 0 / 0 become the lowest code: whoever reads them finds NaN in the mean key.
        const T z = a > 0 ? std::floor(r_[size_t(c)] / a) : T(0);
        z_[size_t(c)] = uint8_t(8 + int(z > -8 ? (z < 7 ? z : T(7)) : T(-8)));
      }
      for (int64_t c = 0; c < half; ++c) {
        codes[j * half + c] = uint8_t(z_[size_t(c)] | (z_[size_t(half + c)] << 4));
      }
    }
  }

 private:
  std::vector<T> r_;
  std::vector<uint8_t> z_;
};

}  // namespace

void key_codes(KeyCodes keys, Tensor k, Tensor key_scale, int64_t block, Dtype stored) {
  const int64_t N = keys.steps.dim(2), G = k.dim(1), T = k.dim(2), d = k.dim(3);
  const int64_t half = keys.codes.dim(4);
  dispatch_stored(k.dtype(), stored, [&]<class R, class S>() {
    for_pieces(k.dim(0) * G * N, k.numel(), [&](int64_t i) {
      thread_local BlockCopy<R, S> copy;
      const int64_t bg = i / N;
      copy.write(keys.codes.data<uint8_t>() + i * block * half, keys.steps.data<R>() + i * block,
                 keys.moments[0].data<R>() + i * 2 * d, k.data<R>() + (bg * T + i % N * block) * d,
                 key_scale.data<R>() + bg % G * d, block, d);
    });
  });
}

}  // namespace brine::BRINE_CPU
