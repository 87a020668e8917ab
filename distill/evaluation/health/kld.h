// How far a model's next-token distributions are from its teacher's: KL divergence, equal top
// tokens, and the ratio of their perplexities with an interval from paired windows.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "data/config/schema.h"
#include "distill/evaluation/evaluate.h"

namespace brine::distill {

// Log-likelihoods of one window under both models.
struct PairedWindow {
  double model = 0, teacher = 0;  // sums of the negative log-likelihoods of its tokens
  int64_t tokens = 0;
};

struct PerplexityRatio {
  double value = 0;
  std::optional<double> low, high;  // none for a single window
};
// exp of the mean difference of a token's negative log-likelihood, which is the ratio of the
// perplexities; 95 % confidence by Student's t over windows, which weigh by their tokens.
PerplexityRatio perplexity_ratio(const std::vector<PairedWindow>& windows);
// The number that |x| of Student's t with so many degrees of freedom exceeds in 5 % of cases.
double student_t_95(int64_t freedom);

// How far the predictions of two models are from each other.
struct LogitDistance {
  double kl_mean = 0, kl_median = 0, kl_p99 = 0;  // nats, KL(teacher || model) of a predicted token
  double same_top = 0;                            // share of tokens with equal largest logits
  double perplexity_teacher = 0;
  PerplexityRatio ratio;
  int64_t windows = 0, tokens = 0;
};
// kl_mean, kl_median, kl_p99, same_top, perplexity_teacher, perplexity_ratio with ratio_low and
// ratio_high (null for one window), windows, tokens.
data::Json to_json(const LogitDistance& distance);

// Runs the teacher over the batches of an evaluation. Logits are compared in pieces of rows.
class LogitComparison : public LogitObserver {
 public:
  explicit LogitComparison(std::shared_ptr<nn::Model> teacher) : teacher_(std::move(teacher)) {}

  void begin(const Batch& batch) override;
  void rows(const LogitRows& rows) override;

  std::string take() override;
  void add(const std::string& part) override;

  LogitDistance result() const;

 private:
  std::shared_ptr<nn::Model> teacher_;
  Tensor hidden_;  // [B T, C] of the teacher
  std::vector<int64_t> windows_;
  int64_t length_ = 0;
  struct Counts {
    std::vector<double> kl = {};  // of each predicted token
    int64_t same_top = 0;
    std::map<int64_t, PairedWindow> paired = {};  // by window
  };
  Counts part_, all_;  // of the present batch, and of those that were added
};

}  // namespace brine::distill
