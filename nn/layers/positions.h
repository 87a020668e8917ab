// The position information of a model: none, a learned table, or rotation.
#pragma once

#include "nn/layers/layers.h"

namespace brine::nn {

// The positions first[b] + t of tokens, counted from `offset` on: i32 [B, T]. `first` is i64 [B],
// undefined = 0.
Tensor position_ids(int64_t B, int64_t T, const Tensor& first, int64_t offset = 0);

struct Positions {
  enum class Kind { none, learned, rotary };

  Kind kind = Kind::none;
  const Embedding* table = nullptr;  // learned: position t is row t + offset
  int64_t offset = 0;
  Tensor frequencies = {};  // rotary: f64 [n] of the pairs of a head's features (autograd/ops.h)

  static Positions learned(const Embedding& table, int64_t offset = 0);
  // Of the first `features` of a head; scaled frequencies may be written into the result.
  static Positions rotary(int64_t features, double theta);

  // Embeddings x [B, T, C] with the learned positions added; x under the other kinds.
  Tensor added(const Tensor& x, const Tensor& first) const;
  // The same with the table's rows, i32 [B, T]: for positions that padding interrupts.
  Tensor added_at(const Tensor& x, const Tensor& rows) const;
  // Queries or keys [B, H, T, d] turned by their positions; themselves under the other kinds.
  Tensor turned(const Tensor& heads, const Tensor& first) const;
  // The positions that turn back: reversed().turned(turned(x, first), first) is x, rounded.
  Positions reversed() const;
};

}  // namespace brine::nn
