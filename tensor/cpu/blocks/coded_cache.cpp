// Keys and values in 8 bits: their codes, and attention of one query of every sequence over them.
//
// A step converts a block's bytes in registers, once for four heads of a group; scales of channels
// are folded into the query, so that a key's score is its mean's and a sum of bytes. Two threads of
// a Zen 3 with AVX2 read 8 GB/s of codes for three heads of 64 numbers, of the 21 that the memory
// gives (a Zen 4 with AVX-512 read 9 of 16 before four rows shared a query's loads). The products
// limit it: each byte has three, and eight bytes two conversions.
#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tensor/base/stored.h"
#include "tensor/cpu/attention/cached_rows.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/kernels/blocks.h"

namespace brine::BRINE_CPU {
namespace {

template <class T>
constexpr T kSignedOffset = T(128 - kKeyByteCentre);  // of a key's byte less 128
constexpr int64_t kChunk = 16;  // blocks of a task: bits depend on it, not on the threads

// Pointers to one block's codes, of a group; S is the type of steps and means.
template <class T, class S>
struct CodedBlock {
  CodedBlock(const CodedCache& c, int64_t bg, int64_t n)
      : block(c.block()), d(c.last_keys.dim(3)), half((d + 1) / 2) {
    const int64_t at = bg * c.values.dim(2) + n;
    high = c.keys.codes.data<uint8_t>() + at * block * half;
    low = c.low_codes.data<uint8_t>() + at * block * half;
    values = c.values.data<uint8_t>() + at * block * d;
    steps = c.keys.steps.data<S>() + at * block;
    value_steps = c.value_steps.data<S>() + at * block;
    mean = c.keys.moments[0].data<S>() + at * 2 * d;
    sigma = c.key_scale.data<T>() + bg * d;
  }

  // The bytes of the keys less 128, [2, block, wide]: the first half of the channels, then the
  // others. Bytes from `half` on stay as they are.
  void join_key_bytes(int8_t* to, int64_t wide) const {
    const int64_t rows = wide == half ? 1 : block, n = block * half / rows;
    for (int64_t row = 0; row < rows; ++row) {
      const uint8_t *h = high + row * n, *l = low + row * n;
      int8_t *first = to + row * wide, *second = first + block * wide;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        first[i] = int8_t((h[i] << 4 | (l[i] & 15)) ^ 128);
        second[i] = int8_t(((h[i] & 240) | l[i] >> 4) ^ 128);
      }
    }
  }
  // Keys are mean + sigma / 16 step (byte - centre).
  void decode_keys(T* to, int8_t* bytes) const {
    join_key_bytes(bytes, half);
    for (int64_t j = 0; j < block; ++j, to += d) {
      const T a = T(steps[j]) / 16;
      for (int64_t begin = 0; begin < d; begin += half) {
        const int8_t* row = bytes + (begin / half) * block * half + j * half - begin;
        const int64_t end = std::min(d, begin + half);
#pragma omp simd
        for (int64_t c = begin; c < end; ++c)
          to[c] = T(mean[c]) + sigma[c] * a * (T(row[c]) + kSignedOffset<T>);
      }
    }
  }
  void decode_values(T* to) const {
    for (int64_t j = 0; j < block; ++j, to += d) {
      const uint8_t* from = values + j * d;
      const T a = T(value_steps[j]);
#pragma omp simd
      for (int64_t c = 0; c < d; ++c) to[c] = a * T(int(from[c]) - kValueByteCentre);
    }
  }

  int64_t block, d, half;
  const uint8_t *high, *low, *values;
  const S *steps, *value_steps, *mean;
  const T* sigma;
};

// Whether block n of a sequence of w tokens is not complete: its rows are no codes.
bool fills(const CodedCache& c, int64_t n, int64_t w) { return (n + 1) * c.block() > w; }

// The keys of block n if it is the first one or fills; returns how many.
template <class T, class S>
int64_t exact_keys(T* to, const CodedCache& c, int64_t bg, int64_t n, int64_t w) {
  const int64_t block = c.block(), d = c.last_keys.dim(3);
  if (fills(c, n, w)) {
    const int64_t rows = w - n * block;
    std::copy_n(c.last_keys.template data<T>() + bg * block * d, rows * d, to);
    return rows;
  }
  const S* first = c.first_keys.template data<S>() + bg * block * d;
  std::transform(first, first + block * d, to, [](S x) { return T(x); });
  return block;
}

// A vector of numbers from bytes, u8 or i8.
template <class T, class Byte>
Vector<T> load_bytes(const Byte* p) {
  [[maybe_unused]] constexpr bool is_unsigned = std::is_unsigned_v<Byte>;
#ifdef __AVX512F__
  if constexpr (sizeof(T) == 4) {  // stored_vectors.h says why
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __mmask16 every = __mmask16(-1);
    return _mm512_maskz_cvtepi32_ps(every, is_unsigned ? _mm512_maskz_cvtepu8_epi32(every, x)
                                                       : _mm512_maskz_cvtepi8_epi32(every, x));
  }
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4) {  // GCC 12 widens its own vectors in two halves
    const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm256_cvtepi32_ps(is_unsigned ? _mm256_cvtepu8_epi32(x) : _mm256_cvtepi8_epi32(x));
  }
#endif
  typename VectorOf<Byte, kWidth<T>>::type x;
  std::memcpy(&x, p, sizeof x);
  using Words = typename VectorOf<int32_t, 4 * kWidth<T>>::type;
  return __builtin_convertvector(__builtin_convertvector(x, Words), Vector<T>);
}

// out[r] = the sum of the lanes of x[r].
template <class T, int R>
void store_sums(T* out, const Vector<T> (&x)[R]) {
#ifdef __AVX2__
  if constexpr (R == 4 && sizeof(T) == 4) {
    __m256 half[4];
    for (int r = 0; r < 4; ++r) {
#ifdef __AVX512F__
      __m256 parts[2];
      std::memcpy(parts, &x[r], sizeof parts);
      half[r] = parts[0] + parts[1];
#else
      half[r] = x[r];
#endif
    }
    const __m256 sums =
        _mm256_hadd_ps(_mm256_hadd_ps(half[0], half[1]), _mm256_hadd_ps(half[2], half[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
    return;
  }
#endif
  for (int r = 0; r < R; ++r) out[r] = sum_of_vector<T, kVectorBytes>(x[r]);
}

// out[h step + j] = base[h] + steps[j] (x_h . row j + offsets[h]) of n rows of bytes:
// x [H, 2 wide], bytes [2, n, wide]; wide fills whole vectors.
template <int H, class T>
void byte_dots(T* out, int64_t step, const T* base, const T* offsets, const T* x,
               const int8_t* bytes, const T* steps, int64_t n, int64_t wide) {
  constexpr int kRows = sizeof(T) == 8 ? 1 : H == 4 && kRegisters == 16 ? 2 : 4;
  auto rows_at = [&]<int R>(int64_t j) {
    Vector<T> sums[H][R] = {};
    for (int part = 0; part < 2; ++part) {
      const T* of = x + part * wide;
      const int8_t* rows = bytes + (part * n + j) * wide;
      for (int64_t c = 0; c < wide; c += kWidth<T>) {
        Vector<T> query[H];
#pragma GCC unroll 4
        for (int h = 0; h < H; ++h) query[h] = load(of + 2 * h * wide + c);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const Vector<T> key = load_bytes<T>(rows + r * wide + c);
#pragma GCC unroll 4
          for (int h = 0; h < H; ++h) sums[h][r] += query[h] * key;
        }
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      T sum[R];
      store_sums<T, R>(sum, sums[h]);
      T* to = out + h * step + j;
      for (int r = 0; r < R; ++r) to[r] = base[h] + steps[j + r] * (sum[r] + offsets[h]);
    }
  };
  int64_t j = 0;
  for (; j + kRows <= n; j += kRows) rows_at.template operator()<kRows>(j);
  for (; kRows > 1 && j < n; ++j) rows_at.template operator()<1>(j);
}

// to [H, d] += the sums over n rows of weights[h step + j] (rows[j] - 128).
template <int H, class T>
void add_byte_rows(T* to, const T* weights, int64_t step, const uint8_t* rows, int64_t n,
                   int64_t d) {
  constexpr T kCentre = T(kValueByteCentre);
  constexpr int W = kWidth<T>, kWide = H == 4 && kRegisters == 16 ? 2 : 4;
  auto add = [&]<int N>(int64_t c) {
    Vector<T> sums[H][N] = {};
    for (int64_t j = 0; j < n; ++j) {
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) {
        const Vector<T> value = load_bytes<T>(rows + j * d + c + i * W) - kCentre;
#pragma GCC unroll 4
        for (int h = 0; h < H; ++h) sums[h][i] += weights[h * step + j] * value;
      }
    }
    for (int h = 0; h < H; ++h) {
      for (int i = 0; i < N; ++i) {
        T* at = to + h * d + c + i * W;
        store(at, load(at) + sums[h][i]);
      }
    }
  };
  int64_t c = 0;
  for (; c + kWide * W <= d; c += kWide * W) add.template operator()<kWide>(c);
  for (; c + W <= d; c += W) add.template operator()<1>(c);
  for (; c < d; ++c) {
    for (int h = 0; h < H; ++h) {
      for (int64_t j = 0; j < n; ++j)
        to[h * d + c] += weights[h * step + j] * (T(rows[j * d + c]) - kCentre);
    }
  }
}

// The softmax of the queries of a group over some of its blocks, before it is divided by its sum.
template <class T>
struct Part {
  T maximum, sum;
};

template <class T, class S>
void attend_part(Part<T>* parts, T* out, const T* q, const CodedCache& c, int64_t bg,
                 const int32_t* blocks, int64_t count, int64_t w, int64_t heads, T scale) {
  const int64_t block = c.block(), d = c.last_keys.dim(3), half = (d + 1) / 2;
  const int64_t max_keys = count * block, wide = whole_vectors<T>(half);
  thread_local std::vector<T> room, scores, scaled, base, offsets, numbers;
  thread_local std::vector<int8_t> bytes;
  room.resize(size_t(block * d));
  scores.resize(size_t(heads * max_keys));
  scaled.assign(size_t(heads * 2 * wide), T(0));
  base.resize(size_t(heads));
  offsets.resize(size_t(heads));
  numbers.resize(size_t(d + block));
  bytes.resize(size_t(2 * block * wide));
  const T* sigma = c.key_scale.template data<T>() + bg * d;
  for (int64_t h = 0; h < heads; ++h) {
    T* x = scaled.data() + 2 * h * wide;
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < d; ++i) {
      sum += x[i < half ? i : wide + i - half] = q[h * d + i] * sigma[i] * (scale / 16);
    }
    offsets[size_t(h)] = kSignedOffset<T> * sum;
  }
  T* to = scores.data();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t n = blocks[i];
    if (n > 0 && !fills(c, n, w)) {
      const CodedBlock<T, S> coded(c, bg, n);
      coded.join_key_bytes(bytes.data(), wide);
      std::transform(coded.mean, coded.mean + d, numbers.data(), [](S x) { return T(x); });
      T* const steps = numbers.data() + d;
      std::transform(coded.steps, coded.steps + block, steps, [](S x) { return T(x); });
      by_heads(heads, [&]<int N>(int64_t h) {
        dots<N>(base.data() + h, 1, q + h * d, numbers.data(), 1, d, scale);
        byte_dots<N>(to + h * max_keys, max_keys, base.data() + h, offsets.data() + h,
                     scaled.data() + 2 * h * wide, bytes.data(), steps, block, wide);
      });
      to += block;
    } else {
      const int64_t rows = exact_keys<T, S>(room.data(), c, bg, n, w);
      by_heads(heads, [&]<int N>(int64_t h) {
        dots<N>(to + h * max_keys, max_keys, q + h * d, room.data(), rows, d, scale);
      });
      to += rows;
    }
  }
  const int64_t keys = to - scores.data();
  for (int64_t h = 0; h < heads; ++h) {
    T* s = scores.data() + h * max_keys;
    T maximum = s[0], sum = 0;
#pragma omp simd reduction(max : maximum)
    for (int64_t j = 0; j < keys; ++j) maximum = s[j] > maximum ? s[j] : maximum;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < keys; ++j) {
      s[j] = math::exp_nonpositive(s[j] - maximum);
      sum += s[j];
    }
    parts[h] = {maximum, sum};
    std::fill_n(out + h * d, d, T(0));
  }
  T* weights = scores.data();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t n = blocks[i];
    if (fills(c, n, w)) {
      const int64_t rows = w - n * block;
      const T* values = c.last_values.template data<T>() + bg * block * d;
      for (int64_t h = 0; h < heads; ++h) {
        weighted_sums<1>(room.data(), weights + h * max_keys, max_keys, values,
                         std::array{KeyRun{0, rows}}, d, 0, d);
        for (int64_t x = 0; x < d; ++x) out[h * d + x] += room[size_t(x)];
      }
      weights += rows;
    } else {
      const CodedBlock<T, S> coded(c, bg, n);
      for (int64_t h = 0; h < heads; ++h) {
        T* of_head = weights + h * max_keys;
#pragma omp simd
        for (int64_t j = 0; j < block; ++j) of_head[j] *= T(coded.value_steps[j]);
      }
      by_heads(heads, [&]<int N>(int64_t h) {
        add_byte_rows<N>(out + h * d, weights + h * max_keys, max_keys, coded.values, block, d);
      });
      weights += block;
    }
  }
}

}  // namespace

void code_cache(Tensor low_codes, Tensor values, Tensor value_steps, KeyCodes keys, Tensor k,
                Tensor v, Tensor key_scale) {
  const int64_t N = values.dim(2), block = values.dim(3), T = k.dim(2), d = k.dim(3), G = k.dim(1);
  const int64_t half = (d + 1) / 2;
  dispatch_stored(k.dtype(), value_steps.dtype(), [&]<class R, class S>() {
    for_pieces(k.dim(0) * G * N * block, 4 * k.numel(), [&](int64_t i) {
      const int64_t n = i / block, bg = n / N, row = (bg * T + n % N * block + i % block) * d;
      const R *key = k.data<R>() + row, *value = v.data<R>() + row;
      const R* sigma = key_scale.data<R>() + bg % G * d;
      const S* mean = keys.moments[0].data<S>() + n * 2 * d;
      const R step = R(keys.steps.data<S>()[i]);
      const uint8_t* high = keys.codes.data<uint8_t>() + i * half;
      uint8_t *low = low_codes.data<uint8_t>() + i * half, *bytes = values.data<uint8_t>() + i * d;
      auto code = [&](int64_t c, int z) {
        return low_code((key[c] - R(mean[c])) / sigma[c], step, z - 8);
      };
      for (int64_t c = 0; c < half; ++c) {
        const int next = half + c < d ? code(half + c, high[c] >> 4) : 8;
        low[c] = uint8_t(code(c, high[c] & 15) | next << 4);
      }
      R largest = 0;
      for (int64_t c = 0; c < d; ++c) largest = std::max(largest, std::fabs(value[c]));
      const S stored = S(largest / R(127));
      value_steps.data<S>()[i] = stored;
      for (int64_t c = 0; c < d; ++c) bytes[c] = value_byte(value[c], R(stored));
    });
  });
}

void decode_cache(Tensor k, Tensor v, CodedCache cache, Tensor lengths) {
  const int64_t S = k.dim(2), d = k.dim(3), G = k.dim(1), block = cache.block();
  const int64_t blocks = (S + block - 1) / block;
  dispatch_stored(k.dtype(), cache.value_steps.dtype(), [&]<class T, class Stored>() {
    for_pieces(k.dim(0) * G * blocks, 4 * k.numel(), [&](int64_t i) {
      const int64_t bg = i / blocks, n = i % blocks, w = lengths.data<int64_t>()[bg / G];
      if (n * block >= w) return;
      const int64_t row = (bg * S + n * block) * d;
      T *keys = k.data<T>() + row, *values = v.data<T>() + row;
      thread_local std::vector<int8_t> bytes;
      bytes.resize(size_t(2 * block * cache.keys.codes.dim(4)));
      if (n == 0 || fills(cache, n, w)) exact_keys<T, Stored>(keys, cache, bg, n, w);
      if (fills(cache, n, w)) {
        std::copy_n(cache.last_values.data<T>() + bg * block * d, (w - n * block) * d, values);
        return;
      }
      const CodedBlock<T, Stored> coded(cache, bg, n);
      if (n > 0) coded.decode_keys(keys, bytes.data());
      coded.decode_values(values);
    });
  });
}

void coded_attention_step(Tensor y, Tensor q, CodedCache cache, BlockMask mask, Tensor width,
                          double scale) {
  const int64_t B = q.dim(0), H = q.dim(1), d = q.dim(3), G = cache.last_keys.dim(1);
  const int64_t heads = H / G, block = cache.block();
  struct Task {
    int64_t bg, first, count;
  };
  std::vector<Task> tasks;
  std::vector<std::vector<int32_t>> lists(size_t(B * G));
  int64_t keys = 0;
  for (int64_t bg = 0; bg < B * G; ++bg) {
    std::vector<int32_t>& list = lists[size_t(bg)];
    if (mask.counts.defined()) {
      const int32_t* entries = mask.entries.data<int32_t>() + bg * mask.capacity();
      for (int32_t e = 0; e < mask.counts.data<int32_t>()[bg]; ++e)
        list.push_back(int32_t(entry_block(entries[e])));
    } else {
      const int64_t w = width.data<int64_t>()[bg / G];
      for (int64_t n = 0; n * block < w; ++n) list.push_back(int32_t(n));
    }
    const int64_t count = int64_t(list.size());
    keys += count * block;
    for (int64_t first = 0; first < count; first += kChunk)
      tasks.push_back({bg, first, std::min(kChunk, count - first)});
  }
  dispatch_stored(y.dtype(), cache.value_steps.dtype(), [&]<class T, class S>() {
    std::vector<Part<T>> parts(tasks.size() * size_t(heads));
    std::vector<T> out(parts.size() * size_t(d));
    for_pieces(int64_t(tasks.size()), keys * heads * d, [&](int64_t i) {
      const Task& task = tasks[size_t(i)];
      attend_part<T, S>(parts.data() + i * heads, out.data() + i * heads * d,
                        q.data<T>() + task.bg * heads * d, cache, task.bg,
                        lists[size_t(task.bg)].data() + task.first, task.count,
                        width.data<int64_t>()[task.bg / G], heads, T(scale));
    });
    std::fill_n(y.data<T>(), y.numel(), T(0));
    for (size_t begin = 0, end = 0; begin < tasks.size(); begin = end) {
      while (end < tasks.size() && tasks[end].bg == tasks[begin].bg) ++end;
      for (int64_t h = 0; h < heads; ++h) {
        auto part = [&](size_t i) { return parts[i * size_t(heads) + size_t(h)]; };
        T maximum = part(begin).maximum, sum = 0;
        for (size_t i = begin; i < end; ++i) maximum = std::max(maximum, part(i).maximum);
        T* to = y.data<T>() + (tasks[begin].bg * heads + h) * d;
        for (size_t i = begin; i < end; ++i) {
          const T factor = math::exp_nonpositive(part(i).maximum - maximum);
          sum += factor * part(i).sum;
          const T* from = out.data() + (int64_t(i) * heads + h) * d;
          for (int64_t c = 0; c < d; ++c) to[c] += factor * from[c];
        }
        for (int64_t c = 0; c < d; ++c) to[c] /= sum;
      }
    }
  });
}

}  // namespace brine::BRINE_CPU
