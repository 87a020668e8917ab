// The losses of docs/method.md section 4, each with a weight in the configuration and a separate
// term in the log.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/config/schema.h"
#include "distill/teachers/teacher.h"
#include "nn/attention/observer.h"

namespace brine::distill {

// The weights of the losses (loss_table.h, config["approx"]) and their common settings.
class LossConfig {
 public:
  LossConfig();              // the weights of the table
  double kl = 0.1, mse = 1;  // weights of the parts of the attention terms (paper, eq. L_sea)

  // Throws for an unknown loss.
  double& operator[](std::string_view loss);
  double operator[](std::string_view loss) const;

  bool needs_teacher() const { return !needs().empty(); }
  // What the losses with a nonzero weight need from a teacher.
  TeacherNeeds needs() const;

 private:
  std::vector<double> weights_;  // in the order of the table
};

// Next-token prediction only, weight 1: the training of a teacher.
LossConfig task_only();

// The weighted terms of a step, whose sum is "loss"; "task_nll" is the unweighted mean NLL per
// token, "task_loss" that of a text or its squared error.
using LossTerms = std::map<std::string, double>;

// A term whose value is only on the device: `value` (one element) times `factor`.
struct PendingTerm {
  std::string name;
  Tensor value;
  double factor = 1;
  bool in_sum = true;  // of "loss"
  // Called when a term of its micro-batch is not finite: describes the cause, or "". May wait for
  // the device.
  std::function<std::string()> cause = {};
};
using PendingTerms = std::vector<PendingTerm>;

// The terms of one micro-batch when they have been read: sums over the layers, by name.
struct SlotTerms {
  struct Value {
    double value = 0;
    bool in_sum = true;  // of "loss"
  };
  std::map<std::string, Value> values;
  std::string cause;  // the cause when a value is not finite, if it is known
};

// Reads the terms of micro-batches, which are added to `slots`, and returns the elements of
// `others`, with a single wait for the device.
std::vector<double> read_slots(const std::vector<PendingTerms>& pending,
                               const std::vector<Tensor>& others, std::vector<SlotTerms>& slots);
// Adds the terms of all slots of a step in their order. Throws NonFiniteLoss for the first term
// that is not finite.
void add_slots(const std::vector<SlotTerms>& slots, LossTerms& terms);
// Both.
std::vector<double> read_terms(const std::vector<PendingTerms>& pending,
                               const std::vector<Tensor>& others, LossTerms& terms);

// Thrown before the gradients of a step are used.
struct NonFiniteLoss : Error {
  NonFiniteLoss(const std::string& term, double value, const std::string& cause = "")
      : Error(join("loss term '", term, "' is ", value, cause.empty() ? "" : ": ", cause)),
        term(term) {}
  std::string term;
};

// Computes and differentiates what is trained, for one micro-batch.
class StepObjective {
 public:
  virtual ~StepObjective() = default;

  struct Call {
    double share = 1;                // the share of the step's rows (tokens) in this micro-batch
    double text_share = 1;           // the share of the step's texts, for a task of whole texts
    RandomStream* random = nullptr;  // dropout
    bool recompute = false;
    int64_t loss_from = 0;   // task loss only on targets from this position on
    int64_t logit_rows = 0;  // tokens whose logits exist at once; 0: Model::rows_of_logits()
    // Is shown every layer of the student next to the teacher's.
    std::function<void(int64_t layer, const nn::Tap& tap, const TeacherLayer& teacher)> watch = {};
    nn::RuntimeOptions options = {};
    // Is told which part of the step has ended: "forward pass", "logits" (with the teacher's pass
    // if no layer's loss ran it), "backward pass".
    std::function<void(const char* part)> ended = {};
  };
  // Adds share * gradient to the student's gradients; returns share * value. Does not
  // wait for the device.
  virtual PendingTerms accumulate(const Batch& batch, const Call& call) = 0;
  // Called with the sums of a step's terms before they are logged.
  virtual void summarize(LossTerms& /*terms*/) const {}
};

// The weighted losses of a student whose layers read its activations, not the teacher's.
class Objective : public StepObjective {
 public:
  using Call = StepObjective::Call;
  // `teacher` may be null when no loss with a nonzero weight needs one.
  Objective(nn::Model& student, Teacher* teacher, const LossConfig& config);

  PendingTerms accumulate(const Batch& batch, const Call& call) override;
  // As above, with the values added to `terms`.
  void run(const Batch& batch, const Call& call, LossTerms& terms);

 private:
  // The weighted losses of the logits, differentiated: the gradient of `hidden` is stored in
  // `gradient`, unless it has none.
  PendingTerms head_terms(const Tensor& hidden, const Batch& batch, const Call& call,
                          Tensor& gradient) const;

  nn::Model& student_;
  Teacher* teacher_;
  LossConfig config_;
};

}  // namespace brine::distill
