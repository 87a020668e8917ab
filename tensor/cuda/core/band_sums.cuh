// Sums over the rows of matrices, in f64: bands of rows first, as many as occupy a device, then the
// bands. The cut depends on the sizes alone, so bits repeat.
#pragma once

#include "tensor/cuda/core/packs.cuh"

namespace brine::cuda {

// How [matrices, R, C] is cut. A block has `across` columns, a power of two, of a band of rows, and
// as many threads for each column as fit.
struct Bands {
  static constexpr int64_t kBlocks = 528;  // that occupy a device

  int64_t matrices, R, C;
  int across = 1;
  int64_t wide, rows, bands;  // blocks next to each other, rows of a band, bands

  Bands(int64_t matrices, int64_t R, int64_t C) : matrices(matrices), R(R), C(C) {
    while (across < kWarp && across < C) across *= 2;
    wide = (C + across - 1) / across;
    // Eight rows per thread before a column is split.
    const int64_t wanted = std::max<int64_t>(1, kBlocks / std::max<int64_t>(1, matrices * wide));
    rows = std::max<int64_t>(8 * kThreads / across, (R + wanted - 1) / wanted);
    bands = std::max<int64_t>(1, (R + rows - 1) / rows);
  }
  dim3 grid() const { return dim3(blocks_for(matrices * wide, 1), unsigned(bands)); }
};

// put(matrix, band, c, sums) for every column of every band, where terms(sums, matrix, r, c) adds
// the kN numbers of an element.
template <int kN, class Terms, class Put>
__global__ void __launch_bounds__(kThreads) band_sums_kernel(Terms terms, Put put, Bands at) {
  __shared__ double parts[kN][kThreads];
  const int thread = int(threadIdx.x), column = thread % at.across, down = kThreads / at.across;
  const int64_t matrix = quotient(blockIdx.x, at.wide), band = blockIdx.y;
  const int64_t c = (blockIdx.x - matrix * at.wide) * at.across + column;
  const int64_t begin = band * at.rows, end = begin + at.rows < at.R ? begin + at.rows : at.R;
  double sums[kN] = {};
  if (c < at.C) {
#pragma unroll 4
    for (int64_t r = begin + thread / at.across; r < end; r += down) terms(sums, matrix, r, c);
  }
  for (int n = 0; n < kN; ++n) parts[n][thread] = sums[n];
  for (int half = kThreads / 2; half >= at.across; half /= 2) {
    __syncthreads();
    if (thread >= half) continue;
    for (int n = 0; n < kN; ++n) parts[n][thread] += parts[n][thread + half];
  }
  if (thread >= at.across || c >= at.C) return;
  for (int n = 0; n < kN; ++n) sums[n] = parts[n][thread];
  put(matrix, band, c, sums);
}

// parts [matrices, bands, kN, C].
template <int kN>
struct PutParts {
  double* parts;
  int64_t bands, C;
  __device__ void operator()(int64_t matrix, int64_t band, int64_t c, const double (&s)[kN]) const {
    double* to = parts + (matrix * bands + band) * kN * C + c;
    for (int n = 0; n < kN; ++n) to[n * C] = s[n];
  }
};
template <int kN>
struct PartTerms {
  const double* parts;
  int64_t bands, C;
  __device__ void operator()(double (&s)[kN], int64_t matrix, int64_t band, int64_t c) const {
    const double* from = parts + (matrix * bands + band) * kN * C + c;
    for (int n = 0; n < kN; ++n) s[n] += from[n * C];
  }
};

// put(matrix, 0, c, sums) with the sums of terms() over all rows of [matrices, R, C], in one launch
// if these are few, else in two.
template <int kN, class Terms, class Put>
void sum_bands(const char* name, int64_t matrices, int64_t R, int64_t C, Terms terms, Put put,
               Device device) {
  if (matrices * C == 0) return;
  const Bands at(matrices, R, C);
  const dim3 block(kThreads);
  if (at.bands == 1) {
    return launch(name, band_sums_kernel<kN, Terms, Put>, at.grid(), block, 0, terms, put, at);
  }
  const Tensor kept = Tensor::empty({matrices, at.bands, kN, C}, Dtype::f64, device);
  double* parts = kept.data<double>();
  launch(name, band_sums_kernel<kN, Terms, PutParts<kN>>, at.grid(), block, 0, terms,
         PutParts<kN>{parts, at.bands, C}, at);
  Bands all(matrices, at.bands, C);
  all.rows = at.bands;
  all.bands = 1;
  launch(name, band_sums_kernel<kN, PartTerms<kN>, Put>, all.grid(), block, 0,
         PartTerms<kN>{parts, at.bands, C}, put, all);
}

}  // namespace brine::cuda
