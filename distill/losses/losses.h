// The losses of method 4, each weighted in the configuration and logged by itself.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/config/schema.h"
#include "distill/teachers/teacher.h"
#include "nn/attention/observer.h"

namespace brine::distill {

// The weights of the losses (loss_table.h), config["approx"], and what they share.
class LossConfig {
 public:
  static constexpr size_t kMostLosses = 32;

  LossConfig();              // the weights of the table
  double kl = 0.1, mse = 1;  // parts of the attention terms (paper, eq. L_sea)

  // Throws where there is no such loss.
  double& operator[](std::string_view loss);
  double operator[](std::string_view loss) const;

  bool needs_teacher() const { return !needs().empty(); }
  // What the losses with a weight need of a teacher.
  TeacherNeeds needs() const;

 private:
  std::array<double, kMostLosses> weights_ = {};  // in the order of the table
};

// Only next-token prediction, weight 1: a teacher's training.
LossConfig task_only();

// The weighted terms of a step, whose sum is "loss"; "task_nll" is the unweighted mean NLL a token,
// "task_loss" that of a text or its squared error.
using LossTerms = std::map<std::string, double>;

// A term as long as only the device knows it: `value` (one element) times `factor`.
struct PendingTerm {
  std::string name;
  Tensor value;
  double factor = 1;
  bool in_sum = true;  // of "loss"
  // Asked when a term of its micro-batch is not finite: what is to blame, or "". May wait for the
  // device.
  std::function<std::string()> blame = {};
};
using PendingTerms = std::vector<PendingTerm>;

// Adds the terms of micro-batches to `terms`, and returns the elements of `others`: all with one
// wait for the device. Throws NonFiniteLoss for the first term that is not finite.
std::vector<double> read_terms(const std::vector<PendingTerms>& pending,
                               const std::vector<Tensor>& others, LossTerms& terms);

// Thrown before the gradients of a step are used.
struct NonFiniteLoss : Error {
  NonFiniteLoss(const std::string& term, double value, const std::string& blame = "")
      : Error(join("loss term '", term, "' is ", value, blame.empty() ? "" : ": ", blame)),
        term(term) {}
  std::string term;
};

// Computes and differentiates the losses of one micro-batch.
class Objective {
 public:
  // `teacher` may be null when no loss with a weight needs one.
  Objective(nn::Model& student, Teacher* teacher, const LossConfig& config);

  struct Call {
    double share = 1;                // of the step's rows (tokens) that are in this micro-batch
    double text_share = 1;           // of the step's texts, where the task is of whole texts
    RandomStream* random = nullptr;  // dropout
    bool recompute = false;
    int64_t loss_from = 0;  // task loss on targets from this position on
    double loss_scale = 1;  // times every gradient; no term has it
    nn::AttentionDials dials = {};
  };
  // Adds loss_scale * share * gradient to the student's gradients; returns share * value. Waits for
  // nothing.
  PendingTerms accumulate(const Batch& batch, const Call& call);
  // The same with the values added to `terms`.
  void run(const Batch& batch, const Call& call, LossTerms& terms);

 private:
  PendingTerms head_terms(const Tensor& hidden, const Batch& batch, const Call& call,
                          Tensor& total) const;

  nn::Model& student_;
  Teacher* teacher_;
  LossConfig config_;
};

}  // namespace brine::distill
