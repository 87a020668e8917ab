// The online teacher.
#include "distill/teachers/teacher.h"

#include "tensor/top_logits.h"

namespace brine::distill {

OnlineTeacher::OnlineTeacher(std::shared_ptr<nn::Model> model, int64_t top_n)
    : model_(std::move(model)), top_n_(top_n) {}

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
  out.attention.q = tap.get("q").detach();
  out.attention.k = tap.get("k").detach();
  out.context = tap.get("context").detach();
  out.output = y;
  return out;
}

void OnlineTeacher::run_to(int64_t layer) {
  check(!inputs_.empty(), "teacher: layer ", layer, " was asked for before any batch");
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

Tensor Teacher::class_logits() { throw Error("teacher: gives no logits of classes"); }

}  // namespace brine::distill
