// Layer losses where the tensors live, logits losses at the end, one walk backward.
#include "distill/losses/losses.h"

#include <algorithm>
#include <cmath>

#include "autograd/compute_type.h"
#include "tensor/device/transfer.h"
#include "tensor/top_logits.h"

namespace brine::distill {
namespace {

// 1 / (valid rows * per_row) at valid rows, 0 at padding: [B T], of the type and device of `like`.
Tensor row_weights(const Batch& batch, double per_row, const Tensor& like) {
  int64_t B = batch.ids.dim(0), T = batch.ids.dim(1);
  Tensor w = Tensor::zeros({B * T}, like.dtype());
  double value = 1 / (double(batch.tokens) * per_row);
  dispatch_float(like.dtype(), [&]<class S>() {
    for (int64_t b = 0; b < B; ++b) {
      int64_t L = batch.lengths.defined() ? batch.lengths.data<int64_t>()[b] : T;
      for (int64_t t = 0; t < L; ++t) w.data<S>()[b * T + t] = S(value);
    }
  });
  return w.to(like.device());
}

TeacherSummary summary_of(const TeacherLayer& t, int64_t K, const Visibility& visible) {
  if (!t.pooled.tau.defined()) return summarize_teacher(t.attention, K, visible);
  int64_t theirs = t.pooled.tau.dim(-1);
  check(theirs == K, "losses: the teacher's attention is pooled into ", theirs,
        " columns, the student has ", K);
  return t.pooled;
}

// The first row of the teacher's logits that is not finite, from their log-sum-exps [rows] by token
// or by text; "" where all are.
std::string unsound_row(const Tensor& lse, const Batch& batch) {
  const std::vector<double> sums = lse.to(Device{}).to_vector();
  auto unsound =
      std::find_if_not(sums.begin(), sums.end(), [](double s) { return std::isfinite(s); });
  if (unsound == sums.end()) return "";
  const int64_t row = unsound - sums.begin(), of_sequence = lse.numel() / batch.ids.dim(0);
  const int64_t b = row / of_sequence;
  return join("the teacher's logits ",
              of_sequence > 1 ? join("at token ", row % of_sequence, " of window ") : "of text ",
              batch.windows.empty() ? b : batch.windows[size_t(b)], " are not finite");
}

std::string blame_of(const PendingTerms& terms) {
  for (const PendingTerm& term : terms) {
    const std::string blame = term.blame ? term.blame() : "";
    if (!blame.empty()) return blame;
  }
  return "";
}

// Collects the terms of all layers; each layer's sum is attached to the layer's output.
class LayerLosses : public nn::LayerObserver {
 public:
  LayerLosses(const LossConfig& config, Teacher& teacher, const Batch& batch,
              const nn::ModelShape& shape, const Objective::Call& call)
      : config_(config),
        teacher_(teacher),
        batch_(batch),
        layers_(shape.layers),
        causal_(shape.causal),
        share_(call.share),
        loss_scale_(call.loss_scale),
        twice_(call.recompute) {}

  Tensor observe(int64_t i, const nn::Tap& tap, const Tensor& output) override {
    // With recomputation a layer runs twice, and its losses are wanted where they meet the tape.
    if (twice_ && !grad_enabled()) return {};
    teacher_.look_at(i, tap);
    TeacherLayer t = teacher_.layer(i);
    if (t.attention.q.defined() && (config_.approx || config_.prob)) {
      // As flash_attention() would take them: a teacher in 16 bits attends so.
      const ProductInput taken{product_type(t.attention.q.dtype())};
      t.attention.q = taken(t.attention.q), t.attention.k = taken(t.attention.k);
    }
    Visibility visible{.causal = causal_, .lengths = batch_.lengths};
    if (config_.approx) {
      check(tap.has("scores"),
            "losses: the student's attention estimates no scores, which the loss ",
            "approx needs; set losses.approx to 0");
      const Tensor& scores = tap.get("scores");  // S [B, H, T, K]
      TeacherSummary summary = summary_of(t, scores.dim(-1), visible);
      add_term("approx", attention_term(approx_loss(scores, summary, visible)), config_.approx);
    }
    if (config_.prob) {
      add_term("prob", attention_term(prob_loss(tap.get("q"), tap.get("k"), t.attention, visible)),
               config_.prob);
    }
    if (config_.context) {
      add_term("context", distance(tap.get("context"), t.context), config_.context);
    }
    if (config_.kd) add_term("kd", distance(output, t.output), config_.kd);
    const Tensor sum = std::exchange(sum_, Tensor());
    return loss_scale_ == 1 ? sum : scale(sum, loss_scale_);  // the walk backward begins at 1
  }

  // To be asked when all layers are done; with recomputation, when the walk backward is.
  const PendingTerms& terms() const { return terms_; }

 private:
  // {KL, MSE} -> kl KL + mse MSE
  Tensor attention_term(const Tensor& pair) {
    double values[] = {config_.kl, config_.mse};
    Tensor weights = Tensor::from(std::span<const double>(values), {2}).to(pair.dtype());
    return dot(pair, weights.to(pair.device()));
  }
  Tensor distance(const Tensor& a, const Tensor& b) {
    return squared_distance(a, b, row_weights(batch_, double(a.dim(-1)), a));
  }
  void add_term(const char* name, const Tensor& value, double weight) {
    Tensor scaled = scale(value, weight * share_ / double(layers_));
    // Sums over the layers go from the first to the last; recomputation begins with the last.
    terms_.insert(twice_ ? terms_.begin() : terms_.end(), {name, scaled.detach()});
    sum_ = sum_.defined() ? add(sum_, scaled) : scaled;
  }

  const LossConfig& config_;
  Teacher& teacher_;
  const Batch& batch_;
  int64_t layers_;
  bool causal_;
  double share_, loss_scale_;
  bool twice_;
  Tensor sum_;
  PendingTerms terms_;
};

}  // namespace

void LossConfig::describe(data::Schema& s) {
  s.field("approx", approx, "Weight of L_approx: the widened estimate against the teacher",
          {.min = 0});
  s.field("prob", prob, "Weight of L_prob: dense student attention against the teacher",
          {.min = 0});
  s.field("context", context, "Weight of L_context: attention outputs", {.min = 0});
  s.field("kd", kd, "Weight of L_kd: layer outputs", {.min = 0});
  s.field("kd_task", kd_task,
          "Weight of L_kd_task: KL of the logits (of a regression: squared distance)", {.min = 0});
  s.field("task", task, "Weight of L_task: next-token prediction, or the labels of a task",
          {.min = 0});
  s.field("kl", kl, "Weight of the KL part inside approx and prob", {.min = 0});
  s.field("mse", mse, "Weight of the squared part inside approx and prob", {.min = 0});
}

TeacherNeeds LossConfig::needs() const {
  return {.columns = approx != 0,
          .attention = prob != 0,
          .context = context != 0,
          .output = kd != 0,
          .logits = kd_task != 0};
}

LossConfig task_only() {
  LossConfig c;
  c.approx = c.prob = c.context = c.kd = c.kd_task = 0;
  c.task = 1;
  return c;
}

Objective::Objective(nn::Model& student, Teacher* teacher, const LossConfig& config)
    : student_(student), teacher_(teacher), config_(config) {
  check(teacher || !config.needs_teacher(), "losses: a loss with a weight needs a teacher");
  check(config.needs_teacher() || config.task, "losses: every weight is 0");
  if (teacher && config.needs_teacher()) teacher->require(config.needs());
}

Objective::TaskLosses Objective::token_losses(const Tensor& hidden, const Batch& batch,
                                              const Call& call) const {
  int64_t B = batch.ids.dim(0), T = batch.ids.dim(1);
  Tensor logits = reshape(student_.logits(hidden), {B * T, student_.shape().vocab_size});
  TaskLosses out;
  if (config_.kd_task) {
    TopLogits top = teacher_->logits();
    out.teacher_lse = top.lse;
    out.kd_task = dot(kl_logits(logits, top), row_weights(batch, 1, logits));
  }
  if (config_.task) {
    check(student_.shape().causal,
          "losses: on text, task is the prediction of next tokens, which an encoder cannot learn; "
          "set losses.task to 0");
    Tensor target = nn::next_tokens(batch.ids, batch.lengths, call.loss_from).view({B * T});
    int64_t rows = 0;
    for (int64_t r = 0; r < B * T; ++r) rows += target.data<int32_t>()[r] >= 0;
    check(rows > 0, "losses: no token of the batch is predicted");
    Tensor weight = Tensor::full({B * T}, 1 / double(rows), logits.dtype(), logits.device());
    out.task = dot(cross_entropy(logits, target), weight);
  }
  return out;
}

Objective::TaskLosses Objective::text_losses(const Tensor& hidden, const Batch& batch,
                                             const Call& call) const {
  Tensor logits = student_.class_logits(hidden, call.random);  // [B, labels]
  Tensor weight =
      Tensor::full({logits.dim(0)}, 1 / double(logits.dim(0)), logits.dtype(), logits.device());
  TaskLosses out;
  if (config_.kd_task) {
    Tensor theirs = teacher_->class_logits();
    if (batch.scores.defined()) {
      out.kd_task = squared_distance(logits, theirs, weight);
    } else {
      const TopLogits all = top_logits(theirs, 0);
      out.teacher_lse = all.lse;
      out.kd_task = dot(kl_logits(logits, all), weight);
    }
  }
  if (config_.task) {
    out.task =
        batch.scores.defined()
            ? squared_distance(logits, batch.scores.to(logits.dtype()).to(logits.device()), weight)
            : dot(cross_entropy(logits, batch.classes), weight);
  }
  return out;
}

PendingTerms Objective::start(const Batch& batch, const Call& call) {
  bool taught = teacher_ && config_.needs_teacher();
  if (taught) teacher_->begin(batch);
  std::unique_ptr<LayerLosses> layers;
  if (taught && (config_.approx || config_.prob || config_.context || config_.kd)) {
    layers = std::make_unique<LayerLosses>(config_, *teacher_, batch, student_.shape(), call);
  }
  Tensor hidden = student_.hidden({.ids = batch.ids,
                                   .lengths = batch.lengths,
                                   .type_ids = batch.type_ids,
                                   .dials = call.dials,
                                   .observer = layers.get(),
                                   .random = call.random,
                                   .recompute = call.recompute});
  PendingTerms terms;
  Tensor total;
  auto task = [&](const TaskLosses& losses, const char* mean_name, double share) {
    auto add_term = [&](const char* name, const Tensor& value, double weight) {
      if (!value.defined()) return;
      Tensor scaled = scale(value, weight * share);
      terms.push_back({name, scaled.detach()});
      total = total.defined() ? add(total, scaled) : scaled;
    };
    add_term("kd_task", losses.kd_task, config_.kd_task);
    if (losses.teacher_lse.defined()) {
      terms.back().blame = [lse = losses.teacher_lse, batch] { return unsound_row(lse, batch); };
    }
    if (losses.task.defined()) terms.push_back({mean_name, losses.task.detach(), share});
    add_term("task", losses.task, config_.task);
  };
  if (config_.task || config_.kd_task) {
    if (batch.of_task()) {
      task(text_losses(hidden, batch, call), "task_loss", call.text_share);
    } else {
      task(token_losses(hidden, batch, call), "task_nll", call.share);
    }
  }
  if (total.defined()) {
    backward(total, Tensor::full(total.shape(), call.loss_scale, total.dtype(), total.device()));
  } else {
    backward(hidden, Tensor::zeros_like(hidden));  // the losses are attached inside the layers
  }
  if (layers) terms.insert(terms.begin(), layers->terms().begin(), layers->terms().end());
  return terms;
}

void Objective::run(const Batch& batch, const Call& call, LossTerms& terms) {
  read_terms({start(batch, call)}, {}, terms);
}

std::vector<double> read_terms(const std::vector<PendingTerms>& pending,
                               const std::vector<Tensor>& others, LossTerms& terms) {
  std::vector<Tensor> scalars;
  for (const PendingTerms& of_batch : pending) {
    for (const PendingTerm& term : of_batch) scalars.push_back(term.value);
  }
  scalars.insert(scalars.end(), others.begin(), others.end());
  const std::vector<double> values = items(scalars);
  auto next = values.begin();
  for (const PendingTerms& of_batch : pending) {
    LossTerms here;  // over the layers
    for (const PendingTerm& term : of_batch) here[term.name] += *next++ * term.factor;
    for (const auto& [name, value] : here) {
      if (!std::isfinite(value)) throw NonFiniteLoss(name, value, blame_of(of_batch));
      terms[name] += value;
      if (name != "task_nll" && name != "task_loss") terms["loss"] += value;
    }
  }
  return {next, values.end()};
}

}  // namespace brine::distill
