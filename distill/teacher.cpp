// The online teacher.
#include "distill/teacher.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tensor/parallel.h"

namespace brine::distill {

TopLogits top_logits(const Tensor& logits, int64_t n) {
  int64_t R = logits.rows(), V = logits.dim(-1);
  TopLogits top;
  top.lse = Tensor::empty({R}, logits.dtype());
  Tensor unused = Tensor::empty({R}, logits.dtype());
  Tensor nowhere = Tensor::full({R}, -1, Dtype::i32);
  BRINE_CALL(logits, cross_entropy, unused, top.lse, logits, nowhere);
  if (n <= 0 || n >= V) {
    top.values = logits.view({R, V});
    return top;
  }
  top.values = Tensor::empty({R, n}, logits.dtype());
  top.ids = Tensor::empty({R, n}, Dtype::i32);
  dispatch_float(logits.dtype(), [&]<class T>() {
    parallel_for(R, 16, [&](int64_t begin, int64_t end) {
      std::vector<int32_t> ids(static_cast<size_t>(V));
      for (int64_t r = begin; r < end; ++r) {
        const T* row = logits.data<T>() + r * V;
        std::iota(ids.begin(), ids.end(), 0);
        auto larger = [row](int32_t a, int32_t b) {
          return row[a] != row[b] ? row[a] > row[b] : a < b;
        };
        std::nth_element(ids.begin(), ids.begin() + n - 1, ids.end(), larger);
        std::sort(ids.begin(), ids.begin() + n, larger);
        for (int64_t i = 0; i < n; ++i) {
          top.ids.data<int32_t>()[r * n + i] = ids[size_t(i)];
          top.values.data<T>()[r * n + i] = row[ids[size_t(i)]];
        }
      }
    });
  });
  return top;
}

OnlineTeacher::OnlineTeacher(std::shared_ptr<nn::OptModel> model, int64_t top_n)
    : model_(std::move(model)), top_n_(top_n) {}

void OnlineTeacher::begin(const Batch& batch) {
  NoGrad off;
  call_ = {};
  call_.ids = batch.ids;
  call_.lengths = batch.lengths;
  inputs_.assign(1, model_->embed(call_).detach());
}

TeacherLayer OnlineTeacher::layer(int64_t i) {
  NoGrad off;
  check(i < int64_t(inputs_.size()), "teacher: layer ", i, " was asked before layer ", i - 1);
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

TopLogits OnlineTeacher::logits() {
  NoGrad off;
  for (int64_t i = int64_t(inputs_.size()) - 1; i < model_->config().num_hidden_layers; ++i) layer(i);
  Tensor logits = model_->logits(model_->finish(inputs_.back())).detach();
  return top_logits(logits.view({-1, logits.dim(-1)}), top_n_);
}

}  // namespace brine::distill
