// A pass over one text with an observer of its layers.
#include "distill/maps/text_pass.h"

namespace brine::distill {
namespace {

// Collects a model's layers; its mask recall is counted next to the teacher.
class Observer : public nn::LayerObserver {
 public:
  Observer(const nn::LoadedModel& model, const TextPass& pass)
      : causal_(model.config.shape().causal), collector_(pass) {
    if (!model.model->attention_traits().sparse) return;
    recall_ =
        RecallObserver::make(pass.teacher.empty() ? kSelf : pass.teacher, model, {.k = pass.k});
    recall_->watch = [this](int64_t layer, const nn::Tap& tap, const TeacherLayer& teacher) {
      collector_.add(layer, view_of(tap, attention_of(teacher), causal_));
    };
  }

  void begin(const Batch& batch) {
    if (recall_) recall_->begin(batch);
  }
  void prepare(nn::Tap& tap) const override { request_pictures(tap); }
  Tensor observe(int64_t layer, const nn::Tap& tap, const Tensor& output) override {
    if (recall_) return recall_->observe(layer, tap, output);
    collector_.add(layer, view_of(tap, {.map = {}, .q = tap.get("q"), .k = tap.get("k")}, causal_));
    return {};
  }
  TextAttention take() {
    return collector_.take(recall_ ? recall_->layers() : std::vector<Recall>());
  }

 private:
  bool causal_;
  LayerCollector collector_;
  std::unique_ptr<RecallObserver> recall_;
};

}  // namespace

void LayerCollector::add(int64_t layer, const LayerView& view) {
  maps_.add(layer, view);
  if (pass_.keeps_masks && view.has_mask()) masks_.push_back(view.mask);
}

TextAttention LayerCollector::take(std::vector<Recall> recall) {
  return {maps_.take(), std::move(recall), std::move(masks_)};
}

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

std::vector<std::vector<double>> mask_overlap(const std::vector<FlatCsr>& a,
                                              const std::vector<FlatCsr>& b) {
  check(a.size() == b.size(), "report: masks of ", a.size(), " and of ", b.size(), " layers");
  std::vector<std::vector<double>> out;
  for (size_t layer = 0; layer < a.size(); ++layer) {
    const MaskRows first(a[layer]), second(b[layer]);
    check(first.H == second.H && first.T == second.T, "report: masks of ", first.H, " heads and ",
          first.T, " tokens cannot be compared with those of ", second.H, " and ", second.T);
    std::vector<double> heads;
    for (int64_t h = 0; h < first.H; ++h) {
      int64_t both = 0, all = 0;
      for (int64_t t = 0; t < first.T; ++t) {
        const RowEntries x = first(0, h, t), y = second(0, h, t);
        int64_t i = 0, j = 0, common = 0;  // both are ascending
        while (i < x.count && j < y.count) {
          const int32_t p = x.columns[i], q = y.columns[j];
          common += p == q;
          i += p <= q;
          j += q <= p;
        }
        both += common;
        all += x.count + y.count - common;
      }
      heads.push_back(all ? double(both) / double(all) : 1);
    }
    out.push_back(std::move(heads));
  }
  return out;
}

}  // namespace brine::distill
