// Argument checks that ops share: rows of one new token, positions of sequences, queries and keys
// whose sums over columns are multiplied, images.
#pragma once

#include "tensor/tensor.h"
#include "tensor/types.h"

namespace brine {

// Throws unless `at` is i64 [B] with values in [0, limit].
void check_positions(const char* op, const char* name, const Tensor& at, int64_t B, int64_t limit);
// Throws unless row is [B, H, 1, columns] with B and H of `like`, and of its type, or f32 if that
// has 16 bits.
void check_row(const char* op, const Tensor& row, const Tensor& like, int64_t columns);
// Throws unless q is [B, H, T, m], k [B, G, T, m] of its type, G divides H, the grid's step is
// positive and its units are not negative.
void check_columns(const char* op, const char* names, const Tensor& q, const Tensor& k,
                   const Visibility& visible, const ColumnGrid& grid);
// Throws unless scores is [B, H, R, K] and gain [H] for q [B, H, T, m], R = ceil(T / step).
void check_scores(const char* op, const Tensor& scores, const Tensor& gain, const Tensor& q,
                  int64_t step);
// Throws unless borders is f64 [B, G, K + 1, border_columns(m)] for q [B, H, 1, m] and k
// [B, G, R, m], at and width have at <= width, and k has the rows of width keys: one for each, or
// with `units` > 0 one for each unit of the sums.
void check_borders(const char* op, const Tensor& borders, const Tensor& at, const Tensor& q,
                   const Tensor& k, int64_t K, const Tensor& width, int64_t units = 0);
// Throws unless x is an f32 or f64 image [B, tokens, columns, channels].
void check_image(const char* op, const Tensor& x);
// Throws unless lengths is undefined or contiguous i64 [B].
void check_lengths(const char* op, const Tensor& lengths, int64_t B);

}  // namespace brine
