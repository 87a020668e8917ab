// Code shared by both directions of tiled attention.
#pragma once

#include "tensor/cuda/core/tile_layout.cuh"

namespace brine::cuda {

// Rows of one head, `step` apart.
template <class T>
struct HeadRows {
  T* data;
  int64_t step;
  __device__ T* row(int64_t t) const { return data + t * step; }
};

// Whether rows of d numbers at each of the addresses can be read by packs.
template <class T, class... P>
bool packed_rows(int64_t d, P*... data) {
  return d % kWide<T> == 0 && ((reinterpret_cast<uintptr_t>(data) % 16 == 0) && ...);
}

// Tiles on CUDA cores. Rows of a product that a thread owns: with more, wide heads in f64, and the
// sums of gradients, would not fit in registers.
template <class T>
struct Plain {
  template <int D>
  using Tile = PlainTile<T, D, sizeof(T) == 4 ? 8 : 4>;
};
template <class T>
struct BackwardPlain {
  template <int D>
  using Tile = PlainTile<T, D, sizeof(T) == 4 && D <= 64 ? 8 : 4>;
};

// Calls f<Layout>() with the layout of the smallest tiles for d, which returns whether the device
// has enough shared memory; if not, with that of tiles half as high. False if neither fits or d is
// too large. Plain<D> is the layout on CUDA cores. `given` is the type in which the factors are
// stored.
template <class T, template <int> class Plain, class F>
bool dispatch_layout(int64_t d, Dtype given, F&& f) {
  auto of_size = [&]<int D>() {
    if constexpr (sizeof(T) == 4) {
      const bool fits = tensor_cores(given) ? f.template operator()<TensorTile<D>>()
                                            : f.template operator()<Plain<D>>();
      if constexpr (D > 32) return fits || f.template operator()<PlainTile<T, D, 4, 32>>();
      return fits;
    } else {
      return f.template operator()<Plain<D>>();
    }
  };
  if (d <= 32) return of_size.template operator()<32>();
  if (d <= 64) return of_size.template operator()<64>();
  return d <= 128 && of_size.template operator()<128>();
}

// Sizes and visible keys of a call.
struct AttentionSizes {
  int64_t H, T, d, tiles;
  int64_t group;  // heads of queries that share keys and values
  RowWidths widths;
  bool packed;

  // Where the keys of head bh begin, in k and in v.
  __device__ int64_t keys_of(int64_t bh) const { return bh / group * T * d; }
};

}  // namespace brine::cuda
