// Elementwise kernels: one loop each over contiguous memory, split into pieces for the threads.
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "tensor/base/parallel.h"
#include "tensor/base/random.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/stream.h"
#include "tensor/kernels/activations.h"
#include "tensor/kernels/dense.h"

namespace brine::BRINE_CPU {
namespace {

// Philox for many blocks at once: the same words as philox(), faster.
constexpr int64_t kDrawBlocks = 64;
constexpr int64_t kDrawWords = 4 * kDrawBlocks;

// words[4 b + w] = philox(seed, stream, first + b).v[w] for b < kDrawBlocks.
void draw(uint64_t seed, uint64_t stream, uint64_t first, uint32_t* words) {
#ifdef __AVX2__
  // A 64-bit lane contains one word of a block in its lower half; the upper half that products
  // leave is never read, neither by the next product nor at the end. The compiler's code for
  // philox() spends most of its time on moving words between lanes. Groups of four blocks are
  // interleaved, since each is a long chain of dependent steps.
  constexpr int kGroups = 2;
  const __m256i times0 = _mm256_set1_epi64x(0xD2511F53), times2 = _mm256_set1_epi64x(0xCD9E8D57);
  const __m256i step0 = _mm256_set1_epi64x(0x9E3779B9), step1 = _mm256_set1_epi64x(0xBB67AE85);
  const __m256i low = _mm256_set1_epi64x(0xffffffff), lanes = _mm256_set_epi64x(3, 2, 1, 0);
  for (int64_t b = 0; b < kDrawBlocks; b += 4 * kGroups) {
    __m256i c0[kGroups], c1[kGroups], c2[kGroups], c3[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      c0[g] = _mm256_add_epi64(_mm256_set1_epi64x(int64_t(first) + b + 4 * g), lanes);
      c1[g] = _mm256_srli_epi64(c0[g], 32);
      c2[g] = _mm256_set1_epi64x(int64_t(stream));
      c3[g] = _mm256_srli_epi64(c2[g], 32);
    }
    __m256i k0 = _mm256_set1_epi64x(uint32_t(seed)), k1 = _mm256_set1_epi64x(int64_t(seed >> 32));
    for (int round = 0; round < 10; ++round) {
      for (int g = 0; g < kGroups; ++g) {
        const __m256i p0 = _mm256_mul_epu32(c0[g], times0), p1 = _mm256_mul_epu32(c2[g], times2);
        c0[g] = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(c1[g], k0));
        c2[g] = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), _mm256_xor_si256(c3[g], k1));
        c1[g] = p1;
        c3[g] = p0;
      }
      k0 = _mm256_add_epi32(k0, step0);
      k1 = _mm256_add_epi32(k1, step1);
    }
    for (int g = 0; g < kGroups; ++g) {
      const __m256i c01 =
          _mm256_or_si256(_mm256_and_si256(c0[g], low), _mm256_slli_epi64(c1[g], 32));
      const __m256i c23 =
          _mm256_or_si256(_mm256_and_si256(c2[g], low), _mm256_slli_epi64(c3[g], 32));
      const __m256i even = _mm256_unpacklo_epi64(c01, c23), odd = _mm256_unpackhi_epi64(c01, c23);
      auto* out = reinterpret_cast<__m256i*>(words + 4 * b + 16 * g);
      _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
  }
#else
  for (int64_t b = 0; b < kDrawBlocks; ++b) {
    const Philox p = philox(seed, stream, first + uint64_t(b));
    for (int w = 0; w < 4; ++w) words[4 * b + w] = p.v[w];
  }
#endif
}

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
