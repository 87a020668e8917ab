// What a choice of key blocks reads and writes: a mask's lists, the rows that choose together, the
// numbers that they are scored by.
#pragma once

#include "tensor/cuda/core/common.cuh"
#include "tensor/mask/blocks.h"

namespace brine::cuda {

constexpr int kMaxLevels = 26;  // of 2^25 blocks, the most that block_entry() numbers

// Rows of `width` numbers of the complete super-blocks of every level.
template <class T>
struct LevelRows {
  const T* data[kMaxLevels] = {};
  int64_t rows[kMaxLevels] = {}, width = 1;  // rows of a group

  void set(size_t z, const Tensor& level) {
    if (z >= size_t(kMaxLevels)) return;
    data[z] = level.data<T>();
    rows[z] = level.dim(2);
    if (level.rank() > 3) width = level.dim(3);
  }
  __device__ const T* of(int z, int64_t bg) const { return data[z] + bg * rows[z] * width; }
};

// BlockScores on the device; queries and mean keys as S.
template <class T, class S>
struct ChoiceInputs {
  const S* q;
  const T *gain, *psi_q, *prior_gain, *shares;
  const T* psi_k = nullptr;          // of every key, or null:
  const double* psi_open = nullptr;  // sums of the features of the row's block
  LevelRows<S> keys;
  LevelRows<T> logs, features;
  int64_t H, d, m, T_keys = 0, blocks;  // psi_k [., T_keys, m], shares [., blocks]
  T least;

  explicit ChoiceInputs(const BlockScores& s)
      : q(s.q.defined() ? s.q.template data<S>() : nullptr),
        gain(data(s.gain)),
        psi_q(data(s.psi_q)),
        prior_gain(data(s.prior_gain)),
        shares(data(s.shares)),
        H(s.shares.defined() ? s.shares.dim(1) : s.q.dim(1)),
        d(s.q.defined() ? s.q.dim(3) : 0),
        m(s.psi_q.defined() && !s.shares.defined() ? s.psi_q.dim(3) : 0),
        blocks(s.shares.defined() ? s.shares.dim(3) : 0),
        least(T(s.least_share)) {
    for (size_t z = 0; z < s.key_parts.size(); ++z) {
      keys.set(z, s.key_parts[z].means);
      logs.set(z, s.key_parts[z].logs);
    }
    if (m == 0) return;
    for (size_t z = 0; z < s.psi_sums.size(); ++z) features.set(z, s.psi_sums[z]);
    if (s.psi_k.rank() == 3) {
      psi_open = s.psi_k.template data<double>();
    } else {
      psi_k = s.psi_k.template data<T>();
      T_keys = s.psi_k.dim(2);
    }
  }

 private:
  static const T* data(const Tensor& x) { return x.defined() ? x.template data<T>() : nullptr; }
};

// The rows of a group that choose together: all are in block `block`.
struct ChoiceJob {
  int64_t bg, list, block, first;  // list of the mask; ordinal of the first row
  int64_t row, head_rows;          // first row of the first head in q; rows of a head
  int count, R, r0, heads;         // rows; lanes of a head; the first row in its tile
  bool continues;                  // the list has what earlier rows of the tile keep
  bool scored = false;             // the scores of its level are in the scratch memory
};

// A mask and where the rows of its tiles are.
struct MaskLists {
  int32_t *counts, *entries;
  int64_t capacity, tiles, groups, heads, rows;  // groups: B G; heads: of a group; rows of q
  int64_t sequences;                             // B

  __device__ int64_t sequence(int64_t bg) const { return bg / (groups / sequences); }
};

// The tiles of sequences.
struct TileJobs {
  const int32_t* places;   // null: 0, 1, 2...
  const int64_t* lengths;  // null: no padding

  // The long tiles come first, so that thread blocks finish at similar times.
  __device__ ChoiceJob operator()(int64_t turn, const MaskLists& to,
                                  const BlockConfig& config) const {
    const int64_t bg = turn % to.groups, n = to.tiles - 1 - turn / to.groups, R = config.tile;
    const int64_t first = (places ? places[n] : n) * R,
                  in = to.rows - n * R < R ? to.rows - n * R : R;
    const int64_t left = lengths ? lengths[to.sequence(bg)] - first : in;
    return {.bg = bg,
            .list = bg * to.tiles + n,
            .block = first / config.block,
            .first = first,
            .row = bg * to.heads * to.rows + n * R,
            .head_rows = to.rows,
            .count = int(left < 0 ? 0 : (left < in ? left : in)),
            .R = int(R),
            .r0 = 0,
            .heads = int(to.heads),
            .continues = false};
  }
};

// select_blocks_half.cu: chooses by mean keys and queries rounded to bf16, on tensor cores, scores
// in f32; false: not for these sizes.
bool select_blocks_half(const MaskLists& to, const TileJobs& jobs, BlockScores scores,
                        const BlockConfig& config);

}  // namespace brine::cuda
