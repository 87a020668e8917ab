// Vectors as wide as the registers of the target CPU of a source, and how many registers it has.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "tensor/kernels/kernel.h"

#if defined(BRINE_AVX512) && !defined(__AVX512F__)
#error "the kernels for AVX-512 are compiled without it"
#endif

namespace brine::BRINE_CPU {

#ifdef __AVX512F__
constexpr int kVectorBytes = 64, kRegisters = 32;
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16, kRegisters = 32;
#else
constexpr int kVectorBytes = 32, kRegisters = 16;
#endif

template <class T, int Bytes = kVectorBytes>
struct VectorOf {
  typedef T type __attribute__((vector_size(Bytes)));
  static constexpr int width = Bytes / int(sizeof(T));
};
template <class T>
using Vector = typename VectorOf<T>::type;
template <class T>
constexpr int kWidth = VectorOf<T>::width;

// n rounded up to whole vectors.
template <class T>
constexpr int64_t whole_vectors(int64_t n) {
  return (n + kWidth<T> - 1) / kWidth<T> * kWidth<T>;
}

// Loads and stores at any address.
template <class T>
inline Vector<T> load(const T* p) {
  Vector<T> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
template <class T>
inline void store(T* p, Vector<T> v) {
  std::memcpy(p, &v, sizeof(v));
}

// Into the caches, by lines.
inline void prefetch(const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(from) + i);
}

// The sum of all lanes, by halves.
template <class T, int Bytes>
inline T sum_of_vector(typename VectorOf<T, Bytes>::type v) {
  constexpr int half = VectorOf<T, Bytes>::width / 2;
  if constexpr (half == 1) {
    return v[0] + v[1];
  } else {
    return [v]<int... i>(std::integer_sequence<int, i...>) {
      auto low = __builtin_shufflevector(v, v, i...);
      auto high = __builtin_shufflevector(v, v, (half + i)...);
      return sum_of_vector<T, Bytes / 2>(low + high);
    }
    (std::make_integer_sequence<int, half>());
  }
}

}  // namespace brine::BRINE_CPU
