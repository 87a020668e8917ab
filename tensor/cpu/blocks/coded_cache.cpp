// Keys and values in 8 bits: their codes, and attention of one query of every sequence over them.
//
// A block's keys and values become numbers in L1, once for all heads of a group; so a step is bound
// by this conversion as long as the cache fits the last level, else by reading half of what a cache
// in 16 bits has.
#include <vector>

#include "tensor/base/stored.h"
#include "tensor/cpu/attention/cached_rows.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/softmax_row.h"
#include "tensor/kernels/blocks.h"

namespace brine::BRINE_CPU {
namespace {

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

  // The block's keys as numbers [block, d]; `room` has 2 d.
  void decode_keys(T* to, T* room) const {
    T *scale = room, *centre = room + d;
    for (int64_t c = 0; c < d; ++c) scale[c] = sigma[c] / 16, centre[c] = T(mean[c]);
    const int64_t rest = d - half;
    for (int64_t j = 0; j < block; ++j, to += d) {
      const uint8_t *h = high + j * half, *l = low + j * half;
      const T a = T(steps[j]);
#pragma omp simd
      for (int64_t c = 0; c < half; ++c) {
        const int byte = (h[c] & 15) << 4 | (l[c] & 15);
        to[c] = centre[c] + scale[c] * a * (T(byte) - T(kKeyByteCentre));
      }
#pragma omp simd
      for (int64_t c = 0; c < rest; ++c) {
        const int byte = (h[c] & 240) | l[c] >> 4;
        to[half + c] = centre[half + c] + scale[half + c] * a * (T(byte) - T(kKeyByteCentre));
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

// The keys or values of block n of a sequence of w tokens; returns how many.
template <class T, class S>
int64_t rows_of(const T*& keys, const T*& values, std::vector<T>& room, const CodedCache& c,
                int64_t bg, int64_t n, int64_t w) {
  const int64_t block = c.block(), d = c.last_keys.dim(3);
  if ((n + 1) * block > w) {  // the one that fills
    keys = c.last_keys.data<T>() + bg * block * d;
    values = c.last_values.data<T>() + bg * block * d;
    return w - n * block;
  }
  room.resize(size_t((block + 2) * d));
  const CodedBlock<T, S> coded(c, bg, n);
  if (keys && n == 0) {
    const S* first = c.first_keys.data<S>() + bg * block * d;
    for (int64_t i = 0; i < block * d; ++i) room[size_t(i)] = T(first[i]);
    keys = room.data();
  } else if (keys) {
    coded.decode_keys(room.data(), room.data() + block * d);
    keys = room.data();
  } else {
    coded.decode_values(room.data());
    values = room.data();
  }
  return block;
}

// The softmax of the queries of a group over some of its blocks, before it is divided by its sum.
template <class T>
struct Part {
  T maximum, sum;
};

template <class T, class S>
void attend_part(Part<T>* parts, T* out, const T* q, const CodedCache& c, int64_t bg,
                 const int32_t* blocks, int64_t count, int64_t w, int64_t heads, T scale) {
  const int64_t d = c.last_keys.dim(3), most = count * c.block();
  thread_local std::vector<T> room, scores, sums;
  scores.resize(size_t(heads * most));
  sums.resize(size_t(d));
  int64_t keys = 0;
  for (int64_t i = 0; i < count; ++i) {
    const T *k = q, *v = nullptr;  // k is wanted
    const int64_t n = rows_of<T, S>(k, v, room, c, bg, blocks[i], w);
    for (int64_t h = 0; h < heads; ++h)
      dots(scores.data() + h * most + keys, q + h * d, k, n, d, scale);
    keys += n;
  }
  for (int64_t h = 0; h < heads; ++h) {
    T* s = scores.data() + h * most;
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
  keys = 0;
  for (int64_t i = 0; i < count; ++i) {
    const T *k = nullptr, *v = nullptr;
    const int64_t n = rows_of<T, S>(k, v, room, c, bg, blocks[i], w);
    for (int64_t h = 0; h < heads; ++h) {
      weighted_sum(sums.data(), scores.data() + h * most + keys, v, std::array{KeyRun{0, n}}, d);
      T* to = out + h * d;
#pragma omp simd
      for (int64_t x = 0; x < d; ++x) to[x] += sums[size_t(x)];
    }
    keys += n;
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
      thread_local std::vector<T> room;
      T* to[] = {k.data<T>() + (bg * S + n * block) * d, v.data<T>() + (bg * S + n * block) * d};
      for (int side : {0, 1}) {
        const T *keys = side ? nullptr : to[0], *values = nullptr;
        const int64_t rows = rows_of<T, Stored>(keys, values, room, cache, bg, n, w);
        std::copy_n(side ? values : keys, rows * d, to[side]);
      }
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
