// The losses of docs/method.md section 4.
#include "distill/losses/loss_table.h"

#include "autograd/ops.h"
#include "tensor/functions/top_logits.h"

namespace brine::distill {
namespace {

// 1 / (valid rows * per_row) at valid rows, 0 at padding, of rows first.. of [B T], with the type
// and device of `like`.
Tensor row_weights(const Batch& batch, double per_row, const Tensor& like, int64_t first,
                   int64_t rows) {
  const int64_t T = batch.ids.dim(1);
  const double value = 1 / (double(batch.tokens) * per_row);
  return Tensor::computed({rows}, like.dtype(), like.device(), [&](int64_t r) {
    const int64_t b = (first + r) / T, t = (first + r) % T;
    const bool valid = !batch.lengths.defined() || t < batch.lengths.data<int64_t>()[b];
    return valid ? value : 0;
  });
}

// {KL, MSE} -> kl KL + mse MSE
Tensor attention_term(const LossConfig& config, const Tensor& pair) {
  double values[] = {config.kl, config.mse};
  Tensor weights = Tensor::from(std::span<const double>(values), {2}).to(pair.dtype());
  return dot(pair, weights.to(pair.device()));
}

Tensor approx(const LayerLossCall& call) {
  check(call.student.has("scores"),
        "losses: the student's attention estimates no scores, which the loss approx needs; set "
        "losses.approx to 0");
  const Tensor& scores = call.student.get("scores");  // S [B, H, T, K]
  const TeacherSummary summary =
      teacher_summary({.layer = call.teacher, .visible = call.visible, .columns = scores.dim(-1)});
  if (call.student.has("log_estimate")) {  // its probabilities are widened, not its scores
    const Tensor& logs = call.student.get("log_estimate");
    return attention_term(call.config, approx_loss_of_logs(logs, summary, call.visible));
  }
  return attention_term(call.config, approx_loss(scores, summary, call.visible));
}

Tensor prob(const LayerLossCall& call) {
  const Tensor &q = call.student.get("q"), &k = call.student.get("k");
  return attention_term(call.config, prob_loss(q, k, attention_of(call.teacher), call.visible));
}

Tensor context(const LayerLossCall& call) {
  return call.mean_square(call.student.get("attention_output"),
                          call.of_teacher("attention_output"));
}

Tensor kd(const LayerLossCall& call) {
  return call.mean_square(call.output, call.of_teacher("output"));
}

HeadLoss kd_task_of_tokens(const HeadLossCall& call) {
  const TopLogits top = call.teacher->logits(call.first, call.logits.dim(0));
  return {.value = call.mean_of_tokens(kl_logits(call.logits, top)), .teacher_lse = top.lse};
}

Tensor mean_of_texts(const Tensor& logits) {
  return Tensor::full({logits.dim(0)}, 1 / double(logits.dim(0)), logits.dtype(), logits.device());
}

HeadLoss kd_task_of_texts(const HeadLossCall& call) {
  const Tensor weight = mean_of_texts(call.logits), given = call.teacher->class_logits();
  if (call.batch.scores.defined()) return {.value = squared_distance(call.logits, given, weight)};
  const TopLogits all = top_logits(given, 0);
  return {.value = dot(kl_logits(call.logits, all), weight), .teacher_lse = all.lse};
}

HeadLoss task_of_tokens(const HeadLossCall& call) {
  const Batch& batch = call.batch;
  const Tensor& logits = call.logits;
  check(call.student.shape().causal,
        "losses: on text, task is the prediction of next tokens, which an encoder cannot learn; "
        "set losses.task to 0");
  const int64_t R = logits.dim(0);
  const Tensor targets = nn::next_tokens(batch.ids, batch.lengths, call.loss_from).view({-1});
  int64_t rows = 0;
  for (int64_t r = 0; r < targets.numel(); ++r) rows += targets.data<int32_t>()[r] >= 0;
  check(rows > 0, "losses: no token of the batch is predicted");
  const Tensor weight = Tensor::full({R}, 1 / double(rows), logits.dtype(), logits.device());
  return {.value = dot(cross_entropy(logits, targets.slice(0, call.first, R)), weight),
          .mean = "task_nll"};
}

HeadLoss task_of_texts(const HeadLossCall& call) {
  const Tensor &logits = call.logits, &scores = call.batch.scores;
  const Tensor weight = mean_of_texts(logits);
  if (!scores.defined())
    return {.value = dot(cross_entropy(logits, call.batch.classes), weight), .mean = "task_loss"};
  const Tensor wanted = scores.to(logits.dtype()).to(logits.device());
  return {.value = squared_distance(logits, wanted, weight), .mean = "task_loss"};
}

std::vector<Loss> table() {
  namespace p = data::part;
  return {
      {.name = "approx",
       .help = "Weight of L_approx: the widened estimate against the teacher",
       .weight = 1,
       .needs = {p::pooled},
       .layer = approx},
      {.name = "prob",
       .help = "Weight of L_prob: dense student attention against the teacher",
       .weight = 1,
       .needs = {p::attention},
       .layer = prob},
      {.name = "context",
       .help = "Weight of L_context: attention outputs",
       .weight = 1,
       .needs = {p::attention_outputs},
       .layer = context},
      {.name = "kd",
       .help = "Weight of L_kd: layer outputs",
       .weight = 5,
       .needs = {p::layer_outputs},
       .layer = kd},
      {.name = "kd_task",
       .help = "Weight of L_kd_task: KL of the logits (of a regression: squared distance)",
       .weight = 0.2,
       .needs = {p::logits},
       .tokens = kd_task_of_tokens,
       .texts = kd_task_of_texts},
      {.name = "task",
       .help = "Weight of L_task: next-token prediction, or the labels of a task",
       .weight = 0.1,
       .tokens = task_of_tokens,
       .texts = task_of_texts},
  };
}

}  // namespace

const Tensor& LayerLossCall::of_teacher(const std::string& name, int64_t columns) const {
  return teacher_tensor({.layer = teacher, .visible = visible, .columns = columns}, name);
}

Tensor LayerLossCall::mean_square(const Tensor& x, const Tensor& y) const {
  return squared_distance(x, y, row_weights(batch, double(x.dim(-1)), x, 0, x.rows()));
}

Tensor HeadLossCall::mean_of_tokens(const Tensor& x) const {
  return dot(x, row_weights(batch, 1, logits, first, x.numel()));
}

const std::vector<Loss>& losses() {
  static const std::vector<Loss> all = table();
  return all;
}

}  // namespace brine::distill
