// The online teacher.
#include "distill/teachers/teacher.h"

#include "tensor/functions/top_logits.h"

namespace brine::distill {

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
  while_running_.clear();
  needs_layers_ = false;
  for (const TeacherNeed& need : needs) {
    needs_layers_ |= need.part != data::part::logits && need.part != data::part::classes;
    bool runs = false;  // whether it is computed from the Tap
    const auto sources = sources_of(need.part, [&](const std::string& part) {
      namespace p = data::part;
      runs |= part == kRunningModel;
      return part == p::attention || part == p::values || part == p::attention_outputs ||
             part == p::layer_outputs || part == p::logits || part == p::classes ||
             part == kRunningModel;
    });
    check(!sources.empty(), "teacher: has no ", need.part, ", which ", need.who());
    for (const data::TeacherTensor* tensor : data::teacher_tensors())
      if (runs && tensor->part == need.part) while_running_.push_back(tensor->name);
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
  nn::Tap tap(model_->attention_name());
  const Tensor y = model_->layer(i, next ? x_ : kept_.at(i), call_, &tap).detach();
  kept_.erase(i);
  if (next) {
    x_ = y;
    ++reached_;
  }
  TeacherLayer out;
  out["query"] = tap.get("q").detach();
  out["key"] = tap.get("k").detach();
  out["value"] = tap.get("v").detach();
  out["attention_output"] = tap.get("attention_output").detach();
  out["output"] = y;
  const TeacherView view{.layer = out,
                         .visible = {.causal = model_->shape().causal, .lengths = call_.lengths},
                         .tap = &tap};
  for (const std::string& name : while_running_) teacher_tensor(view, name);
  return out;
}

void OnlineTeacher::run_to(int64_t layer) {
  check(x_.defined(), "teacher: layer ", layer, " was requested before any batch");
  for (; reached_ < layer; ++reached_) {
    if (needs_layers_) kept_[reached_] = x_;
    x_ = model_->layer(reached_, x_, call_, nullptr).detach();
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

}  // namespace brine::distill
