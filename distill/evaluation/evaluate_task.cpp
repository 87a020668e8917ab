// Evaluation on a task: answers batch by batch, put back into the order of the texts.
#include "distill/evaluation/evaluate_task.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/ops.h"

namespace brine::distill {
namespace {

// Counts the entries of the sparse masks and the visible keys; passes every layer on to the next
// observer.
class KeyCounter : public nn::LayerObserver {
 public:
  KeyCounter(bool causal, bool full, nn::LayerObserver* next)
      : causal_(causal), full_(full), next_(next) {}

  void begin(const Batch& batch) {
    visible_ = 0;
    for (int64_t i = 0; i < batch.lengths.numel(); ++i) {
      int64_t L = batch.lengths.data<int64_t>()[i];
      visible_ += causal_ ? L * (L + 1) / 2 : L * L;
    }
  }
  Tensor observe(int64_t layer, const nn::Tap& tap, const Tensor& output) override {
    int64_t all = visible_ * tap.get("q").dim(1);
    if (tap.has("row_pointers")) {
      // [B, T + 1], continuing through the batch
      const Tensor rows = tap.get("row_pointers").to(Device{});
      kept_ += rows.data<int64_t>()[rows.numel() - 1] - rows.data<int64_t>()[0];
    } else {
      known_ = known_ && full_;
      kept_ += all;
    }
    seen_ += all;
    return next_ ? next_->observe(layer, tap, output) : Tensor();
  }
  std::optional<double> share() const {
    if (!known_ || seen_ == 0) return {};
    return double(kept_) / double(seen_);
  }

 private:
  bool causal_, full_, known_ = true;
  nn::LayerObserver* next_;
  int64_t visible_ = 0, kept_ = 0, seen_ = 0;
};

}  // namespace

TaskAnswers answer(nn::Model& model, const TaskSource& texts, const TaskCall& call) {
  NoGrad off;
  const data::TaskTokens& tokens = texts.tokens();
  int64_t count = call.max_texts ? std::min(call.max_texts, texts.size()) : texts.size();
  int64_t labels = tokens.regression ? 1 : int64_t(tokens.labels.size());
  check(model.labels() == labels, "task: the model has ", model.labels(), " labels, the task ",
        labels);
  TaskAnswers out;
  std::vector<int64_t> place(size_t(texts.size()), -1);  // the text's index among the answers
  for (int64_t i = 0; i < count; ++i) {
    out.texts.push_back(i * texts.size() / count);
    place[size_t(out.texts.back())] = i;
  }
  out.predictions.resize(size_t(count));
  if (!tokens.regression) out.probabilities.resize(size_t(count));
  KeyCounter keys(model.shape().causal, nn::is_full_attention(model.attention_name()),
                  call.observer);
  int64_t visible = 0;
  for (std::vector<int64_t>& numbers : texts.in_order(call.batch_size)) {
    std::erase_if(numbers, [&](int64_t i) { return place[size_t(i)] < 0; });
    if (numbers.empty()) continue;
    Batch batch = texts.gather(numbers);
    keys.begin(batch);
    if (call.before_batch) call.before_batch(batch);
    visible += batch.tokens;
    Tensor hidden = model
                        .hidden({.ids = batch.ids,
                                 .lengths = batch.lengths,
                                 .type_ids = batch.type_ids,
                                 .options = call.options,
                                 .observer = &keys})
                        .detach();
    std::vector<double> logits = model.class_logits(hidden).detach().to_vector();
    for (size_t i = 0; i < numbers.size(); ++i) {
      auto row = logits.begin() + std::ptrdiff_t(i) * labels;
      auto at = size_t(place[size_t(numbers[i])]);
      if (tokens.regression) {
        out.predictions[at] = *row;
        continue;
      }
      auto best = std::max_element(row, row + labels);
      double sum = 0;
      for (auto logit = row; logit < row + labels; ++logit) sum += std::exp(*logit - *best);
      int64_t c = best - row;
      out.predictions[at] = double(call.classes.empty() ? c : call.classes[size_t(c)]);
      out.probabilities[at] = 1 / sum;
    }
  }
  out.mean_length = double(visible) / double(count);
  out.kept_keys = keys.share();
  return out;
}

Values score_answers(const data::Task& task, const TaskSource& texts, const TaskAnswers& answers) {
  const data::TaskTokens& tokens = texts.tokens();
  check(tokens.labelled, "task ", task.name, ": this split has no labels to score against");
  std::vector<double> truth;
  truth.reserve(answers.texts.size());
  for (int64_t i : answers.texts) truth.push_back(tokens.targets[size_t(i)]);
  return score_task(task, answers.predictions, truth);
}

}  // namespace brine::distill
