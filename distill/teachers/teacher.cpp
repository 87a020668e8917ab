// The teacher that runs beside the student, the tensors computed of a layer, and a teacher's
// massive activations.
#include "distill/teachers/teacher.h"

#include <algorithm>
#include <cmath>

#include "tensor/functions/top_logits.h"

namespace brine::distill {

namespace {

// softmax(q k^T / sqrt(d)) over the visible keys.
void compute_map(const TeacherView& view) {
  const Tensor &q = view.layer["query"], &k = view.layer["key"];
  check(q.defined() && k.defined(), "teacher: a map of attention needs query and key");
  const Tensor scores = matmul(q, k, false, true);
  view.layer["attention"] = softmax(scores, 1 / std::sqrt(double(q.dim(-1))), view.visible);
}

void compute_pooled(const TeacherView& view) {
  check(view.columns > 0, "teacher: pooled attention needs the number of columns");
  const TeacherSummary s = summarize_teacher(attention_of(view.layer), view.columns, view.visible);
  view.layer["tau"] = s.tau;
  view.layer["t_log_t"] = s.t_log_t;
  view.layer["t_square"] = s.t_square;
}

}  // namespace

TeacherAttention attention_of(const TeacherLayer& layer) {
  return {.map = layer["attention"], .q = layer["query"], .k = layer["key"]};
}

const Tensor& teacher_tensor(const TeacherView& view, const std::string& name) {
  if (!view.layer.has(name)) {
    NoGrad off;
    if (name == "attention") compute_map(view);
    if (data::find_teacher_tensor(name)->part == data::part::pooled) compute_pooled(view);
    check(view.layer.has(name), "teacher: has no ", name, ", and it cannot be computed");
  }
  return view.layer[name];
}

TeacherSummary teacher_summary(const TeacherView& view) {
  const Tensor& tau = teacher_tensor(view, "tau");
  check(tau.dim(-1) == view.columns, "losses: the teacher's attention is pooled into ", tau.dim(-1),
        " columns, the student has ", view.columns);
  return {tau, teacher_tensor(view, "t_log_t"), teacher_tensor(view, "t_square")};
}

std::string computed_from(const std::string& part) {
  return part == data::part::pooled ? data::part::attention : "";
}

std::string source_of(const std::string& part, const std::function<bool(const std::string&)>& has) {
  return has(part) ? part : has(computed_from(part)) ? computed_from(part) : "";
}

OnlineTeacher::OnlineTeacher(std::shared_ptr<nn::Model> model, int64_t top_n)
    : model_(std::move(model)), top_n_(top_n) {}

std::string TeacherNeed::who() const {
  std::string names;
  for (size_t i = 0; i < losses.size(); ++i) {
    names += i == 0 ? "" : i + 1 == losses.size() ? " and " : ", ";
    names += losses[i];
  }
  return losses.size() == 1 ? "the loss " + names + " needs" : "the losses " + names + " need";
}

void OnlineTeacher::require(const TeacherNeeds& needs) {
  namespace p = data::part;
  needs_layers_ = needs_inner_ = false;
  for (const TeacherNeed& need : needs) {
    const bool of_layer = need.part != p::logits && need.part != p::classes;
    needs_layers_ |= of_layer;
    needs_inner_ |= of_layer && need.part != p::layer_outputs;
    const std::string source = source_of(need.part, [](const std::string& part) {
      return part == p::attention || part == p::values || part == p::attention_outputs ||
             part == p::layer_outputs || part == p::logits || part == p::classes;
    });
    check(!source.empty(), "teacher: has no ", need.part, ", which ", need.who());
  }
}

void OnlineTeacher::begin(const Batch& batch) {
  NoGrad off;
  call_ = nn::pack_rows({.ids = batch.ids, .lengths = batch.lengths, .type_ids = batch.type_ids});
  x_ = model_->embed(call_).detach();
  reached_ = 0;
  kept_.clear();
  finished_ = {};
}

TeacherLayer OnlineTeacher::layer(int64_t i) {
  NoGrad off;
  if (i >= reached_) run_to(i);
  const bool next = i == reached_;
  check(next || kept_.contains(i), "teacher: layer ", i, " was requested after layer ",
        reached_ - 1, ", or twice");
  TeacherLayer out;
  if (!next && !needs_inner_) {
    out["output"] = kept_.extract(i).mapped();
    return out;
  }
  nn::Tap tap(model_->attention_name());
  const Tensor y = model_->layer(i, next ? x_ : kept_.at(i), call_, &tap).detach();
  kept_.erase(i);
  if (next) {
    x_ = y;
    ++reached_;
  }
  out["query"] = tap.get("q").detach();
  out["key"] = tap.get("k").detach();
  out["value"] = tap.get("v").detach();
  out["attention_output"] = tap.get("attention_output").detach();
  out["output"] = y;
  return out;
}

void OnlineTeacher::run_to(int64_t layer) {
  check(x_.defined(), "teacher: layer ", layer, " was requested before any batch");
  for (; reached_ < layer; ++reached_) {
    const Tensor input = x_;
    x_ = model_->layer(reached_, input, call_, nullptr).detach();
    if (needs_layers_) kept_[reached_] = needs_inner_ ? input : x_;
  }
}

const Tensor& OnlineTeacher::last_hidden() {
  if (!finished_.defined()) {
    run_to(model_->shape().layers);
    finished_ = model_->finish(x_).detach();
  }
  return finished_;
}

TopLogits OnlineTeacher::logits(int64_t first, int64_t rows) {
  NoGrad off;
  const Tensor& hidden = last_hidden();
  const Tensor part = hidden.view({-1, hidden.dim(-1)}).slice(0, first, rows);
  return top_logits(model_->logits(part).detach(), top_n_);
}

Tensor OnlineTeacher::class_logits() {
  NoGrad off;
  return model_->class_logits(last_hidden()).detach();
}

Tensor Teacher::class_logits() { throw Error("teacher: has no class logits"); }

void SelfTeacher::require(const TeacherNeeds& needs) {
  auto has = [](const std::string& part) { return part == data::part::attention; };
  for (const TeacherNeed& need : needs) {
    check(!source_of(need.part, has).empty(), "teacher: 'self' has no ", need.part,
          " of its own; set losses.", need.losses.empty() ? "" : need.losses[0], " to 0");
  }
}

void SelfTeacher::observe_student(int64_t layer, const nn::Tap& student) {
  layer_ = layer;
  student_ = {};
  student_["query"] = student.get("q").detach();
  student_["key"] = student.get("k").detach();
}

TeacherLayer SelfTeacher::layer(int64_t i) {
  check(i == layer_, "teacher: 'self' has only the layer that runs, ", layer_, ", not ", i);
  return student_;
}

TopLogits SelfTeacher::logits(int64_t, int64_t) {
  throw Error("teacher: 'self' has no logits of its own");
}

namespace {

// Of the output [1, T, C] of a layer.
MassiveActivation largest_of(const Tensor& output, int64_t layer) {
  const int64_t T = output.dim(1), C = output.dim(2);
  const std::vector<double> x = output.to(Device{}).to_vector();
  MassiveActivation out{.layer = layer};
  double first = 0, others = 0;
  for (int64_t i = 0; i < T * C; ++i) (i < C ? first : others) += x[size_t(i)] * x[size_t(i)];
  for (int64_t i = 0; i < C; ++i) {
    if (std::abs(x[size_t(i)]) <= std::abs(out.value)) continue;
    out.feature = i;
    out.value = x[size_t(i)];
  }
  out.usual = std::sqrt(others / double((T - 1) * C));
  out.share = first / std::max(first + others, 1e-300);
  return out;
}

}  // namespace

std::string MassiveActivation::text() const {
  auto rounded = [](double v) { return std::round(v * 100) / 100; };
  return join("feature ", feature, " of the first token is ", rounded(value), " in layer ", layer,
              ", the other tokens' are about ", rounded(usual));
}

std::optional<MassiveActivation> massive_activation(nn::Model& teacher) {
  constexpr int64_t kTokens = 64;
  const nn::ModelShape& shape = teacher.shape();
  const int64_t T = std::min(kTokens, shape.max_positions);
  if (!shape.causal || T < 2) return std::nullopt;
  NoGrad off;
  // The first token has them whatever the text is.
  nn::ModelCall call{.ids = Tensor::empty({1, T}, Dtype::i32)};
  for (int64_t i = 0; i < T; ++i)
    call.ids.data<int32_t>()[i] = int32_t((i + 1) * 7919 % shape.vocab_size);
  MassiveActivation largest;
  Tensor x = teacher.embed(call);
  for (int64_t i = 0; i < shape.layers; ++i) {
    x = teacher.layer(i, x, call, nullptr).detach();
    const MassiveActivation here = largest_of(x, i);
    if (here.share > largest.share) largest = here;
  }
  if (largest.share <= 0.5) return std::nullopt;
  return largest;
}

}  // namespace brine::distill
