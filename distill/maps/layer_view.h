// What pictures of a layer's attention are made from: the tensors of one sequence.
#pragma once

#include <vector>

#include "nn/attention/observer.h"
#include "tensor/mask/teacher.h"

namespace brine::distill {

// One sequence of T tokens without padding, on the CPU, f32; what the method does not have is
// undefined.
struct LayerView {
  TeacherAttention teacher = {};  // [1, H, T, .]
  bool causal = true;
  Tensor estimate = {};       // [1, H, T, K], rows sum to 1 over the columns that have keys
  FlatCsr mask = {};          // columns undefined: the method attends to all keys
  Tensor probabilities = {};  // [entries] of the mask, or [1, H, T, T]

  int64_t heads() const;
  int64_t tokens() const;
  int64_t columns() const { return estimate.defined() ? estimate.dim(3) : 0; }  // K; 0: none
  int64_t keys_of(int64_t t) const { return causal ? t + 1 : tokens(); }        // that row t sees
  bool has_mask() const { return mask.columns.defined() && probabilities.defined(); }
};

// The layer of a running model, with the teacher's attention of the same layer.
LayerView view_of(const nn::Tap& tap, const TeacherAttention& teacher, bool causal);

// The teacher's attention of the rows [first, first + count) of a head, f32 [count, T]; 0 for keys
// that a row does not see. Never a T x T tensor if `count` is small.
Tensor teacher_tile(const LayerView& view, int64_t head, int64_t first, int64_t count);

// Neighbouring keys with the same mass.
struct KeyMass {
  int64_t first = 0, behind = 0;
  float mass = 0;  // of each key
};
// The estimate of row t of a head, widened to keys (docs/method.md section 4.1) and normalised: the
// masses of all keys sum to 1. `out` is replaced.
void widen_row(const LayerView& view, int64_t head, int64_t t, std::vector<KeyMass>& out);

struct KeptKey {
  int64_t key = 0;
  float mass = 0;  // of the student's attention
};
// The keys that row t of a head keeps, ascending; `out` is replaced.
void kept_keys(const LayerView& view, int64_t head, int64_t t, std::vector<KeptKey>& out);

}  // namespace brine::distill
