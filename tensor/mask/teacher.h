// The teacher's attention as an argument of losses and metrics.
#pragma once

#include "tensor/mask/csr.h"

namespace brine {

// Either the map, or q and k: softmax(q k^T / sqrt(d)) over the visible keys, recomputed by tiles
// of rows, so that no T x T memory is needed. Never differentiated.
struct TeacherAttention {
  Tensor map;   // [B, H, T, T], or undefined
  Tensor q, k;  // [B, H, T, d], when map is undefined; may be rounded to 16 bits
};

// The teacher's data that L_approx needs, at one K: a lossless summary.
struct TeacherSummary {
  Tensor tau;       // [B, H, T, K] mass in each column, 0 where a column owns no key
  Tensor t_log_t;   // [B, H, T] sum of t log t over the row
  Tensor t_square;  // [B, H, T] sum of t^2 over the row
};

// Sums over a 16-bit teacher are f32.
TeacherSummary summarize_teacher(const TeacherAttention& teacher, int64_t K,
                                 const Visibility& visible);

// Throws unless the teacher has the shape [B, H, T, .] of `like` [B, H, T, .] and its type; its q
// and k may have 16 bits when that is f32.
void check_teacher(const char* op, const TeacherAttention& teacher, const Tensor& like);

}  // namespace brine
