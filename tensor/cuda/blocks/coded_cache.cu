// Keys and values in 8 bits: their codes, and a step over the rows that they stand for.
#include "tensor/base/stored.h"
#include "tensor/cuda/core/packs.cuh"
#include "tensor/kernels/attention.h"
#include "tensor/kernels/blocks.h"

namespace brine::cuda {
namespace {

constexpr int kRowThreads = 128;

// A thread a key and its value. Done once for every block (not measured).
template <class T, class S>
__global__ void code_kernel(uint8_t* low, uint8_t* values, S* value_steps, const uint8_t* high,
                            const S* steps, const S* moments, const T* k, const T* v,
                            const T* key_scale, int64_t rows, int64_t N, int64_t tokens, int64_t G,
                            int64_t block, int d) {
  const int64_t i = int64_t(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i >= rows) return;
  const int half = (d + 1) / 2;
  const int64_t n = quotient(i, block), bg = quotient(n, N);
  const int64_t row = (bg * tokens + (n - bg * N) * block + i - n * block) * d;
  const T *sigma = key_scale + bg % G * d, step = T(steps[i]);
  const S* mean = moments + n * 2 * d;
  auto code = [&](int c, int z) {
    return low_code((k[row + c] - T(mean[c])) / sigma[c], step, z - 8);
  };
  for (int c = 0; c < half; ++c) {
    const int pair = high[i * half + c], next = half + c < d ? code(half + c, pair >> 4) : 8;
    low[i * half + c] = uint8_t(code(c, pair & 15) | next << 4);
  }
  T largest = 0;
  for (int c = 0; c < d; ++c)
    largest = std::fabs(v[row + c]) > largest ? std::fabs(v[row + c]) : largest;
  const S stored = S(largest / T(127));
  value_steps[i] = stored;
  for (int c = 0; c < d; ++c) values[i * d + c] = value_byte(v[row + c], T(stored));
}

// The codes as a kernel reads them.
template <class T, class S>
struct CodedRows {
  const uint8_t *high, *low, *values;
  const S *steps, *value_steps, *moments, *first_keys;
  const T *key_scale, *last_keys, *last_values;
  const int64_t* lengths;
  int64_t N, G, block;
  int d;
};

// A thread a number of the keys and of the values. Bound by what it writes (not measured).
template <class T, class S>
__global__ void decode_kernel(T* k, T* v, const CodedRows<T, S> in, int64_t rows, int64_t count) {
  const int64_t i = int64_t(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t row = quotient(i, in.d), bg = quotient(row, rows), t = row - bg * rows;
  const int c = int(i - row * in.d), half = (in.d + 1) / 2;
  const int64_t w = in.lengths[quotient(bg, in.G)], n = quotient(t, in.block), j = t - n * in.block;
  if (t >= w) return;
  if ((n + 1) * in.block > w) {  // the block that fills
    const int64_t at = (bg * in.block + j) * in.d + c;
    k[i] = in.last_keys[at];
    v[i] = in.last_values[at];
    return;
  }
  const int64_t at = (bg * in.N + n) * in.block + j;
  const int shift = c < half ? 0 : 4, index = c < half ? c : c - half;
  const int byte =
      (in.high[at * half + index] >> shift & 15) << 4 | (in.low[at * half + index] >> shift & 15);
  const T mean = T(in.moments[(bg * in.N + n) * 2 * in.d + c]),
          scale = in.key_scale[bg * in.d + c] / 16;
  k[i] = n == 0 ? T(in.first_keys[(bg * in.block + j) * in.d + c])
                : mean + scale * T(in.steps[at]) * (T(byte) - T(kKeyByteCentre));
  v[i] = T(in.value_steps[at]) * T(int(in.values[at * in.d + c]) - kValueByteCentre);
}

}  // namespace

void code_cache(Tensor low_codes, Tensor values, Tensor value_steps, KeyCodes keys, Tensor k,
                Tensor v, Tensor key_scale) {
  const int64_t rows = value_steps.numel(), d = k.dim(3);
  dispatch_stored(k.dtype(), value_steps.dtype(), [&]<class T, class S>() {
    launch("code_cache", code_kernel<T, S>, dim3(blocks_for(rows, kRowThreads)), dim3(kRowThreads),
           0, low_codes.data<uint8_t>(), values.data<uint8_t>(), value_steps.data<S>(),
           keys.codes.data<uint8_t>(), keys.steps.data<S>(), keys.moments[0].data<S>(), k.data<T>(),
           v.data<T>(), key_scale.data<T>(), rows, values.dim(2), k.dim(2), k.dim(1), values.dim(3),
           int(d));
  });
}

void decode_cache(Tensor k, Tensor v, CodedCache cache, Tensor lengths) {
  const OnDevice on_lengths(lengths, k.device());
  dispatch_stored(k.dtype(), cache.value_steps.dtype(), [&]<class T, class S>() {
    const CodedRows<T, S> in{.high = cache.keys.codes.data<uint8_t>(),
                             .low = cache.low_codes.data<uint8_t>(),
                             .values = cache.values.data<uint8_t>(),
                             .steps = cache.keys.steps.data<S>(),
                             .value_steps = cache.value_steps.data<S>(),
                             .moments = cache.keys.moments[0].data<S>(),
                             .first_keys = cache.first_keys.data<S>(),
                             .key_scale = cache.key_scale.data<T>(),
                             .last_keys = cache.last_keys.data<T>(),
                             .last_values = cache.last_values.data<T>(),
                             .lengths = on_lengths.data<int64_t>(),
                             .N = cache.values.dim(2),
                             .G = k.dim(1),
                             .block = cache.block(),
                             .d = int(k.dim(3))};
    launch("decode_cache", decode_kernel<T, S>, dim3(blocks_for(k.numel(), kRowThreads)),
           dim3(kRowThreads), 0, k.data<T>(), v.data<T>(), in, k.dim(2), k.numel());
  });
}

// Every row becomes numbers first: correct, not fast.
void coded_attention_step(Tensor y, Tensor q, CodedCache cache, BlockMask mask, Tensor width,
                          double scale) {
  int64_t longest = 1;
  for (int64_t b = 0; b < width.numel(); ++b) longest = std::max(longest, width.data<int64_t>()[b]);
  const Tensor k = Tensor::empty({q.dim(0), cache.last_keys.dim(1), longest, q.dim(3)}, q.dtype(),
                                 q.device()),
               v = Tensor::like(k);
  decode_cache(k, v, cache, width);
  if (mask.counts.defined()) return block_attention_step(y, q, k, v, mask, width, scale);
  cached_attention(y, q, k, v, Tensor::zeros(width.shape(), Dtype::i64), width, scale);
}

}  // namespace brine::cuda
