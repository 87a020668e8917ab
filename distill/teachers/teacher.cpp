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
  for (const TeacherNeed& need : needs) {
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
  inputs_.assign(1, model_->embed(call_).detach());
}

TeacherLayer OnlineTeacher::layer(int64_t i) {
  NoGrad off;
  run_to(i);
  nn::Tap tap(model_->attention_name());
  Tensor y = model_->layer(i, inputs_[size_t(i)], call_, &tap).detach();
  if (i + 1 == int64_t(inputs_.size())) inputs_.push_back(y);
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
  check(!inputs_.empty(), "teacher: layer ", layer, " was requested before any batch");
  for (int64_t i = int64_t(inputs_.size()) - 1; i < layer; ++i)
    inputs_.push_back(model_->layer(i, inputs_[size_t(i)], call_, nullptr).detach());
}

Tensor OnlineTeacher::last_hidden() {
  run_to(model_->shape().layers);
  return model_->finish(inputs_.back());
}

TopLogits OnlineTeacher::logits() {
  NoGrad off;
  Tensor logits = model_->logits(last_hidden()).detach();
  return top_logits(logits.view({-1, logits.dim(-1)}), top_n_);
}

Tensor OnlineTeacher::class_logits() {
  NoGrad off;
  return model_->class_logits(last_hidden()).detach();
}

Tensor Teacher::class_logits() { throw Error("teacher: has no class logits"); }

}  // namespace brine::distill
