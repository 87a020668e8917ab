// Evaluation on a task: answers batch by batch, put back into the order of the texts.
#include "distill/evaluation/tasks/evaluate_task.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/ops.h"
#include "tensor/comm/bytes.h"
#include "tensor/comm/shared_work.h"

namespace brine::distill {
namespace {

// Counts the entries of the sparse masks and the visible keys; passes every layer on to the next
// observer.
class KeyCounter : public nn::LayerObserver, public BatchMeasure {
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
      part_.kept += rows.data<int64_t>()[rows.numel() - 1] - rows.data<int64_t>()[0];
    } else {
      part_.known = part_.known && full_;
      part_.kept += all;
    }
    part_.seen += all;
    return next_ ? next_->observe(layer, tap, output) : Tensor();
  }
  std::string take() override {
    ByteWriter out;
    out.number(std::exchange(part_, {}));
    return out.bytes();
  }
  void add(const std::string& part) override {
    const auto other = ByteReader(part).number<Counts>();
    all_.known = all_.known && other.known;
    all_.kept += other.kept;
    all_.seen += other.seen;
  }
  std::optional<double> share() const {
    if (!all_.known || all_.seen == 0) return {};
    return double(all_.kept) / double(all_.seen);
  }

 private:
  struct Counts {
    bool known = true;
    int64_t kept = 0, seen = 0;
  };
  bool causal_, full_;
  nn::LayerObserver* next_;
  int64_t visible_ = 0;
  Counts part_, all_;  // of the present batch, and of those that were added
};

// The likeliest classes by rows of logits, in the task's numbers.
std::vector<double> likeliest(const std::vector<double>& logits, int64_t labels,
                              const std::vector<int64_t>& classes) {
  std::vector<double> out;
  for (auto row = logits.begin(); row != logits.end(); row += labels) {
    const int64_t c = std::max_element(row, row + labels) - row;
    out.push_back(double(classes.empty() ? c : classes[size_t(c)]));
  }
  return out;
}

std::vector<double> probabilities_of(std::vector<double> logits, int64_t labels,
                                     nn::Problem problem) {
  if (problem == nn::Problem::regression) return logits;
  for (auto row = logits.begin(); row != logits.end(); row += labels) {
    const auto end = row + labels;
    if (problem == nn::Problem::multi_label || labels == 1) {
      for (auto logit = row; logit < end; ++logit) *logit = 1 / (1 + std::exp(-*logit));
      continue;
    }
    const double best = *std::max_element(row, end);
    double sum = 0;
    for (auto logit = row; logit < end; ++logit) sum += * logit = std::exp(*logit - best);
    for (auto logit = row; logit < end; ++logit) *logit /= sum;
  }
  return logits;
}

}  // namespace

TaskAnswers answer(nn::Model& model, const TaskSource& texts, const TaskCall& call) {
  NoGrad off;
  const data::TaskTokens& tokens = texts.tokens();
  int64_t count = call.max_texts ? std::min(call.max_texts, texts.size()) : texts.size();
  int64_t labels = tokens.regression ? 1 : int64_t(tokens.labels.size());
  check(model.labels() == labels, "task: the model has ", model.labels(), " labels, the task ",
        labels);
  TaskAnswers out;
  std::vector<int64_t> index(size_t(texts.size()), -1);  // the text's index among the answers
  for (int64_t i = 0; i < count; ++i) {
    out.texts.push_back(i * texts.size() / count);
    index[size_t(out.texts.back())] = i;
  }
  out.predictions.resize(size_t(count));
  if (!tokens.regression) out.probabilities.resize(size_t(count * labels));
  KeyCounter keys(model.shape().causal, nn::is_full_attention(model.attention_name()),
                  call.observer);
  std::vector<std::vector<int64_t>> batches = texts.in_order(call.batch_size);
  for (std::vector<int64_t>& numbers : batches)
    std::erase_if(numbers, [&](int64_t i) { return index[size_t(i)] < 0; });
  std::erase_if(batches, [](const auto& numbers) { return numbers.empty(); });
  std::vector<BatchMeasure*> measures = call.measures;
  measures.push_back(&keys);
  int64_t visible = 0;
  auto part_of = [&](int64_t n) {
    const Batch batch = texts.gather(batches[size_t(n)]);
    keys.begin(batch);
    if (call.before_batch) call.before_batch(batch);
    const Tensor hidden = model
                              .hidden({.ids = batch.ids,
                                       .lengths = batch.lengths,
                                       .type_ids = batch.type_ids,
                                       .options = call.options,
                                       .observer = &keys})
                              .detach();
    ByteWriter part;
    part.number(batch.tokens);
    const std::vector<double> logits = model.class_logits(hidden).detach().to_vector();
    for (size_t i = 0; i < logits.size(); ++i) {
      check(std::isfinite(logits[i]), "task: the model's logits of text ",
            batches[size_t(n)][i / size_t(labels)] + 1,
            " are not finite; a weight may be NaN or infinite");
    }
    part.list(tokens.regression ? logits : likeliest(logits, labels, call.classes));
    if (!tokens.regression) part.list(probabilities_of(logits, labels, call.problem));
    for (BatchMeasure* measure : measures) part.text(measure->take());
    return part.bytes();
  };
  auto add = [&](int64_t n, const std::string& part) {
    ByteReader reader(part);
    visible += reader.number<int64_t>();
    const std::vector<double> predictions = reader.list<double>();
    const auto of_classes = tokens.regression ? std::vector<double>() : reader.list<double>();
    for (size_t i = 0; i < predictions.size(); ++i) {
      const int64_t at = index[size_t(batches[size_t(n)].at(i))];
      out.predictions[size_t(at)] = predictions[i];
      if (!of_classes.empty())
        std::copy_n(of_classes.begin() + int64_t(i) * labels, labels,
                    out.probabilities.begin() + at * labels);
    }
    for (BatchMeasure* measure : measures) measure->add(reader.text());
  };
  SelfCommunicator alone;
  divide_work(call.ranks ? *call.ranks : alone, "answers", int64_t(batches.size()), part_of, add);
  out.mean_length = double(visible) / double(count);
  out.kept_keys = keys.share();
  return out;
}

std::vector<double> truth_of(const TaskSource& texts, const TaskAnswers& answers) {
  const data::TaskTokens& tokens = texts.tokens();
  check(tokens.labelled, "task: this split has no labels to score against");
  std::vector<double> truth;
  truth.reserve(answers.texts.size());
  for (int64_t i : answers.texts) truth.push_back(tokens.targets[size_t(i)]);
  return truth;
}

Values score_answers(const data::Task& task, const TaskSource& texts, const TaskAnswers& answers) {
  return score_task(task, answers.predictions, truth_of(texts, answers));
}

}  // namespace brine::distill
