// Attention over lists of key blocks on inputs in bf16, multiplied as pairs (flash_pairs.h).
#pragma once

#include "tensor/cpu/attention/flash_pairs.h"
#include "tensor/kernels/kernel.h"
#include "tensor/mask/blocks.h"

namespace brine::BRINE_CPU {

// Neighbouring keys are pairs: a block has whole ones.
inline bool takes_block_pairs(int64_t d, const BlockMask& mask) {
  return takes_pairs(d) && mask.block % 2 == 0;
}

void block_attention_pairs(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v, BlockMask mask,
                           Visibility visible, double scale);
void block_attention_pairs_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q, Tensor k,
                                    Tensor v, Tensor y, Tensor lse, BlockMask mask,
                                    Visibility visible, double scale);

// The sums dk and dv of pieces that divide the tiles of a group: [B G pieces, T, wide] each.
template <class T>
struct BlockGradients {
  BlockGradients(const Tensor& dk, const Tensor& dv, int64_t wide, int64_t tiles)
      : to_k(dk), to_v(dv), wide(wide) {
    const Tensor& any = dk.defined() ? dk : dv;
    if (!any.defined()) return;
    const int64_t groups = any.dim(0) * any.dim(1);
    // As many tasks as let threads finish at similar times; few tiles do not pay for another sum.
    constexpr int64_t kTasks = 24, kMaxPieces = 6, kTiles = 32;
    length = any.dim(2);
    pieces = std::clamp<int64_t>(std::min((kTasks + groups - 1) / groups, tiles / kTiles), 1,
                                 kMaxPieces);
    in_place = pieces == 1 && wide == any.dim(3);
    for (auto [to, sum] : {std::pair{dk, &sum_k}, {dv, &sum_v}}) {
      if (!to.defined()) continue;
      *sum = in_place ? to : Tensor::empty({groups * pieces, length, wide}, DtypeOf<T>::value);
    }
  }

  T* dk(int64_t piece) const { return at(sum_k, piece); }
  T* dv(int64_t piece) const { return at(sum_v, piece); }
  void clear(int64_t piece) const {
    for (T* sum : {dk(piece), dv(piece)}) {
      if (sum) std::fill_n(sum, length * wide, T(0));
    }
  }
  // Adds the pieces in their order.
  void finish() const {
    if (in_place) return;
    for (auto [to, sum] : {std::pair{to_k, sum_k}, {to_v, sum_v}}) {
      if (!to.defined()) continue;
      const int64_t d = to.dim(3);
      const T* from = sum.template data<T>();
      T* out = to.template data<T>();
      parallel_for(to.rows(), 64, [&, from, out](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const T* row = from + (r / length * pieces * length + r % length) * wide;
          std::copy_n(row, d, out + r * d);
          for (int64_t p = 1; p < pieces; ++p) {
#pragma omp simd
            for (int64_t c = 0; c < d; ++c) out[r * d + c] += row[p * length * wide + c];
          }
        }
      });
    }
  }

  Tensor to_k, to_v, sum_k, sum_v;
  int64_t wide, length = 0, pieces = 1;
  bool in_place = false;

 private:
  T* at(const Tensor& sum, int64_t piece) const {
    return sum.defined() ? sum.template data<T>() + piece * length * wide : nullptr;
  }
};

}  // namespace brine::BRINE_CPU
