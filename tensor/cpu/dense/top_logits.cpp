// The largest logits of every row.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tensor/base/math.h"
#include "tensor/base/parallel.h"
#include "tensor/kernels/dense.h"

namespace brine::BRINE_CPU {
namespace {

using Entry = std::pair<float, int32_t>;

bool before(const Entry& a, const Entry& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

// The first n entries in order. A later logit is inserted only when it exceeds the last of them,
// which is rare, so most of the row is only compared.
void largest(const float* row, int64_t vocab, int64_t n, std::vector<Entry>& kept) {
  kept.clear();
  for (int64_t i = 0; i < n; ++i) kept.push_back({row[i], int32_t(i)});
  std::make_heap(kept.begin(), kept.end(), before);  // the last one is at the front
  for (int64_t i = n; i < vocab; ++i) {
    if (row[i] <= kept.front().first) continue;
    std::pop_heap(kept.begin(), kept.end(), before);
    kept.back() = {row[i], int32_t(i)};
    std::push_heap(kept.begin(), kept.end(), before);
  }
  std::sort(kept.begin(), kept.end(), before);
}

float row_lse(const float* row, int64_t vocab, float top) {
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

void top_logits(Tensor values, Tensor ids, Tensor lse, Tensor x) {
  const int64_t vocab = x.dim(-1), n = values.dim(-1);
  const float* from = x.data<float>();
  float *to = values.data<float>(), *sums = lse.data<float>();
  int32_t* indices = ids.data<int32_t>();
  parallel_for(x.rows(), 16, [=](int64_t begin, int64_t end) {
    std::vector<Entry> kept;
    for (int64_t r = begin; r < end; ++r) {
      const float* row = from + r * vocab;
      largest(row, vocab, n, kept);
      for (int64_t i = 0; i < n; ++i) {
        to[r * n + i] = kept[size_t(i)].first;
        indices[r * n + i] = kept[size_t(i)].second;
      }
      sums[r] = row_lse(row, vocab, kept.front().first);
    }
  });
}

}  // namespace brine::BRINE_CPU
