// The teacher's mass in blocks of keys, for the rows of tiles.
#include <limits>
#include <vector>

#include "tensor/cpu/attention/flash_tile.h"
#include "tensor/cpu/blocks/block_tiles.h"
#include "tensor/kernels/teacher.h"

namespace brine::BRINE_CPU {
namespace {

// s [n, lanes] scores of the first n keys -> the masses of blocks, sums [blocks, lanes]: key j is
// seen by the lanes from j - first on.
template <class T>
void masses(T* s, int64_t n, int64_t lanes, int64_t rows, int64_t first, T scale, int64_t keys,
            int64_t blocks, T* sums) {
  T maximum[kMostTileRows], norm[kMostTileRows];
  std::fill_n(maximum, lanes, std::numeric_limits<T>::lowest());
  std::fill_n(norm, lanes, T(0));
  for (int64_t j = first + 1; j < n; ++j) {
    std::fill_n(s + j * lanes, std::min(j - first, rows), -std::numeric_limits<T>::infinity());
  }
  for (int64_t j = 0; j < n; ++j) {
    const T* row = s + j * lanes;
#pragma omp simd
    for (int64_t l = 0; l < lanes; ++l) maximum[l] = row[l] > maximum[l] ? row[l] : maximum[l];
  }
  for (int64_t j = 0; j < n; ++j) {
    T* row = s + j * lanes;
    T* sum = sums + j / keys * lanes;
    if (j % keys == 0 && j / keys < blocks) std::fill_n(sum, lanes, T(0));
#pragma omp simd
    for (int64_t l = 0; l < lanes; ++l) {
      row[l] = math::exp_nonpositive((row[l] - maximum[l]) * scale);
      norm[l] += row[l];
    }
    if (j / keys >= blocks) continue;
#pragma omp simd
    for (int64_t l = 0; l < lanes; ++l) sum[l] += row[l];
  }
  for (int64_t l = 0; l < lanes; ++l) norm[l] = 1 / norm[l];
  for (int64_t c = 0; c < blocks; ++c) {
#pragma omp simd
    for (int64_t l = 0; l < lanes; ++l) sums[c * lanes + l] *= norm[l];
  }
}

}  // namespace

void block_mass(Tensor mass, Tensor q, Tensor k, Tensor tiles, BlockConfig config,
                Visibility visible, double scale) {
  const int64_t B = q.dim(0), H = q.dim(1), rows = q.dim(2), d = q.dim(3), R = config.tile;
  const int64_t G = k.dim(1), T = k.dim(2), C = mass.dim(3), count = (rows + R - 1) / R;
  dispatch_float(mass.dtype(), [&]<class F>() {
    for_pieces(B * H * count, B * H * rows * T * d, [&](int64_t i) {
      const int64_t bh = i % (B * H), n = count - 1 - i / (B * H), b = bh / H;
      const int64_t first = (tiles.defined() ? tiles.data<int32_t>()[n] : n) * R;
      const int64_t end =
          visible.lengths.defined() ? visible.lengths.data<int64_t>()[b] : first + R;
      const int64_t in = std::min(R, rows - n * R), valid = std::clamp<int64_t>(end - first, 0, in);
      const int64_t block = first / config.block, z = config.level(block), blocks = block >> z;
      F* to = mass.data<F>() + (bh * rows + n * R) * C;
      std::fill_n(to, in * C, F(0));
      if (valid == 0 || blocks == 0) return;
      const int64_t lanes = whole_vectors<F>(valid), keys = first + valid;
      thread_local Scratch<F> scratch;
      scratch.reserve((d + keys + blocks) * lanes, 3);
      F *turned = scratch.take(d * lanes), *s = scratch.take(keys * lanes);
      F* sums = scratch.take(blocks * lanes);
      turn<true>(Lanes<F>{turned, lanes}, Lanes<const F>{q.data<F>() + (bh * rows + n * R) * d, d},
                 valid, d, [](int64_t) { return F(1); });
      tile_product(keys, lanes, d, Broadcast<F, false>{k.data<F>() + (bh / (H / G)) * T * d, d},
                   Lanes<const F>{turned, lanes}, Lanes<F>{s, lanes});
      masses<F>(s, keys, lanes, valid, first, F(scale), config.block << z, blocks, sums);
      for (int64_t c = 0; c < blocks; ++c) {
        for (int64_t r = 0; r < valid; ++r) to[r * C + c] = sums[c * lanes + r];
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
