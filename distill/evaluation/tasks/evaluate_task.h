// A model's answers to a task, its score, and how many keys its attention kept for it.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "distill/batches/task_source.h"
#include "distill/evaluation/evaluate.h"
#include "distill/evaluation/tasks/metrics.h"
#include "nn/models/family.h"
#include "tensor/comm/communicator.h"

namespace brine::distill {

struct TaskAnswers {
  std::vector<int64_t> texts;       // the answered texts, in order
  std::vector<double> predictions;  // of each: the likeliest class, or the score
  // Of each text and class of the model, [texts * labels]: by softmax, or by the logistic function
  // if each class may be right or there is only one; of several scores the scores. Empty for
  // scores of one label.
  std::vector<double> probabilities;
  double mean_length = 0;  // visible tokens of a text
  // Kept keys over visible keys, summed over texts, layers, heads and rows: 1 for dense attention,
  // nothing for a method that does not report it.
  std::optional<double> kept_keys;
};

struct TaskCall {
  int64_t batch_size = 32;
  int64_t max_texts = 0;  // 0 = all; fewer are evenly spaced
  nn::RuntimeOptions options = {};
  // The task's class for each of the model's; empty: the same. Predictions are in the task's
  // classes.
  std::vector<int64_t> classes = {};
  // What the model's logits are: the probabilities of classes follow from it.
  nn::Problem problem = nn::Problem::single_label;
  nn::LayerObserver* observer = nullptr;  // also called for every layer
  std::function<void(const Batch&)> before_batch = {};
  std::vector<BatchMeasure*> measures = {};  // these and
  Communicator* ranks = nullptr;             // this as in EvaluateCall
};

TaskAnswers answer(nn::Model& model, const TaskSource& texts, const TaskCall& call);

// The targets of the answered texts. Throws when they have no labels.
std::vector<double> truth_of(const TaskSource& texts, const TaskAnswers& answers);
// Their metrics.
Values score_answers(const data::Task& task, const TaskSource& texts, const TaskAnswers& answers);

}  // namespace brine::distill
