// Batches of a task's texts, padded to the longest of each batch.
#pragma once

#include <memory>

#include "data/corpus/buckets.h"
#include "data/tasks/task_tokens.h"
#include "distill/batches/batch.h"

namespace brine::distill {

class TaskSource : public BatchSource {
 public:
  // Batches are padded to multiples of 8; on a GPU, whose libraries plan every new shape (cuDNN for
  // about a second), to 32 lengths up to 512 instead of 64.
  static data::LengthSteps length_steps(Device device = default_device()) {
    return {.least = 8, .parts = device.is_cuda() ? 8 : 0};
  }

  // A batch contains texts of similar lengths (data/corpus/buckets.h); the order is a function of
  // the seed.
  TaskSource(std::shared_ptr<const data::TaskTokens> tokens, uint64_t seed);

  int64_t size() const override { return int64_t(tokens_->texts.size()); }
  int64_t window() const override { return tokens_->longest; }
  Batch batch(int64_t n, int64_t B) override { return gather(buckets_.batch(n, B)); }
  std::vector<int64_t> windows_of(int64_t n, int64_t B) override { return buckets_.batch(n, B); }
  int64_t row_tokens(int64_t n, int64_t B) override { return padded(buckets_.batch(n, B)); }
  std::unique_ptr<BatchSource> clone() const override {
    return std::make_unique<TaskSource>(*this);
  }
  // Every text once, for evaluation.
  std::vector<std::vector<int64_t>> in_order(int64_t B) const { return buckets_.in_order(B); }
  // The texts of these numbers; ids of padding are 0.
  Batch gather(std::vector<int64_t> texts) const;

  const data::TaskTokens& tokens() const { return *tokens_; }
  const std::shared_ptr<const data::TaskTokens>& shared_tokens() const { return tokens_; }

 private:
  int64_t padded(const std::vector<int64_t>& texts) const;

  std::shared_ptr<const data::TaskTokens> tokens_;
  data::LengthBuckets buckets_;
};

}  // namespace brine::distill
