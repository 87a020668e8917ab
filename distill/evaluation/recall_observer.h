// Collects mask recall by layer while a model is evaluated, with its teacher in lockstep.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "distill/evaluation/evaluate.h"
#include "distill/evaluation/health/mask_health.h"
#include "distill/evaluation/recall.h"
#include "distill/inputs/models.h"
#include "distill/teachers/teacher.h"
#include "nn/attention/observer.h"
#include "nn/io/model_io.h"

namespace brine::distill {

class RecallObserver : public nn::LayerObserver, public BatchMeasure {
 public:
  // Throws when the two models differ in layers, heads or head size, or the model has no mask.
  // k = 0: the model's.
  RecallObserver(nn::LoadedModel teacher, const nn::LoadedModel& model, int64_t k = 0);
  // The model's dense attention is the teacher's.
  explicit RecallObserver(const nn::ModelConfig& model, int64_t k = 0);
  // `teacher` is a directory, or kSelf.
  static std::unique_ptr<RecallObserver> make(const std::string& teacher,
                                              const nn::LoadedModel& model, int64_t k = 0);

  int64_t k() const { return select_.k; }
  // Clears the counts; from now on counts for this `k`, as above.
  void restart(int64_t k);
  void begin(const distill::Batch& batch);
  // Is shown every layer with the teacher's, after its recall was counted. Set it before a pass.
  std::function<void(int64_t layer, const nn::Tap& tap, const TeacherLayer& teacher)> watch = {};
  Tensor observe(int64_t layer, const nn::Tap& tap, const Tensor& output) override;
  // The same with the teacher's layer, which its owner asked for.
  void count(int64_t layer, const nn::Tap& tap, const TeacherLayer& teacher);
  // Keys that rows read over those that they see, of the batches since restart().
  double kept_share() const;
  std::string take() override;
  void add(const std::string& part) override { add_bytes(layers_, part); }
  const std::vector<distill::Recall>& layers() const { return layers_; }
  std::vector<MaskRow> rows() const { return mask_rows(layers_); }

 private:
  RecallObserver(const nn::ModelConfig& model, int64_t k, std::unique_ptr<distill::Teacher> source);

  std::unique_ptr<distill::Teacher> source_;
  bool causal_;
  SelectConfig select_;
  int64_t default_k_ = 0, columns_ = 0;  // columns_: K of the best columns
  Visibility visible_;
  double seen_ = 0, rows_ = 0;  // keys that rows see; rows
  std::vector<distill::Recall> layers_;
};

// Mask health at the start of the first window of a text, next to the model's dense attention: of
// 2,048 tokens, or 4 k if that is more, since a whole long window would take many times as long as
// its evaluation. `evaluate` evaluates the text as it is told.
MaskHealth health_of_start(const nn::ModelConfig& model, const nn::RuntimeOptions& options,
                           const std::function<void(const EvaluateCall&)>& evaluate);

}  // namespace brine::distill
