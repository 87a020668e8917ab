// Sums over the chunks of a sequence, in order and in f64: the middle part of every chunked scan.
// In two levels where a thread for each column would be few: spans of chunks, then the spans.
#pragma once

#include "tensor/cuda/core/packs.cuh"

namespace brine::cuda {

constexpr int kAhead = 8;                  // chunks that a thread loads before it sums them
constexpr int64_t kSpan = 32;              // chunks that it sums, where there are spans
constexpr int64_t kManyColumns = 1 << 17;  // that occupy a device without spans

// How parts [heads, chunks, size] are cut; by the sizes alone. With `backwards` chunks are counted
// from the last one.
struct Spans {
  int64_t heads, chunks, size, length, spans;
  bool backwards;

  Spans(int64_t heads, int64_t chunks, int64_t size, bool backwards = false)
      : heads(heads), chunks(chunks), size(size), length(chunks), spans(1), backwards(backwards) {
    if (chunks <= 2 * kSpan || heads * size >= kManyColumns) return;
    length = kSpan;
    spans = (chunks + kSpan - 1) / kSpan;
  }
  __host__ __device__ int64_t threads() const { return heads * spans * size; }
};

// The chunks of the calling thread, of one column.
template <class T>
struct ThreadChunks {
  T* at;  // the first
  int64_t step, count;

  __device__ ThreadChunks(T* parts, const Spans& cut) {
    const int64_t above = quotient(piece(), cut.size), column = piece() - above * cut.size;
    const int64_t head = quotient(above, cut.spans);
    const int64_t first = (above - head * cut.spans) * cut.length;
    const int64_t chunk = cut.backwards ? cut.chunks - 1 - first : first;
    at = parts + (head * cut.chunks + chunk) * cut.size + column;
    step = cut.backwards ? -cut.size : cut.size;
    count = cut.chunks - first < cut.length ? cut.chunks - first : cut.length;
  }

  // f(chunk, its value) in order; loads are issued ahead of what depends on them.
  template <class F>
  __device__ void each(F&& f) const {
    T* here = at;
    for (int64_t c = 0; c < count; c += kAhead, here += kAhead * step) {
      std::remove_const_t<T> part[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) part[j] = c + j < count ? here[j * step] : T(0);
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (c + j < count) f(here + j * step, part[j]);
      }
    }
  }
};

// sums [heads, spans, size] of each span.
template <class Out, class T>
__global__ void span_sums_kernel(Out* sums, const T* parts, Spans cut) {
  if (piece() >= cut.threads()) return;
  double sum = 0;
  ThreadChunks<const T>(parts, cut).each([&](const T*, T part) { sum += double(part); });
  sums[piece()] = Out(sum);
}

// Each chunk's sum becomes that of the chunks before it; starts [heads, spans, size]: the sums
// before each span, null if there is one.
template <class T>
__global__ void sums_before_kernel(T* parts, const double* starts, Spans cut) {
  if (piece() >= cut.threads()) return;
  double sum = starts ? starts[piece()] : 0;
  ThreadChunks<T>(parts, cut).each([&](T* chunk, T part) {
    *chunk = T(sum);
    sum += double(part);
  });
}

// parts [heads, chunks, size]: each chunk's sum becomes that of the chunks before it, or with
// `backwards` of those after it.
template <class T>
void sums_before(const char* name, T* parts, int64_t heads, int64_t chunks, int64_t size,
                 bool backwards, Device device) {
  const Spans cut(heads, chunks, size, backwards);
  if (cut.spans == 1) {
    return launch_each(name, cut.threads(), sums_before_kernel<T>, parts, nullptr, cut);
  }
  const Tensor starts = Tensor::empty({cut.threads()}, Dtype::f64, device);
  double* at = starts.data<double>();
  launch_each(name, cut.threads(), span_sums_kernel<double, T>, at, parts, cut);
  // Spans are in the order of the sums already.
  const Spans whole(heads, cut.spans, size);
  launch_each(name, whole.threads(), sums_before_kernel<double>, at, nullptr, whole);
  launch_each(name, cut.threads(), sums_before_kernel<T>, parts, at, cut);
}

// total [heads, size] = the sum over all chunks.
template <class Out, class T>
void sum_chunks(const char* name, Out* total, const T* parts, int64_t heads, int64_t chunks,
                int64_t size, Device device) {
  const Spans cut(heads, chunks, size);
  if (cut.spans == 1) {
    return launch_each(name, cut.threads(), span_sums_kernel<Out, T>, total, parts, cut);
  }
  const Tensor sums = Tensor::empty({cut.threads()}, Dtype::f64, device);
  launch_each(name, cut.threads(), span_sums_kernel<double, T>, sums.data<double>(), parts, cut);
  const Spans whole(heads, cut.spans, size);
  launch_each(name, whole.threads(), span_sums_kernel<Out, double>, total, sums.data<double>(),
              whole);
}

}  // namespace brine::cuda
