// A conversion in stages: a pretrained model becomes a student with another attention method, first
// with the base frozen, each layer by itself (a method that calibrates is not trained), then, if
// requested, all together on the student's activations.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "distill/batches/mixed_source.h"
#include "distill/runs/settings/recipe.h"
#include "distill/runs/stages/attention_stage.h"
#include "distill/runs/training_run.h"

namespace brine::distill {

enum class Stage : uint8_t { attention, joint };
inline constexpr data::Named<Stage> kStages[] = {{Stage::attention, "attention"},
                                                 {Stage::joint, "joint"}};
enum class Stages : uint8_t { attention, joint, both };
inline constexpr data::Named<Stages> kStageLists[] = {
    {Stages::attention, "attention"}, {Stages::joint, "joint"}, {Stages::both, "attention,joint"}};

// Settings of stage joint that differ from those of stage attention.
struct JointSettings {
  std::optional<int64_t> steps;  // 0: no such stage
  std::optional<int64_t> batch_size, warmup_steps;
  std::optional<double> attention_rate;
  // Of the base's weights, or with a lora_rank of the low-rank additions; 0: the base is frozen.
  std::optional<double> base_rate;
  std::optional<int64_t> lora_rank;
  std::optional<bool> recompute;
  LossWeights losses;

  void describe(data::Schema& s);
};

// What is converted; empty settings are decided by resolve().
struct Conversion {
  std::string teacher = {};  // may be empty with a dump: the student is its blocks alone
  std::string dump = {};     // of the teacher; empty: it runs
  bool trust_dump = false;   // no sample of it is compared with the teacher
  std::vector<std::string> data = {}, valid = {};  // text files or token shards
  std::optional<Stages> stages;                    // empty: attention, and joint if it has steps
  TextMixture text;
  TrainingSettings training;              // of stage attention
  std::optional<double> feature_rate;     // of the features of a learned prior
  std::optional<double> approx, context;  // weights of the losses of stage attention
  JointSettings joint;
  nn::ModelConfig student;               // the attention settings; sizes are the teacher's
  nn::MaskSettings mask = {};            // settings of its attention that a library call gives
  std::set<std::string> attention_keys;  // keys of them that resolve() may not change

  // An encoder, or a preset of `mask`, gets sea unless the method is among the keys.
  Conversion() { student.attention = "blocks"; }
  void describe(data::Schema& s);
  // Decides what is empty, for this teacher. A second call changes nothing.
  void resolve(const nn::ModelShape& teacher);
  bool has(Stage stage) const;
};

// A stage of a run directory: what prepare() and train() need.
struct StagePlan {
  Stage stage = Stage::attention;
  RunOptions options;
};
// The stages that are left to do. A directory that contains a stage is continued with
// options.resume alone.
std::vector<StagePlan> plan_stages(const Conversion& what, const RunOptions& options);

// Loads teacher and text, makes or loads the student and resolves `what`. Call it when the stages
// before are done: stage joint starts from the newest checkpoint in the directory.
std::unique_ptr<TrainingRun> prepare(Conversion& what, const StagePlan& plan, const RunHost& host);

// All stages that are left, one after another.
RunResult convert(Conversion& what, const RunOptions& options, const RunHost& host);

}  // namespace brine::distill
