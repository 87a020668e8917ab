// The largest logits of every row.
#include <algorithm>
#include <cmath>
#include <utility>

#include "data/dump.h"
#include "tensor/math.h"
#include "tensor/parallel.h"

namespace brine::data {
namespace {

using Entry = std::pair<float, int32_t>;

bool before(const Entry& a, const Entry& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

// The n entries that come first, in order. A later logit enters only when it beats the last of
// them, which is rare, so the row is mostly just compared.
void largest(const float* row, int64_t vocab, int64_t n, std::vector<Entry>& kept) {
  kept.clear();
  for (int64_t i = 0; i < n; ++i) kept.push_back({row[i], int32_t(i)});
  std::make_heap(kept.begin(), kept.end(), before);  // the last one is in front
  for (int64_t i = n; i < vocab; ++i) {
    if (row[i] <= kept.front().first) continue;
    std::pop_heap(kept.begin(), kept.end(), before);
    kept.back() = {row[i], int32_t(i)};
    std::push_heap(kept.begin(), kept.end(), before);
  }
  std::sort(kept.begin(), kept.end(), before);
}

float log_sum_exp(const float* row, int64_t vocab, float top) {
  double sum = 0;
  for (int64_t begin = 0; begin < vocab; begin += 256) {
    int64_t end = std::min(vocab, begin + 256);
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = begin; i < end; ++i) part += math::exp(row[i] - top);
    sum += part;
  }
  return float(top + std::log(sum));
}

}  // namespace

void keep_top_logits(DumpBatch& batch, const Tensor& logits, int64_t n) {
  check(logits.defined() && logits.rank() == 3 && logits.dtype() == Dtype::f32,
        "keep_top_logits: wants f32 logits [B, T, V]");
  int64_t vocab = logits.dim(2);
  check(n >= 1 && n <= vocab, "keep_top_logits: ", n, " of ", vocab, " logits");
  Tensor x = logits.detach().contiguous();
  batch.logits = Tensor::empty({x.dim(0), x.dim(1), n});
  batch.logit_ids = Tensor::empty({x.dim(0), x.dim(1), n}, Dtype::i32);
  batch.lse = Tensor::empty({x.dim(0), x.dim(1)});
  const float* from = x.data<float>();
  float* values = batch.logits.data<float>();
  int32_t* ids = batch.logit_ids.data<int32_t>();
  float* lse = batch.lse.data<float>();
  parallel_for(x.rows(), 16, [&](int64_t begin, int64_t end) {
    std::vector<Entry> kept;
    for (int64_t r = begin; r < end; ++r) {
      const float* row = from + r * vocab;
      largest(row, vocab, n, kept);
      for (int64_t i = 0; i < n; ++i) {
        values[r * n + i] = kept[size_t(i)].first;
        ids[r * n + i] = kept[size_t(i)].second;
      }
      lse[r] = log_sum_exp(row, vocab, kept.front().first);
      check(std::isfinite(lse[r]), "keep_top_logits: row ", r, " of the logits is not finite");
    }
  });
}

}  // namespace brine::data
