// The losses of distillation, one row each: name, weight, required teacher tensors, function. The
// configuration, Objective and the teachers use this table.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "distill/losses/losses.h"

namespace brine::distill {

// The arguments of the loss of a layer, inside the layer's recompute region.
struct LayerLossCall {
  const LossConfig& config;
  const nn::Tap& student;  // "q", "k", "v", "attention_output" and the entries of the attention
                           // method
  const Tensor& output;    // [B, T, C] of the student's layer
  TeacherLayer& teacher;   // with the tensors that the loss needs, or those they are computed from
  const Batch& batch;
  Visibility visible;

  // A tensor of the teacher's layer; `columns` for pooled attention.
  const Tensor& of_teacher(const std::string& name, int64_t columns = 0) const;
  // Of x and y [B, T, C]: the mean over valid tokens and features of (x - y)^2.
  Tensor mean_square(const Tensor& x, const Tensor& y) const;
};

// The arguments of a loss of the logits. Those of tokens are too large to exist at once: a loss is
// called for some rows after others, and is the sum of what it gives for each.
struct HeadLossCall {
  const nn::Model& student;
  const Tensor& logits;  // [rows, V] of tokens, [B, labels] of whole texts
  Teacher* teacher;      // not null for a loss that needs teacher tensors
  const Batch& batch;
  int64_t loss_from;  // see Objective::Call
  int64_t first = 0;  // the token of [B T] that the first row is

  // The rows' part of the mean over the valid tokens of the batch; x [rows].
  Tensor mean_of_tokens(const Tensor& x) const;
};
struct HeadLoss {
  Tensor value;             // one element
  Tensor teacher_lse = {};  // for each row of the teacher's logits: names a row that is not finite
  std::string mean = {};    // a name under which the unweighted value is logged too
};

struct Loss {
  std::string name;  // its key in [losses], and its term in the log
  std::string help;
  double weight = 0;                    // the default
  std::vector<std::string> needs = {};  // parts of the teacher (data::part)
  // Either of each layer, and the mean is taken: one element...
  std::function<Tensor(const LayerLossCall&)> layer = {};
  // ...or of the logits: by token for text, by text for a task.
  std::function<HeadLoss(const HeadLossCall&)> tokens = {}, texts = {};
};

// In the order of the configuration.
const std::vector<Loss>& losses();

}  // namespace brine::distill
