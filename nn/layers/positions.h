// The position information of a model: a learned table or rotation.
#pragma once

#include "nn/layers/layers.h"

namespace brine::nn {

// The positions first[b] + t of tokens, counted from `offset` on: i32 [B, T]. `first` is i64 [B],
// undefined = 0.
Tensor position_ids(int64_t B, int64_t T, const Tensor& first, int64_t offset = 0);

// Learned ones have a table, rotary ones frequencies.
struct Positions {
  const Embedding* table = nullptr;  // position t is row t + offset
  int64_t offset = 0;
  Tensor frequencies = {};  // f64 [n] of the pairs of a head's features (autograd/ops.h)

  bool rotary() const { return frequencies.defined(); }
  // Embeddings x [B, T, C] with the learned positions added; x without a table.
  Tensor added(const Tensor& x, const Tensor& first) const;
  // The same with the table's rows, i32 [B, T]: for positions that padding interrupts.
  Tensor added_at(const Tensor& x, const Tensor& rows) const;
  // Queries or keys [B, H, T, d] rotated by their positions; themselves without frequencies.
  Tensor rotated(const Tensor& heads, const Tensor& first) const;
  // The positions that rotate back: reversed().rotated(rotated(x, first), first) is x, rounded.
  Positions reversed() const;
};

}  // namespace brine::nn
