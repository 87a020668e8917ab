// Batches of windows of a corpus.
#include "distill/batches/batch.h"

#include <algorithm>

#include "data/corpus/permutation.h"

namespace brine::distill {

WindowSource::WindowSource(std::shared_ptr<const data::TokenSource> tokens, int64_t window,
                           uint64_t seed, std::vector<int64_t> windows, int64_t max_listed)
    : tokens_(std::move(tokens)),
      window_(window),
      max_listed_(max_listed),
      seed_(seed),
      windows_(std::move(windows)) {
  check(window >= 2, "windows: a window of ", window, " tokens predicts nothing");
  whole_ = tokens_->size() / window;
  check(whole_ > 0, "windows: the text has ", tokens_->size(), " tokens, a window takes ", window);
  for (int64_t w : windows_) {
    check(w >= 0 && w < whole_, "windows: window ", w, " of ", whole_, " does not exist");
  }
}

std::vector<int64_t> WindowSource::windows_of(int64_t n, int64_t B) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < B; ++i) {
    int64_t at = n * B + i, epoch = at / size();
    if (size() > max_listed_) {
      out.push_back(number(data::permuted(at % size(), size(), seed_, uint64_t(epoch))));
      continue;
    }
    if (epoch != epoch_) {
      order_ = data::permutation(size(), seed_, uint64_t(epoch));
      epoch_ = epoch;
    }
    out.push_back(number(order_[size_t(at % size())]));
  }
  return out;
}

Batch WindowSource::in_order(int64_t first, int64_t B) const {
  int64_t last = std::min(first + B, size());
  check(first < last, "windows: no window from ", first, " on");
  std::vector<int64_t> windows;
  for (int64_t i = first; i < last; ++i) windows.push_back(number(i));
  return gather(std::move(windows));
}

Batch WindowSource::gather(std::vector<int64_t> windows) const {
  Batch b;
  int64_t B = int64_t(windows.size());
  b.ids = Tensor::empty({B, window_}, Dtype::i32);
  for (int64_t i = 0; i < B; ++i) {
    int32_t* row = b.ids.data<int32_t>() + i * window_;
    tokens_->read(windows[size_t(i)] * window_, {row, size_t(window_)});
  }
  b.tokens = B * window_;
  for (int64_t i = 0; i < B; ++i) {
    const auto shorter = lengths_.find(windows[size_t(i)]);
    if (shorter == lengths_.end()) continue;
    if (!b.lengths.defined()) b.lengths = Tensor::full({B}, double(window_), Dtype::i64);
    b.lengths.data<int64_t>()[i] = shorter->second;
    b.tokens -= window_ - shorter->second;
  }
  b.windows = std::move(windows);
  return b;
}

}  // namespace brine::distill
