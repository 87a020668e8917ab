// Mask recall by layer.
#include "distill/evaluation/recall_observer.h"

#include <algorithm>

namespace brine::distill {
namespace {

std::unique_ptr<Teacher> next_to(const nn::LoadedModel& teacher, const nn::LoadedModel& model) {
  const nn::ModelShape t = teacher.config.shape(), m = model.config.shape();
  check(t.layers == m.layers && t.hidden_size == m.hidden_size && t.heads == m.heads &&
            t.head_size() == m.head_size() && t.causal == m.causal,
        "eval: the teacher in ", teacher.directory, " differs in sizes from the model in ",
        model.directory);
  return std::make_unique<OnlineTeacher>(teacher.model);
}

}  // namespace

RecallObserver::RecallObserver(nn::LoadedModel teacher, const nn::LoadedModel& model, int64_t k)
    : RecallObserver(model.config, k, next_to(teacher, model)) {}

RecallObserver::RecallObserver(const nn::ModelConfig& model, int64_t k)
    : RecallObserver(model, k, std::make_unique<SelfTeacher>()) {}

RecallObserver::RecallObserver(const nn::ModelConfig& model, int64_t k,
                               std::unique_ptr<Teacher> source)
    : source_(std::move(source)), causal_(model.shape().causal) {
  const nn::MaskSettings mask = model.method().mask();
  check(mask.k.has_value(), "eval: attention method '", model.attention,
        "' has no mask, so no mask recall");
  // Masks without a mode have the same number of keys in every row and head.
  select_.mode = mask.mode.value_or(SelectMode::per_query);
  default_k_ = *mask.k;
  columns_ = mask.columns.value_or(64);
  layers_.resize(size_t(model.shape().layers));
  restart(k);
}

std::unique_ptr<RecallObserver> RecallObserver::make(const std::string& teacher,
                                                     const nn::LoadedModel& model, int64_t k) {
  if (teacher == kSelf) return std::make_unique<RecallObserver>(model.config, k);
  return std::make_unique<RecallObserver>(nn::load_model(teacher), model, k);
}

void RecallObserver::restart(int64_t k) {
  select_.k = k ? k : default_k_;
  std::fill(layers_.begin(), layers_.end(), distill::Recall());
  seen_ = rows_ = 0;
}

void RecallObserver::begin(const distill::Batch& batch) {
  visible_ = {.causal = causal_, .lengths = batch.lengths};
  for (int64_t b = 0; b < batch.ids.dim(0); ++b) {
    const auto n =
        double(batch.lengths.defined() ? batch.lengths.data<int64_t>()[b] : batch.ids.dim(1));
    seen_ += causal_ ? n * (n + 1) / 2 : n * n;
    rows_ += n;
  }
  source_->begin(batch);
}

Tensor RecallObserver::observe(int64_t layer, const nn::Tap& tap, const Tensor&) {
  source_->observe_student(layer, tap);
  const distill::TeacherLayer t = source_->layer(layer);
  count(layer, tap, t);
  if (watch) watch(layer, tap, t);
  return {};
}

void RecallObserver::count(int64_t layer, const nn::Tap& tap, const TeacherLayer& teacher) {
  layers_[size_t(layer)] +=
      attention_recall(attention_of(teacher), mask_of(tap), columns_, visible_, select_);
}

double RecallObserver::kept_share() const {
  Recall all;
  for (const Recall& layer : layers_)
    if (layer.heads() > 0) all += layer;
  return seen_ > 0 ? all.keys_read() * rows_ / seen_ : 0;
}

std::string RecallObserver::take() {
  std::string part = bytes_of(layers_);
  std::fill(layers_.begin(), layers_.end(), distill::Recall());
  return part;
}

MaskHealth health_of_start(const nn::ModelConfig& model, const nn::RuntimeOptions& options,
                           const std::function<void(const EvaluateCall&)>& evaluate) {
  RecallObserver observer(model, options.k);
  evaluate({.batch_size = 1,
            .max_windows = 1,
            .max_tokens = std::max<int64_t>(2048, 4 * observer.k()),
            .options = options,
            .observer = &observer,
            .before_batch = [&](const Batch& batch) { observer.begin(batch); }});
  return mask_health(observer.layers());
}

}  // namespace brine::distill
