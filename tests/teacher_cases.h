// Sizes and maps that the tests of a teacher's summary and of the losses against it share.
#pragma once

#include "tensor/mask/teacher.h"
#include "tests/sparse_oracle.h"

namespace brine::test {

inline Tensor teacher_map(const Tensor& q, const Tensor& k, const MaskCase& m) {
  std::vector<double> p = naive_attention(q.to_vector(), k.to_vector(), {}, q.dim(3), m);
  return Tensor::from(p, {m.B, m.H, m.T, m.T}).to(q.dtype());
}

// All rows valid, lengths 0, w < K, K > T.
inline std::vector<MaskCase> loss_cases() {
  return {
      {.B = 1, .H = 2, .T = 9, .K = 4},
      {.B = 2, .H = 3, .T = 37, .K = 8, .lengths = {37, 30}},
      {.B = 3, .H = 1, .T = 21, .K = 64, .lengths = {0, 21, 1}},
      {.B = 2, .H = 2, .T = 24, .K = 5, .causal = false, .lengths = {24, 17}},
      {.B = 1, .H = 1, .T = 2, .K = 8},
      {.B = 2, .H = 1, .T = 130, .K = 33, .lengths = {65, 130}},
  };
}

}  // namespace brine::test
