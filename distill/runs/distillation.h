// A distillation: a student with another attention method learns from a teacher, which runs or was
// dumped before, in one or two stages (docs/distillation.md).
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "distill/batches/mixed_source.h"
#include "distill/runs/settings/training_settings.h"
#include "distill/runs/task_run.h"

namespace brine::distill {

// attention: each layer learns from the teacher by itself, the base is frozen, and a method that
// calibrates is not trained; joint: the student learns as a whole.
enum class Stage : uint8_t { attention, joint };
inline constexpr data::Named<Stage> kStages[] = {{Stage::attention, "attention"},
                                                 {Stage::joint, "joint"}};
enum class Stages : uint8_t { attention, joint, both };
inline constexpr data::Named<Stages> kStageLists[] = {
    {Stages::attention, "attention"}, {Stages::joint, "joint"}, {Stages::both, "attention,joint"}};

// Defaults of stage joint alone: for runs of minutes; those of SEA's paper (configs/paper).
enum class Recipe : uint8_t { short_run, paper };
inline constexpr data::Named<Recipe> kRecipes[] = {{Recipe::short_run, "short"},
                                                   {Recipe::paper, "paper"}};

// What is known of the teacher and its dump before the defaults are chosen.
struct TeacherFacts {
  bool causal = true;
  int64_t positions = 2048;
  int64_t pooled = 0;        // columns of a dump that has the teacher's attention only by columns
  int64_t dump_tokens = 0;   // of a window of the dump; 0: there is none
  int64_t text_tokens = 0;   // nine of ten texts of the task have no more; 0: unknown
  std::string massive = {};  // the teacher's massive activation in words; empty: it has none
};

// What was decided because of a teacher, its dump or a task, as the end of a sentence about it.
struct Decision {
  std::string text;
  bool warns = false;  // the value is another than the documented default
};

// A run as its user describes it; empty settings are decided by resolve().
struct Distillation {
  std::string teacher = {};  // a model's directory; "self"; empty: a dump makes blocks alone
  std::string dump = {};     // of the teacher; empty: it runs
  bool trust_dump = false;   // no sample of it is compared with the teacher

  std::vector<std::string> data = {},
                           valid = {};  // text files or token shards; data: of a task a directory
  TextMixture text = {};                // empty members: windows of sequence_length tokens
  TaskSettings task = {};               // a name: the run uses its texts
  bool dumped_texts = false;            // no name: it uses those of the dump of a classifier
  std::optional<double> epochs = {};    // for a task whose steps are empty

  std::string model = {};  // a student, a model or run, that learns on; empty: a new one
  int64_t model_rank = 0;  // of its low-rank additions
  nn::ModelConfig student = of_sea();         // the attention settings; sizes are the teacher's
  nn::MaskSettings mask = {};                 // settings of it that a library call gives
  std::set<std::string> attention_keys = {};  // keys of it that no default may change
  std::optional<int64_t> lora_rank = {};      // of additions to the base in stage joint; 0: none

  std::optional<Stages> stages = {};
  std::optional<Recipe> recipe = {};
  TrainingSettings training = {};           // of the only stage, or of stage attention
  LossWeights losses = {};                  // the same
  std::optional<double> feature_rate = {};  // of the features of a learned prior
  struct {
    TrainingSettings training = {};
    LossWeights losses = {};
  } joint = {};  // what stage joint has for itself where it follows stage attention

  // The keys of a configuration. Keys of [attention] that are set through this schema are added to
  // attention_keys.
  void describe(data::Schema& s);
  // Takes what is not given from the configuration of a run that continues: its recipe, and the
  // weight of kd, which was decided by a measurement of the teacher.
  void keep(const data::Json& stored);
  // Throws for a setting that no stage of the run has, or that its data do not take.
  void refuse_other_settings();
  // Decides everything that is empty, by the stages, the method, the task and the teacher. A task's
  // steps stay empty when they follow from its epochs. A second call changes nothing. Returns what
  // was decided because of these.
  std::vector<Decision> resolve(const TeacherFacts& facts);
  // The defaults of what is empty, from the table of defaults.cpp.
  Distillation defaults(const TeacherFacts& facts) const;
  // Why the student of an encoder will not be faster than its teacher: its texts are too short for
  // that. Empty: there is no objection. Call it after resolve().
  std::string no_gain(const TeacherFacts& facts) const;
  // Keys of the student's attention with their values as text, if its method is SEA.
  std::vector<std::pair<std::string, std::string>> attention_defaults(bool causal) const;

  bool has(Stage stage) const;
  bool follows() const { return stages == Stages::both; }  // stage joint, stage attention
  bool on_task() const { return !task.task.empty() || dumped_texts; }
  bool mixes() const { return text.lengths || text.retrieval_share; }
  bool self_taught() const { return teacher == kSelf; }
  static nn::ModelConfig of_sea();
};

// A stage of a run directory: what prepare() and train() need.
struct StagePlan {
  Stage stage = Stage::joint;
  RunOptions options;
};
// Decides the stages and returns those that are left to do. A directory that contains a stage is
// continued with options.resume alone. Throws for a setting that no stage of the run has.
std::vector<StagePlan> plan_stages(Distillation& what, const RunOptions& options);

// Loads teacher, student and data and resolves `what`. Call it when the stages before are done:
// stage joint starts from the newest checkpoint in the directory. The result refers to itself and
// to nothing of `what`.
std::unique_ptr<TrainingRun> prepare(Distillation& what, const StagePlan& plan,
                                     const RunHost& host);

// All stages that are left, one after another.
RunResult distil(Distillation& what, const RunOptions& options, const RunHost& host);

}  // namespace brine::distill
