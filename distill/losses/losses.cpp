// Evaluation of the losses: layer losses inside the layers, logits losses at the end, one backward
// pass.
#include "distill/losses/losses.h"

#include <algorithm>
#include <cmath>

#include "autograd/compute_type.h"
#include "distill/losses/loss_table.h"
#include "tensor/functions/transfer.h"

namespace brine::distill {
namespace {

// The first row of the teacher's logits that is not finite, from their log-sum-exps [rows] by token
// or by text; "" when all are finite.
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

std::string cause_of(const PendingTerms& terms) {
  for (const PendingTerm& term : terms) {
    std::string cause = term.cause ? term.cause() : "";
    if (!cause.empty()) return cause;
  }
  return "";
}

// Whether a loss of that kind has a nonzero weight.
template <class F>
bool weighs(const LossConfig& config, F is_kind) {
  return std::any_of(losses().begin(), losses().end(),
                     [&](const Loss& loss) { return is_kind(loss) && config[loss.name] != 0; });
}

// Collects the terms of all layers; the sum of each layer is attached to the layer's output.
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
        watch_(call.watch),
        twice_(call.recompute) {
    auto attention = [](const std::string& part) { return part == data::part::attention; };
    for (const TeacherNeed& need : config.needs())
      takes_attention_ |= !source_of(need.part, attention).empty();
  }

  void prepare(nn::Tap& tap) const override {
    if (config_["approx"] != 0) tap.request("scores");
    // The keys of a mask of blocks take more memory than the layer: only who watches needs them.
    if (!watch_) tap.request("kept_keys");
  }

  Tensor observe(int64_t i, const nn::Tap& tap, const Tensor& output) override {
    // With recomputation a layer runs twice; its losses are computed in the run with a tape.
    if (twice_ && !grad_enabled()) return {};
    teacher_.observe_student(i, tap);
    TeacherLayer t = teacher_.layer(i);
    if (takes_attention_ && t.has("query")) {
      // Rounded as flash_attention() rounds them: a teacher in 16 bits attends in this way.
      const ProductInput rounded{product_type(t["query"].dtype())};
      t["query"] = rounded(t["query"]), t["key"] = rounded(t["key"]);
    }
    if (watch_) watch_(i, tap, t);
    const LayerLossCall call{.config = config_,
                             .student = tap,
                             .output = output,
                             .teacher = t,
                             .batch = batch_,
                             .visible = {.causal = causal_, .lengths = batch_.lengths}};
    for (const Loss& loss : losses()) {
      if (loss.layer && config_[loss.name])
        add_term(loss.name, loss.layer(call), config_[loss.name]);
    }
    return std::exchange(sum_, Tensor());
  }

  // Valid when all layers are done; with recomputation, after the backward pass.
  const PendingTerms& terms() const { return terms_; }

 private:
  void add_term(const std::string& name, const Tensor& value, double weight) {
    Tensor scaled = scale(value, weight * share_ / double(layers_));
    // Sums over the layers go from the first to the last; recomputation starts with the last.
    terms_.insert(twice_ ? terms_.begin() : terms_.end(), {name, scaled.detach()});
    sum_ = sum_.defined() ? add(sum_, scaled) : scaled;
  }

  const LossConfig& config_;
  Teacher& teacher_;
  const Batch& batch_;
  int64_t layers_;
  bool causal_;
  double share_;
  const decltype(Objective::Call::watch)& watch_;
  bool twice_, takes_attention_ = false;
  Tensor sum_;
  PendingTerms terms_;
};

// A loss of the logits, summed over their rows.
struct HeadSum {
  const Loss& loss;
  const std::function<HeadLoss(const HeadLossCall&)>& function;
  std::string mean = {};
  Tensor value = {}, scaled = {}, teacher_lse = {};

  // Returns the weighted value of these rows, which is differentiated.
  Tensor add(const HeadLoss& part, double weight, int64_t first, int64_t rows) {
    const Tensor weighted = scale(part.value, weight);
    auto sum_up = [](Tensor& sum, const Tensor& x) {
      sum = sum.defined() ? brine::add(sum, x.detach()) : x.detach();
    };
    mean = part.mean;
    sum_up(value, part.value);
    sum_up(scaled, weighted);
    const Tensor& lse = part.teacher_lse;
    if (lse.defined()) {
      if (!teacher_lse.defined()) teacher_lse = Tensor::empty({rows}, lse.dtype(), lse.device());
      copy_into(teacher_lse.slice(0, first, lse.numel()), lse);
    }
    return weighted;
  }
};

size_t index_of(std::string_view name) {
  const std::vector<Loss>& all = losses();
  auto it = std::find_if(all.begin(), all.end(), [&](const Loss& l) { return l.name == name; });
  check(it != all.end(), "losses: unknown loss '", name, "'");
  return size_t(it - all.begin());
}

}  // namespace

LossConfig::LossConfig() {
  for (const Loss& loss : losses()) weights_.push_back(loss.weight);
}

double& LossConfig::operator[](std::string_view loss) { return weights_[index_of(loss)]; }
double LossConfig::operator[](std::string_view loss) const { return weights_[index_of(loss)]; }

TeacherNeeds LossConfig::needs() const {
  TeacherNeeds needs;
  for (size_t i = 0; i < losses().size(); ++i) {
    if (weights_[i] == 0) continue;
    for (const std::string& part : losses()[i].needs) {
      auto it = std::ranges::find(needs, part, &TeacherNeed::part);
      if (it == needs.end()) it = needs.insert(needs.end(), {part, {}});
      it->losses.push_back(losses()[i].name);
    }
  }
  return needs;
}

LossConfig task_only() {
  LossConfig c;
  for (const Loss& loss : losses()) c[loss.name] = 0;
  c["task"] = 1;
  return c;
}

Objective::Objective(nn::Model& student, Teacher* teacher, const LossConfig& config)
    : student_(student), teacher_(teacher), config_(config) {
  check(teacher || !config.needs_teacher(), "losses: a loss with a weight needs a teacher");
  check(weighs(config, [](const Loss&) { return true; }), "losses: every weight is 0");
  if (teacher && config.needs_teacher()) teacher->require(config.needs());
}

PendingTerms Objective::head_terms(const Tensor& hidden, const Batch& batch, const Call& call,
                                   Tensor& gradient) const {
  const bool by_text = batch.of_task();
  const double share = by_text ? call.text_share : call.share;
  const Tensor x = by_text ? hidden.detach() : hidden.detach().view({-1, hidden.dim(-1)});
  const int64_t rows = x.dim(0),
                tokens = call.logit_rows ? call.logit_rows : student_.rows_of_logits(),
                step = by_text ? rows : std::min(tokens, rows);
  if (wants_grad(hidden)) gradient = Tensor::zeros(x.shape(), x.dtype(), x.device());
  std::vector<HeadSum> sums;
  for (const Loss& loss : losses()) {
    const auto& function = by_text ? loss.texts : loss.tokens;
    if (function && config_[loss.name]) sums.push_back({.loss = loss, .function = function});
  }
  // Logits of a long text are larger than everything else of a step. Those of some rows exist at a
  // time: their losses are differentiated down to `hidden` at once.
  for (int64_t first = 0; first < rows; first += step) {
    const int64_t n = std::min(step, rows - first);
    Tensor part = x.slice(0, first, n), total;
    if (gradient.defined()) part = require_grad(part, gradient.slice(0, first, n));
    {
      const Tensor logits = by_text ? student_.class_logits(part, call.random)  // [B, labels]
                                    : student_.logits(part);
      const HeadLossCall head{.student = student_,
                              .logits = logits,
                              .teacher = teacher_,
                              .batch = batch,
                              .loss_from = call.loss_from,
                              .first = by_text ? 0 : first};
      for (HeadSum& sum : sums) {
        const Tensor scaled =
            sum.add(sum.function(head), config_[sum.loss.name] * share, first, rows);
        total = total.defined() ? add(total, scaled) : scaled;
      }
    }
    backward(total);
  }
  if (gradient.defined()) gradient = gradient.view(hidden.shape());
  PendingTerms terms;
  for (const HeadSum& sum : sums) {
    if (!sum.mean.empty())
      terms.push_back({.name = sum.mean, .value = sum.value, .factor = share, .in_sum = false});
    terms.push_back({.name = sum.loss.name, .value = sum.scaled});
    if (sum.teacher_lse.defined())
      terms.back().cause = [lse = sum.teacher_lse, batch] { return unsound_row(lse, batch); };
  }
  return terms;
}

PendingTerms Objective::accumulate(const Batch& batch, const Call& call) {
  const bool taught = teacher_ && config_.needs_teacher();
  if (taught) teacher_->begin(batch);
  std::unique_ptr<LayerLosses> layers;
  if (taught && weighs(config_, [](const Loss& loss) { return bool(loss.layer); }))
    layers = std::make_unique<LayerLosses>(config_, *teacher_, batch, student_.shape(), call);
  Tensor hidden = student_.hidden({.ids = batch.ids,
                                   .lengths = batch.lengths,
                                   .type_ids = batch.type_ids,
                                   .options = call.options,
                                   .observer = layers.get(),
                                   .random = call.random,
                                   .aux_loss_weight = call.share / double(student_.shape().layers),
                                   .recompute = call.recompute});
  auto ended = [&](const char* part) {
    if (call.ended) call.ended(part);
  };
  ended("forward pass");
  PendingTerms terms;
  Tensor gradient;
  const bool has_head = weighs(config_, [](const Loss& loss) { return loss.tokens || loss.texts; });
  if (has_head)
    terms = head_terms(hidden, batch, call, gradient);
  else  // the losses are attached inside the layers
    gradient = Tensor::zeros_like(hidden);
  ended("logits");
  if (gradient.defined()) backward(hidden, gradient);
  ended("backward pass");
  if (layers) terms.insert(terms.begin(), layers->terms().begin(), layers->terms().end());
  return terms;
}

void Objective::run(const Batch& batch, const Call& call, LossTerms& terms) {
  read_terms({accumulate(batch, call)}, {}, terms);
}

std::vector<double> read_slots(const std::vector<PendingTerms>& pending,
                               const std::vector<Tensor>& others, std::vector<SlotTerms>& slots) {
  std::vector<Tensor> scalars;
  for (const PendingTerms& of_batch : pending) {
    for (const PendingTerm& term : of_batch) scalars.push_back(term.value);
  }
  scalars.insert(scalars.end(), others.begin(), others.end());
  const std::vector<double> values = items(scalars);
  auto next = values.begin();
  for (const PendingTerms& of_batch : pending) {
    SlotTerms slot;
    for (const PendingTerm& term : of_batch) {
      SlotTerms::Value& here = slot.values[term.name];
      here.value += *next++ * term.factor;
      if (!term.in_sum) here.in_sum = false;
    }
    const bool finite = std::all_of(slot.values.begin(), slot.values.end(), [](const auto& named) {
      return std::isfinite(named.second.value);
    });
    if (!finite) slot.cause = cause_of(of_batch);
    slots.push_back(std::move(slot));
  }
  return {next, values.end()};
}

void add_slots(const std::vector<SlotTerms>& slots, LossTerms& terms) {
  for (const SlotTerms& slot : slots) {
    for (const auto& [name, here] : slot.values) {
      if (!std::isfinite(here.value)) throw NonFiniteLoss(name, here.value, slot.cause);
      terms[name] += here.value;
      if (here.in_sum) terms["loss"] += here.value;
    }
  }
}

std::vector<double> read_terms(const std::vector<PendingTerms>& pending,
                               const std::vector<Tensor>& others, LossTerms& terms) {
  std::vector<SlotTerms> slots;
  std::vector<double> read = read_slots(pending, others, slots);
  add_slots(slots, terms);
  return read;
}

}  // namespace brine::distill
