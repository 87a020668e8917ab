// Batches of texts as padded tensors.
#include "distill/batches/task_source.h"

#include <algorithm>

namespace brine::distill {
namespace {

std::vector<int64_t> lengths_of(const data::TaskTokens& tokens) {
  std::vector<int64_t> out;
  out.reserve(tokens.texts.size());
  for (const data::TextTokens& text : tokens.texts) out.push_back(int64_t(text.ids.size()));
  return out;
}

}  // namespace

TaskSource::TaskSource(std::shared_ptr<const data::TaskTokens> tokens, uint64_t seed)
    : tokens_(std::move(tokens)), buckets_(lengths_of(*tokens_), seed) {}

int64_t TaskSource::padded(const std::vector<int64_t>& texts) const {
  int64_t T = 0;
  for (int64_t i : texts) T = std::max(T, int64_t(tokens_->texts[size_t(i)].ids.size()));
  return std::min(length_steps().round_up(T), tokens_->longest);
}

Batch TaskSource::gather(std::vector<int64_t> texts) const {
  const int64_t B = int64_t(texts.size()), T = padded(texts);
  Batch b;
  b.ids = Tensor::zeros({B, T}, Dtype::i32);
  b.type_ids = Tensor::zeros({B, T}, Dtype::i32);
  b.lengths = Tensor::empty({B}, Dtype::i64);
  Tensor& target = tokens_->regression ? b.scores : b.classes;
  target = tokens_->regression ? Tensor::empty({B, 1}, Dtype::f32) : Tensor::empty({B}, Dtype::i32);
  for (int64_t i = 0; i < B; ++i) {
    const data::TextTokens& text = tokens_->texts[size_t(texts[size_t(i)])];
    std::copy(text.ids.begin(), text.ids.end(), b.ids.data<int32_t>() + i * T);
    int64_t L = int64_t(text.ids.size());
    std::fill(b.type_ids.data<int32_t>() + i * T + text.first,
              b.type_ids.data<int32_t>() + i * T + L, 1);
    b.lengths.data<int64_t>()[i] = L;
    b.tokens += L;
    double wanted = tokens_->targets[size_t(texts[size_t(i)])];
    if (tokens_->regression) {
      b.scores.data<float>()[i] = float(wanted);
    } else {
      b.classes.data<int32_t>()[i] = int32_t(wanted);
    }
  }
  b.windows = std::move(texts);
  return b;
}

}  // namespace brine::distill
