// Non-temporal stores for results larger than the caches: an ordinary store first reads the line
// that it overwrites, which for a kernel that reads one tensor and writes one is half as much
// traffic again. A kernel fills a short buffer, which stays in L1, and streams it.
#pragma once

#ifdef __AVX__
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

#include "tensor/tensor.h"

namespace brine::BRINE_CPU {

// From this size on, the result would not be in the caches when it is read.
constexpr int64_t kStreamBytes = 32 << 20;
constexpr int64_t kStreamBlock = 2048;  // numbers in the buffer

// Without such stores (GCC offers none for NEON) blocks are written in place.
#if defined(__AVX512F__)
constexpr bool kStreams = true;
constexpr int64_t kStreamWidth = 64;
inline void stream_vector(void* to, const void* from) {
  _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_loadu_si512(from));
}
#elif defined(__AVX__)
constexpr bool kStreams = true;
constexpr int64_t kStreamWidth = 32;
inline void stream_vector(void* to, const void* from) {
  _mm256_stream_si256(static_cast<__m256i*>(to),
                      _mm256_loadu_si256(static_cast<const __m256i*>(from)));
}
#else
constexpr bool kStreams = false;
constexpr int64_t kStreamWidth = 16;
inline void stream_vector(void* to, const void* from) { std::memcpy(to, from, kStreamWidth); }
#endif

// Copies n numbers with non-temporal stores. Call stream_end() before another thread may read them.
template <class T>
void stream(T* to, const T* from, int64_t n) {
  constexpr int64_t width = kStreamWidth / int64_t(sizeof(T));
  int64_t i = 0;
  for (; i < n && reinterpret_cast<uintptr_t>(to + i) % kStreamWidth != 0; ++i) to[i] = from[i];
  for (; i + width <= n; i += width) stream_vector(to + i, from + i);
  for (; i < n; ++i) to[i] = from[i];
}

// Prefetches n numbers that a kernel reads next while it still works on a row. The hardware
// prefetcher stops at the end of a page, and a row is often not much shorter.
template <class T>
void fetch(const T* x, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / int64_t(sizeof(T))) __builtin_prefetch(x + i);
}

inline void stream_end() {
#ifdef __AVX__
  _mm_sfence();
#endif
}

// Where a piece of a kernel writes blocks of at most kStreamBlock numbers of one tensor:
//   Streamed<T> out(y);
//   T* block = out.at(py + i);  ... write n numbers ...  out.done(n);
// A block of a small tensor, or one that is wider than the buffer, is written in place.
template <class T>
class Streamed : NonCopyable {
 public:
  explicit Streamed(const Tensor& y, int64_t widest = kStreamBlock)
      : streams_(kStreams && widest <= kStreamBlock &&
                 y.numel() * int64_t(sizeof(T)) >= kStreamBytes) {}
  ~Streamed() {
    if (streams_) stream_end();
  }

  T* at(T* target) {
    target_ = target;
    return streams_ ? buffer_ : target;
  }
  void done(int64_t n) {
    if (streams_) stream(target_, buffer_, n);
  }

 private:
  bool streams_;
  T* target_ = nullptr;
  alignas(64) T buffer_[kStreamBlock];
};

}  // namespace brine::BRINE_CPU
