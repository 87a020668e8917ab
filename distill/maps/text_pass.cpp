// A pass over one text with an observer of its layers.
#include "distill/maps/text_pass.h"

namespace brine::distill {
namespace {

// Collects a model's layers; its mask recall is counted next to the teacher.
class Observer : public nn::LayerObserver {
 public:
  Observer(const nn::LoadedModel& model, const TextPass& pass)
      : causal_(model.config.shape().causal), maps_(pass.maps) {
    if (!model.model->attention_traits().sparse) return;
    recall_ =
        RecallObserver::make(pass.teacher.empty() ? kSelf : pass.teacher, model, {.k = pass.k});
    recall_->watch = [this](int64_t layer, const nn::Tap& tap, const TeacherLayer& teacher) {
      maps_.add(layer, view_of(tap, attention_of(teacher), causal_));
    };
  }

  void begin(const Batch& batch) {
    if (recall_) recall_->begin(batch);
  }
  void prepare(nn::Tap& tap) const override { tap.request(nn::kProbabilities); }
  Tensor observe(int64_t layer, const nn::Tap& tap, const Tensor& output) override {
    if (recall_) return recall_->observe(layer, tap, output);
    maps_.add(layer, view_of(tap, {.map = {}, .q = tap.get("q"), .k = tap.get("k")}, causal_));
    return {};
  }
  TextAttention take() {
    return {maps_.take(), recall_ ? recall_->layers() : std::vector<Recall>()};
  }

 private:
  bool causal_;
  MapCollector maps_;
  std::unique_ptr<RecallObserver> recall_;
};

}  // namespace

TextAttention attend_to_text(nn::LoadedModel& model, const TextPass& pass) {
  const int64_t T = int64_t(pass.ids.size());
  const nn::ModelShape shape = model.config.shape();
  check(T > 0, "report: the text has no tokens");
  check(T <= shape.max_positions, "report: ", T, " tokens, but the model has ", shape.max_positions,
        " positions");
  for (const int32_t id : pass.ids) {
    check(id >= 0 && id < shape.vocab_size, "report: token ", id, " is outside the vocabulary of ",
          shape.vocab_size);
  }
  NoGrad off;
  Observer observer(model, pass);
  const Tensor ids = Tensor::from(pass.ids, {1, T});
  observer.begin({.ids = ids, .lengths = {}, .windows = {0}, .tokens = T});
  model.model->hidden({.ids = ids, .options = {.k = pass.k}, .observer = &observer});
  return observer.take();
}

}  // namespace brine::distill
