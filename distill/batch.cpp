// Windows of a corpus.
#include "distill/batch.h"

#include <algorithm>
#include <numeric>

#include "data/permutation.h"

namespace brine::distill {

WindowSource::WindowSource(std::vector<int32_t> tokens, int64_t window, uint64_t seed,
                           std::vector<int64_t> windows, int64_t copies)
    : tokens_(std::move(tokens)),
      window_(window),
      copies_(copies),
      seed_(seed),
      windows_(std::move(windows)) {
  check(window >= 2, "windows: a window of ", window, " tokens predicts nothing");
  check(copies >= 1 && window % copies == 0, "windows: ", copies,
        " copies do not divide a window of ", window, " tokens");
  int64_t whole = int64_t(tokens_.size()) / (window / copies);
  check(whole > 0, "windows: the text has ", tokens_.size(), " tokens, a window takes ", window);
  if (windows_.empty()) {
    windows_.resize(size_t(whole));
    std::iota(windows_.begin(), windows_.end(), 0);
  }
  for (int64_t w : windows_) {
    check(w >= 0 && w < whole, "windows: window ", w, " of ", whole, " does not exist");
  }
}

std::vector<int64_t> WindowSource::windows_of(int64_t n, int64_t B) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < B; ++i) {
    int64_t at = n * B + i, epoch = at / size();
    if (epoch != epoch_) {
      order_ = data::permutation(size(), seed_, uint64_t(epoch));
      epoch_ = epoch;
    }
    out.push_back(windows_[size_t(order_[size_t(at % size())])]);
  }
  return out;
}

Batch WindowSource::batch(int64_t n, int64_t B) { return gather(windows_of(n, B)); }

Batch WindowSource::in_order(int64_t first, int64_t B) const {
  int64_t last = std::min(first + B, size());
  check(first < last, "windows: no window from ", first, " on");
  return gather({windows_.begin() + first, windows_.begin() + last});
}

Batch WindowSource::gather(std::vector<int64_t> windows) const {
  Batch b;
  int64_t B = int64_t(windows.size());
  b.ids = Tensor::empty({B, window_}, Dtype::i32);
  for (int64_t i = 0; i < B; ++i) {
    int64_t part = window_ / copies_;
    auto from = tokens_.begin() + windows[size_t(i)] * part;
    for (int64_t c = 0; c < copies_; ++c) {
      std::copy(from, from + part, b.ids.data<int32_t>() + i * window_ + c * part);
    }
  }
  b.windows = std::move(windows);
  b.tokens = B * window_;
  return b;
}

}  // namespace brine::distill
