// The data of a training step: windows of a corpus, or texts of a task (task_source.h).
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "data/corpus/token_source.h"
#include "tensor/tensor.h"

namespace brine::distill {

struct Batch {
  Tensor ids;                    // i32 [B, T]
  Tensor lengths;                // i64 [B]; undefined = all T
  std::vector<int64_t> windows;  // window numbers of the corpus; of a task the text numbers
  int64_t tokens = 0;            // number of valid tokens
  // Only for a task:
  Tensor type_ids = {};  // i32 [B, T] segments
  Tensor classes = {};   // classes, i32 [B], or...
  Tensor scores = {};    // scores of a regression, f32 [B, 1]

  bool of_task() const { return classes.defined() || scores.defined(); }
};

// Batch `n` is a function of the source and n, so the position of a run is one number.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual int64_t size() const = 0;    // windows or texts
  virtual int64_t window() const = 0;  // tokens of the longest
  // Batch n, of B samples; the last samples of an epoch are not dropped, batches continue into the
  // next one.
  virtual Batch batch(int64_t n, int64_t B) = 0;
  // The windows that batch n has, without their tokens (to read ahead in a dump).
  virtual std::vector<int64_t> windows_of(int64_t n, int64_t B) = 0;
  // Tokens of a row of batch n, with its padding: what the batch's memory grows with.
  virtual int64_t row_tokens(int64_t /*n*/, int64_t /*B*/) { return window(); }
  // A copy for another thread.
  virtual std::unique_ptr<BatchSource> clone() const = 0;
};

// Windows of T tokens, visited in a new Philox permutation each epoch.
class WindowSource : public BatchSource {
 public:
  // The order of an epoch with more windows is not stored but computed item by item, so that memory
  // does not grow with the corpus; it is a different permutation.
  static constexpr int64_t kMaxListed = 1 << 20;

  // `windows` restricts the corpus to these windows (those of a dump); empty = all. Throws when
  // there is none. `max_listed` is for tests: a run that continues with another value sees other
  // windows.
  WindowSource(std::shared_ptr<const data::TokenSource> tokens, int64_t window, uint64_t seed,
               std::vector<int64_t> windows = {}, int64_t max_listed = kMaxListed);
  WindowSource(std::vector<int32_t> tokens, int64_t window, uint64_t seed,
               std::vector<int64_t> windows = {}, int64_t max_listed = kMaxListed)
      : WindowSource(std::make_shared<data::TokenList>(std::move(tokens)), window, seed,
                     std::move(windows), max_listed) {}

  int64_t size() const override { return windows_.empty() ? whole_ : int64_t(windows_.size()); }
  int64_t window() const override { return window_; }
  Batch batch(int64_t n, int64_t B) override { return gather(windows_of(n, B)); }
  std::vector<int64_t> windows_of(int64_t n, int64_t B) override;
  std::unique_ptr<BatchSource> clone() const override {
    return std::make_unique<WindowSource>(*this);
  }
  // Windows whose samples end before them, by number: the rest is padding.
  void shorten(std::unordered_map<int64_t, int64_t> lengths) { lengths_ = std::move(lengths); }
  // Windows in corpus order, for evaluation: at most B from `first` on.
  Batch in_order(int64_t first, int64_t B) const;

 private:
  Batch gather(std::vector<int64_t> windows) const;
  int64_t number(int64_t i) const { return windows_.empty() ? i : windows_[size_t(i)]; }

  std::shared_ptr<const data::TokenSource> tokens_;
  int64_t window_, max_listed_;
  uint64_t seed_;
  int64_t whole_ = 0;                             // windows of the corpus
  std::vector<int64_t> windows_;                  // empty: all
  std::unordered_map<int64_t, int64_t> lengths_;  // of windows that end early
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;  // permutation of epoch_; empty where it is computed item by item
};

}  // namespace brine::distill
