// Which windows of a corpus a step sees.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tensor/tensor.h"

namespace brine::distill {

struct Batch {
  Tensor ids;                    // i32 [B, T]
  Tensor lengths;                // i64 [B]; undefined = all T
  std::vector<int64_t> windows;  // of the corpus
  int64_t tokens = 0;            // valid ones
};

// Windows of T tokens, visited in a new Philox permutation each epoch. Batch `n` is a function of
// (seed, n), so the position of a run is one number.
class WindowSource {
 public:
  // `windows` restricts the corpus to these (a dump's); empty = all. Throws when there is none.
  // With `copies` = c a window is T / c tokens of the corpus, c times: a text in which looking far
  // back pays.
  WindowSource(std::vector<int32_t> tokens, int64_t window, uint64_t seed,
               std::vector<int64_t> windows = {}, int64_t copies = 1);

  int64_t size() const { return int64_t(windows_.size()); }
  int64_t window() const { return window_; }
  // Batch number n of batches of B windows; the epoch's rest is not dropped, batches run on.
  Batch batch(int64_t n, int64_t B);
  // The windows that batch n has, without their tokens (to read ahead in a dump).
  std::vector<int64_t> windows_of(int64_t n, int64_t B);
  // Windows in corpus order, for evaluation: at most B from `first` on.
  Batch in_order(int64_t first, int64_t B) const;

 private:
  Batch gather(std::vector<int64_t> windows) const;

  std::vector<int32_t> tokens_;
  int64_t window_, copies_;
  uint64_t seed_;
  std::vector<int64_t> windows_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;  // permutation of epoch_
};

}  // namespace brine::distill
