// The training loop, for teachers and students, with or without a teacher.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/checkpoint/checkpoint.h"
#include "data/safetensors/safetensors.h"
#include "data/tokenizer/tokenizer.h"
#include "distill/evaluation/evaluate.h"
#include "distill/evaluation/health/mask_health.h"
#include "distill/evaluation/recall_observer.h"
#include "distill/log/log.h"
#include "distill/losses/losses.h"
#include "nn/models/model.h"
#include "nn/models/model_config.h"
#include "nn/optim/optimizer.h"
#include "nn/optim/parameter_store.h"
#include "tensor/comm/slot_tree.h"

namespace brine::distill {

struct TrainerConfig {
  int64_t first_step = 0;  // the number of the step before the first one; steps are numbered on
                           // from it, and `steps` and the schedule count from it
  int64_t steps = 1000;
  // 0 = no limit; the schedule follows the limit that is reached first. Empty: none, or that
  // of a resumed run.
  std::optional<double> max_seconds = {};
  int64_t batch_size = 8;
  int64_t accumulate = 1;
  int64_t loss_from = 0;
  bool recompute = false;
  int64_t eval_every = 0, eval_windows = 0;
  int64_t save_every = 0, keep = 2;
  bool keep_moments = true;  // of the optimizer, in the checkpoint of a finished run
  nn::OptimizerConfig optimizer;
  nn::ScheduleConfig schedule;

  // The keys without those that depend on the run (distill/runs/settings/training_settings.h).
  void describe(data::Schema& schema);
};

// What a run trains and how; it must outlive the trainer.
struct TrainerParts {
  nn::ModelConfig config = {};
  std::shared_ptr<nn::Model> model = {};
  std::unique_ptr<nn::ParameterStore> store = {};
  std::shared_ptr<Teacher> teacher = {};  // null when no loss needs one
  std::unique_ptr<data::Tokenizer> tokenizer = {};
  std::unique_ptr<BatchSource> train = {};
  std::unique_ptr<WindowSource> valid = {};
  std::function<Values()> evaluation = {};  // besides `valid`: the metrics of a task, or of a stage
  LossConfig losses = {};
  std::unique_ptr<StepObjective> objective = {};  // null: `losses`
  nn::ParameterPlanner plan = {};                 // of rates and clipping; empty: as in Adamw
  std::string stage = {};  // of a distillation, for the checkpoint; empty: none
  TrainerConfig trainer = {};
};

// Where a trainer runs.
struct TrainerHost {
  std::string run_dir;
  std::string configuration;  // of the run as JSON; resume() compares it (changed_settings)
  uint64_t seed = 1;
  std::function<std::string()> stop = {};  // called before every step: the reason to stop, empty =
                                           // continue
  std::function<double()> seconds = {};    // a clock; empty: the machine's steady one
  // The processes that share the work; null: this one alone. All have the same parts. The first
  // one writes, evaluates and keeps the time.
  Communicator* ranks = nullptr;
};

struct TrainOutcome {
  int64_t steps = 0, tokens = 0;
  double seconds = 0;  // of training steps, without evaluation and saving
  bool interrupted = false;
  LossTerms last;  // terms of the last step
};

class Trainer {
 public:
  Trainer(TrainerParts& parts, TrainerHost host);

  // Loads the newest intact checkpoint of the run directory; returns why newer ones were skipped.
  // Throws when there is none, or when the configuration differs, listing the differences.
  std::vector<std::string> resume();
  // Trains until the steps or the seconds are used up or stop() gives a reason, saves and returns.
  // The log is null on every rank but the first.
  TrainOutcome run(RunLog* log);

  int64_t step() const { return step_; }
  double max_seconds() const { return config_.max_seconds.value_or(0); }  // 0: no limit
  // The steps or the seconds are used up: run() would only evaluate.
  bool finished() const;

 private:
  // The mask of the first micro-batch is counted if `recall` is not null.
  LossTerms train_step(RecallObserver* recall);
  Values mask_values() const;     // k, columns, recall, kept_share
  void plan_ahead(int64_t step);  // announces the batches from this step on to the
                                  // teacher
  int64_t done_steps() const { return step_ - config_.first_step; }
  double progress() const;
  // The micro-batches of a step are its slots. Each has separate random numbers and a separate
  // gradient; each rank computes some of them.
  RandomStream random_of(int64_t slot) const;
  std::vector<Batch> read_batches(int64_t& tokens, std::vector<double>& shares);
  // Gradients and terms over the slots of all ranks; returns the sums of squares by part.
  std::vector<double> sum_slots(SlotSum& sum, const std::vector<PendingTerms>& pending,
                                LossTerms& terms);
  std::string stop_reason();  // of the first rank that has one
  void share_time();
  void load_moments(const data::Path& file);
  void save(RunLog* log);
  void write_checkpoint(RunLog& log);
  void evaluate_now(RunLog* log);
  void wait_for_first(const std::string& what);  // while it writes or evaluates
  MaskHealth mask_health_now();

  TrainerParts& parts_;
  TrainerConfig& config_;
  TrainerHost host_;
  std::unique_ptr<Objective> losses_;  // unless the parts have an objective
  StepObjective& objective_;
  std::unique_ptr<RecallObserver> recall_;  // null without a mask and a teacher
  SelfCommunicator alone_;
  Communicator& ranks_;
  nn::Adamw optimizer_;
  SlotRange slots_;  // the slots of this rank
  int64_t step_ = 0, saved_step_ = -1, tokens_ = 0;
  double seconds_ = 0;
};

// The configuration differs from that of the run's checkpoint: one line per key.
struct ChangedConfiguration : Error {
  using Error::Error;
};
void check_configuration(const std::string& run_dir, data::Json before, data::Json now);

// The files of a checkpoint without an optimizer's moments; `state` becomes trainer.json.
std::vector<data::CheckpointFile> checkpoint_files(TrainerParts& parts, const data::Json& state);

// Sets the parameters of the store and the buffers. Other parameters are constants, whose memory
// may be another model's: the file must have the same bits. Throws for missing and unknown tensors,
// unless `may_be_missing`.
void load_weights(const data::Safetensors& file, nn::Model& model, const nn::ParameterStore& store,
                  const std::function<bool(const std::string&)>& may_be_missing = {});

}  // namespace brine::distill
